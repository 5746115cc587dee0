"""Opening of array files by their first bytes; no code in a file is run."""

from __future__ import annotations

import io
import math
import os
import pathlib
import re
import zipfile
from typing import IO, NoReturn

from keras_vit.errors import CheckpointError
from keras_vit.reading import open_regular, refusing
from keras_vit.weights.array_file import PICKLE_SUFFIXES, ArrayFile
from keras_vit.weights.npz_file import BoundedFile, open_npz
from keras_vit.weights.safetensors_file import open_tensors
from keras_vit.weights.sharded_file import INDEX_SUFFIX, index_name, open_shards

DEFAULT_FILE = "model.safetensors"  # on the Hugging Face hub
_SUFFIXES = (".npz", ".safetensors", INDEX_SUFFIX, ".h5")
_MAX_MEMBERS = 1000  # of a `.keras` file: it has three, and one for each asset
_MAX_RATIO = 4  # Keras does not compress; a copy that was zipped again is a little smaller
_MAX_OBJECTS = 100_000  # of an HDF5 file: a large model has some thousands
_WEIGHTS = "model.weights.h5"  # in a `.keras` file
_HEAD = 512  # bytes that tell the format
_INSTEAD = "Fetch the .safetensors or .npz file of the same checkpoint."
_UNPACK = "a compressed archive. Unpack it, and pass the .safetensors or .npz file in it."
_TENSORFLOW = (
    "a file of a TensorFlow checkpoint, which is not read here but for Image GPT "
    f"(`load_image_gpt`). {_INSTEAD}"
)
# What other files are, and what to do: by their first bytes, a pattern, and by their names.
_OTHERS_BY_BYTES = tuple(
    (re.compile(pattern, re.DOTALL), text)
    for pattern, text in (
        (
            rb"\x80[\x00-\x05]",
            "a pickled file, which can run any code when it is read, so it is not read. Fetch the "
            ".safetensors file of the same checkpoint (model.safetensors on Hugging Face), or the "
            "official .npz.",
        ),
        (
            rb"\x89HDF",
            "an HDF5 file. Files of Keras end in .weights.h5 and are read by "
            "`create_model(variant, weights=...)`; of other checkpoints fetch the .safetensors or "
            ".npz file.",
        ),
        (
            rb"(\xef\xbb\xbf)?\s*<",
            "a page of text, not a checkpoint: the download gave a web page, such as a login or an "
            "error. Open the address in a browser to see what it says; hf://owner/name fetches "
            "files of the Hugging Face hub.",
        ),
        (
            rb"version https",
            "a Git LFS pointer, not a checkpoint: the repository was copied without its large "
            "files. Run `git lfs pull` there, or fetch the file itself.",
        ),
        (rb"\s*[{\[]", f"a text of JSON, not a checkpoint. {_INSTEAD}"),
        (rb"GGUF", f"a GGUF file, of llama.cpp, whose weights are mostly quantised. {_INSTEAD}"),
        (rb".{4}TFL3", f"a LiteRT (TFLite) model, whose weights have lost their names. {_INSTEAD}"),
        (rb"\x93NUMPY", f"a single array of NumPy. {_INSTEAD}"),
        (rb"\x1f\x8b|BZh\d|\xfd7zXZ|7z\xbc\xaf|\x28\xb5\x2f\xfd|Rar!|.{257}ustar", _UNPACK),
        (
            rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)\w",
            f"a msgpack file of Flax. {_INSTEAD}",
        ),
    )
)
_OTHERS_BY_NAME = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        ("|".join(rf"\{suffix}$" for suffix in PICKLE_SUFFIXES), _OTHERS_BY_BYTES[0][1]),
        (r"\.msgpack$", f"a msgpack file of Flax. {_INSTEAD}"),
        (r"\.onnx$", f"an ONNX model, a graph whose weights have lost their names. {_INSTEAD}"),
        (r"\.index$|\.data-\d{5}-of-\d{5}$|^checkpoint$", _TENSORFLOW),
        (r"\.pb$", f"a graph of TensorFlow. {_INSTEAD}"),
    )
)


