"""A file of named arrays in any format, read one array at a time as float32."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.errors import CheckpointError
from keras_vit.reading import refusing

# Suffixes of pickled files, which can run any code when they are read.
PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".joblib")
# Arrays in a file: the largest checkpoint that is read here has 2,400, with optimizer states.
MAX_ARRAYS = 5_000
_MAX_AXES, _MAX_LENGTH = 16, 1 << 48
FLOATS = ("float64", "float32", "float16", "bfloat16")  # types that weights may have


class Entry(NamedTuple):
    """Shape and type of an array in a file.

    Args:
        shape: Shape of the array.
        dtype: NumPy's name of its type, or `"bfloat16"`.
    """

    shape: tuple[int, ...]
    dtype: str


def check_count(path: pathlib.Path, count: int) -> None:
    """Raises CheckpointError if a file claims to hold more arrays than any checkpoint has."""
    if count > MAX_ARRAYS:
        raise CheckpointError(
            f"{path} lists {count:,} arrays, and a checkpoint has at most {MAX_ARRAYS:,}: it is "
            "something else. Fetch the file again."
        )


def check_shape(path: pathlib.Path, name: str, shape: Sequence[int]) -> None:
    """Raises CheckpointError for shapes that no array can have, without printing their numbers."""
    if len(shape) > _MAX_AXES or any(not 0 <= length <= _MAX_LENGTH for length in shape):
        raise CheckpointError(
            f"{name!r} in {path} claims a shape of {len(shape)} axes that no array of a checkpoint "
            f"has: at most {_MAX_AXES} axes, lengths from 0 to 2^48. Fetch the file again."
        )


@dataclasses.dataclass(eq=False)
class ArrayFile:
    """The named arrays of a file. Opening reads only names, shapes and types.

    Args:
        path: The file.
        kind: `"npz"` or `"safetensors"`.
        entries: Shape and type by name.
        read_raw: Reads an array by name, in the type that it has in the file.
        close: Closes the file.
        check_bytes: Reads the bytes of every array in bounded memory; raises if some are damaged.
            It does nothing where the format has no checksums.
    """

    path: pathlib.Path
    kind: str
    entries: dict[str, Entry]
    read_raw: Callable[[str], np.ndarray]
    close: Callable[[], None]
    check_bytes: Callable[[], None] = lambda: None

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, name: str) -> np.ndarray:
        """Reads one array as float32.

        Args:
            name: Its name, one of `entries`.

        Returns:
            float32 array of the shape in `entries`.

        Raises:
            CheckpointError: If its bytes are damaged, or its values are not finite floats.
            MemoryError: If there is too little memory.
        """
        dtype = self.entries[name].dtype
        if dtype not in FLOATS:
            raise CheckpointError(
                f"{name!r} in {self.path} holds {dtype} values; weights must be float16, "
                "bfloat16, float32 or float64. Fetch the original file again."
            )
        try:
            with refusing(self.path, f"is damaged at {name!r}", kind=CheckpointError):
                array = self.read_raw(name)
        except MemoryError as error:
            reason = str(error) or "no bytes are left"
            raise MemoryError(
                f"There is too little memory to read {name!r} of {self.path}: {reason}. Close "
                "other programs, or use a machine with more memory."
            ) from error
        array = _to_float32(array, dtype)
        if not all_finite(array):
            raise CheckpointError(
                f"{name!r} in {self.path} holds NaN or infinity, so a model with it would give "
                "nothing else. Fetch the file again, or take an earlier checkpoint."
            )
        return array

    def verify(self) -> None:
        """Reads the bytes of every array in bounded memory.

        Raises:
            CheckpointError: If bytes are missing, or differ from their checksum.
        """
        with refusing(self.path, kind=CheckpointError):
            self.check_bytes()


def _to_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        raw = np.ascontiguousarray(array).view("<u2").reshape(array.shape)
        return (raw.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are found right after
        return array.astype(np.float32, copy=False)


def all_finite(array: np.ndarray) -> bool:
    """Tells whether an array of floats holds neither NaN nor infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # the sum is not finite if any value is not
            return True
    return bool(np.isfinite(array).all())
