"""Opening of array files by their first bytes; no code in a file is run."""

from __future__ import annotations

import os
import pathlib
import stat
import zipfile

from keras_vit.errors import CheckpointError
from keras_vit.weights.array_file import DAMAGE, PICKLE_SUFFIXES, ArrayFile
from keras_vit.weights.npz_file import BoundedFile, open_npz
from keras_vit.weights.safetensors_file import open_tensors

_MAX_MEMBERS = 1000  # of a `.keras` file: it has three, and one for each asset
_MAX_RATIO = 4  # Keras does not compress; a copy that was zipped again is a little smaller


def check_keras_file(path: str | os.PathLike[str]) -> None:
    """Checks that a `.keras` file cannot unpack to much more than it is.

    Args:
        path: The file. Keras loads it afterwards, in safe mode.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is an archive that grows, or no regular file.
    """
    path = pathlib.Path(path)
    _refuse_special(path)
    try:
        with BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except DAMAGE:
        return  # Keras says what is wrong with it
    size, unpacked = path.stat().st_size, sum(member.file_size for member in members)
    if len(members) > _MAX_MEMBERS or unpacked > _MAX_RATIO * size + 1_000_000:
        raise CheckpointError(
            f"{path} has {len(members):,} members that unpack from {size:,} to {unpacked:,} bytes. "
            "Files of Keras are not compressed: save the model again with `model.save`."
        )


def open_arrays(path: str | os.PathLike[str]) -> ArrayFile:
    """Opens a file of arrays. Its first bytes tell the format, not its name.

    Args:
        path: An `.npz` or a `.safetensors` file.

    Returns:
        An `ArrayFile`, to be used in a `with` statement.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it has another format, is pickled or damaged.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder. Pass the .npz or .safetensors file in it.")
    _refuse_special(path)
    with open(path, "rb") as stream:
        head = stream.read(16)
    _refuse_others(path, head)
    opener = open_npz if head.startswith(b"PK") else open_tensors
    try:
        return opener(path)
    except CheckpointError:
        raise
    except DAMAGE as error:
        raise CheckpointError(
            f"{path} is damaged or no checkpoint ({error}). An .npz or .safetensors file is "
            "needed; fetch it again."
        ) from error


def _refuse_special(path: pathlib.Path) -> None:
    """Raises CheckpointError for pipes, devices and sockets: opening one could wait forever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path} is no regular file, so it is not opened. Copy it to one.")


def _refuse_others(path: pathlib.Path, head: bytes) -> None:
    """Raises CheckpointError for formats that are not read."""
    if len(head) < 16:
        raise CheckpointError(
            f"{path} has only {len(head)} bytes: it was cut off, or is no checkpoint. Fetch it "
            "again."
        )
    if (head[:1] == b"\x80" and head[1] <= 5) or path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{path} is a pickled file, which can run any code when it is read, so it is not "
            "read. Fetch the .safetensors file of the same checkpoint (model.safetensors on "
            "Hugging Face), or the official .npz."
        )
    if head.startswith(b"\x89HDF"):
        raise CheckpointError(
            f"{path} is an HDF5 file. Files of Keras end in .weights.h5 and are read by "
            "`model.load_weights`; of other checkpoints fetch the .safetensors or .npz file."
        )
    if head.lstrip()[:1] == b"<" or head.startswith(b"version https"):
        raise CheckpointError(
            f"{path} is a page of text, not a checkpoint: the download gave a web page or a Git "
            "LFS pointer. Fetch the file itself."
        )