def check_keras_file(path: str | os.PathLike[str]) -> None:
    """Checks that a `.keras` file cannot unpack to much more than it is.

    Args:
        path: The file. Keras loads it afterwards, in safe mode.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is an archive that grows or cannot be checked, or no regular file.
    """
    path = pathlib.Path(path)
    advice = "Save the model again with `model.save`, or fetch the file again."
    with (
        refusing(path, "is damaged or no .keras file", advice, CheckpointError),
        BoundedFile(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        file.is_bounded = False
        members = archive.infolist()
        size, unpacked = path.stat().st_size, sum(member.file_size for member in members)
        if len(members) > _MAX_MEMBERS or unpacked > _MAX_RATIO * size + 1_000_000:
            raise CheckpointError(
                f"{path} has {len(members):,} members that unpack from {size:,} to "
                f"{unpacked:,} bytes. Files of Keras are not compressed: save the model again "
                "with `model.save`."
            )
        weights = archive.getinfo(_WEIGHTS)
        with archive.open(weights) as stored:
            is_stored = weights.compress_type == zipfile.ZIP_STORED
            whole = stored if is_stored else io.BytesIO(stored.read())
            _check_hdf5(path, whole, weights.file_size)


def check_weights_file(path: str | os.PathLike[str]) -> None:
    """Checks that the arrays of a `.weights.h5` file are as large as the file.

    Args:
        path: The file. Keras loads it afterwards.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is damaged, its arrays expand, or it is no regular file.
    """
    path = pathlib.Path(path)
    advice = "Save the weights again with `model.save_weights`, or fetch the file again."
    problem = "is damaged or no HDF5 file"
    with refusing(path, problem, advice, CheckpointError), open_regular(path) as file:
        _check_hdf5(path, file, path.stat().st_size)


def _check_hdf5(path: pathlib.Path, file: IO[bytes], size: int) -> None:
    """Checks that the arrays of an HDF5 file lie in it, one after the other, as Keras writes them.

    Arrays in chunks can be compressed, or missing: they expand when they are read. Links, external
    and virtual arrays read other files.
    """
    import h5py

    with h5py.File(file) as root:
        total, count, seen, waiting = 0, 0, set(), [root]
        while waiting:
            group = waiting.pop()
            for name in group:
                where = f"{group.name.rstrip('/')}/{name}"[:200]
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    _refuse_array(path, where, "a link to elsewhere")
                found = group[name]
                address = h5py.h5o.get_info(found.id).addr
                count += 1
                if count > _MAX_OBJECTS:
                    _refuse_array(path, where, f"one of more than {_MAX_OBJECTS:,} objects")
                if address in seen or isinstance(found, h5py.Datatype):
                    continue
                seen.add(address)
                if isinstance(found, h5py.Group):
                    waiting.append(found)
                    continue
                if found.chunks or found.external or found.is_virtual or found.dtype.hasobject:
                    _refuse_array(path, where, "an array in chunks or of other files")
                total += math.prod(found.shape or ()) * found.dtype.itemsize
                if total > size:
                    _refuse_array(path, where, f"the array after which {size:,} bytes are too few")


def _refuse_array(path: pathlib.Path, name: str, what: str) -> NoReturn:
    raise CheckpointError(
        f"{path} holds {name!r}, {what}, which Keras does not write: it may expand to gigabytes. "
        "Load the model where it was made, and save it again."
    )


def open_arrays(path: str | os.PathLike[str]) -> ArrayFile:
    """Opens the arrays of a checkpoint. The first bytes of a file tell its format, not its name.

    Args:
        path: An `.npz` or a `.safetensors` file; the index of a checkpoint that is split over
            several files, or one of these; a folder with one of them.

    Returns:
        An `ArrayFile`, to be used in a `with` statement.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it has another format, is pickled or damaged, or a file of a split
            checkpoint is missing.
    """
    path = find_file(pathlib.Path(path))
    index = index_name(path.name)
    return open_file(path) if index is None else open_shards(path.with_name(index), open_file)


def find_file(path: pathlib.Path) -> pathlib.Path:
    """Finds the checkpoint in a folder, such as a copy of a repository; a file is returned.

    Raises:
        CheckpointError: If the folder has no `model.safetensors`, whole or split.
    """
    if not path.is_dir():
        return path
    for name in (DEFAULT_FILE, f"{DEFAULT_FILE.partition('.')[0]}{INDEX_SUFFIX}"):
        if (path / name).is_file():
            return path / name
    names = sorted(each.name for each in path.iterdir())
    files = [
        name for name in names if name.endswith(_SUFFIXES) and index_name(name) in (None, name)
    ]
    shown = f"({', '.join(files[:9])})" if files else "(none is a .npz or .safetensors file)"
    others = [(name, _other_by_name(name)) for name in names]
    found = next((f" {name} is {text}" for name, text in others if text and not files), "")
    raise CheckpointError(f"{str(path)!r} is a folder; name the file in it {shown}.{found}")


def open_file(path: pathlib.Path) -> ArrayFile:
    """Opens a file alone, which may be a part of a split checkpoint: see `open_arrays`."""
    if not path.exists() and path.with_name(f"{path.name}.index").is_file():
        raise CheckpointError(f"{path} is {_TENSORFLOW}")
    with refusing(path, kind=CheckpointError), open_regular(path) as stream:
        head = stream.read(_HEAD)
    _refuse_others(path, head)
    opener = open_npz if head.startswith(b"PK") else open_tensors
    advice = "An .npz or .safetensors file is needed; fetch it again."
    with refusing(path, "is damaged or no checkpoint", advice, CheckpointError):
        return opener(path)


def _refuse_others(path: pathlib.Path, head: bytes) -> None:
    """Raises CheckpointError for formats that are not read."""
    if len(head) < 16:
        raise CheckpointError(
            f"{path} has only {len(head)} bytes: it was cut off, or is no checkpoint. Fetch it "
            "again."
        )
    what = _other_by_name(path.name)
    # After 8 bytes of a length, which can be any, the header of a .safetensors file begins.
    if what is None and head[8:9] != b"{":
        what = next((text for pattern, text in _OTHERS_BY_BYTES if pattern.match(head)), None)
    if what is not None:
        raise CheckpointError(f"{path} is {what}")


def _other_by_name(name: str) -> str | None:
    return next((text for pattern, text in _OTHERS_BY_NAME if pattern.search(name)), None)
