"""The named arrays of a file, whatever its format, one at a time and as float32."""

from __future__ import annotations

import pathlib
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_vit.errors import CheckpointError

# What a damaged file can make the standard library and NumPy raise.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
FLOATS = ("float64", "float32", "float16", "bfloat16")  # types that weights may have


class Entry(NamedTuple):
    """What a file says about one of its arrays.

    Args:
        shape: Its shape.
        dtype: NumPy's name of its type, or `"bfloat16"`.
    """

    shape: tuple[int, ...]
    dtype: str


class ArrayFile:
    """The named arrays of a file. Opening reads only names, shapes and types.

    Args:
        path: The file.
        kind: `"npz"` or `"safetensors"`.
        entries: Shape and type by name.
        read: From a name to its raw array.
        close: Lets the file go.
        metadata: Strings that the file carries beside its arrays.
    """

    def __init__(
        self,
        path: pathlib.Path,
        kind: str,
        entries: dict[str, Entry],
        read: Callable[[str], np.ndarray],
        close: Callable[[], None],
        metadata: dict[str, str],
    ):
        self.path = path
        self.kind = kind
        self.entries = entries
        self.metadata = metadata
        self._read = read
        self._close = close

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def read(self, name: str) -> np.ndarray:
        """One array as float32.

        Args:
            name: Its name, one of `entries`.

        Returns:
            float32 array of the shape in `entries`.

        Raises:
            CheckpointError: If its bytes are damaged, its values no floats, or some not finite.
        """
        dtype = self.entries[name].dtype
        if dtype not in FLOATS:
            raise CheckpointError(
                f"{name!r} in {self.path} holds {dtype} values; weights must be float16, "
                "bfloat16, float32 or float64. Fetch the original file again."
            )
        try:
            array = self._read(name)
        except CheckpointError:
            raise
        except DAMAGE as error:
            raise CheckpointError(
                f"{name!r} in {self.path} is damaged ({error}). Fetch the file again."
            ) from error
        array = _to_float32(array, dtype)
        if not _all_finite(array):
            raise CheckpointError(
                f"{name!r} in {self.path} holds NaN or infinity, so a model with it would give "
                "nothing else. Fetch the file again, or take an earlier checkpoint."
            )
        return array


def _to_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        raw = np.ascontiguousarray(array).view("<u2").reshape(array.shape)
        return (raw.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are found right after
        return array.astype(np.float32, copy=False)


def _all_finite(array: np.ndarray) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one pass; any NaN or infinity shows in the sum
            return True
    return bool(np.isfinite(array).all())
