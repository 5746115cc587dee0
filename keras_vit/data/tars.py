"""Reads tars of WebDataset: members with one name up to its first dot are a sample.

Opening a set reads the headers and small members of every tar once, for labels and captions and for
where images stand. Training then reads the bytes of an image at its place, so that all images are
shuffled as a whole, as files are.
"""

from __future__ import annotations

import os
import pathlib
import tarfile
from collections.abc import Callable, Iterable
from typing import IO, Any, NamedTuple

import tensorflow as tf

from keras_vit.data.image_files import IMAGE_ENDINGS
from keras_vit.data.labelled_set import ITEM_SEPARATOR
from keras_vit.errors import printable
from keras_vit.reading import open_regular

_MAX_TEXT = 1 << 20  # bytes of a member
_BLOCK = 512


class Sample(NamedTuple):
    """An image in a tar, and what its other members hold.

    Args:
        name: Name of the image's member.
        start: Position of its first byte in the file.
        length: Its bytes.
        texts: Content of the members that were asked for, by the ending of their names.
        problem: What is wrong with the image, or `None`.
    """

    name: str
    start: int
    length: int
    texts: dict[str, bytes]
    problem: str | None = None


def find_files(files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Finds files by a pattern, whose files are sorted by name, or by their paths.

    Raises:
        FileNotFoundError: If there are none.
    """
    if isinstance(files, str | os.PathLike):
        pattern = pathlib.Path(files)
        found = sorted(map(os.fspath, pattern.parent.glob(pattern.name)))
    else:
        found = [os.fspath(file) for file in files]
    if not found:
        raise FileNotFoundError(f"There are no files {printable(files)}.")
    return found


def read_tar(
    path: str,
    endings: Iterable[str],
    examine: Callable[[IO[bytes], int], str | None] | None = None,
) -> tuple[list[Sample], list[str]]:
    """Reads where the images of a tar stand, and the small members of the same name.

    Args:
        path: An uncompressed tar on a local disk.
        endings: Endings of names of members to read, after the first dot, in small letters.
        examine: Finds what is wrong with an image, from its bytes as a stream and their number.

    Returns:
        The samples with an image, and what is wrong with the others.

    Raises:
        ValueError: If the file is no tar, compressed, damaged or cut off.
    """
    images: dict[str, Sample] = {}
    texts: dict[str, dict[str, bytes]] = {}
    problems = []
    kept = tuple(endings)
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                key, ending = _split(member.name)
                if not member.isreg() or member.issparse():
                    continue
                if ending in kept and member.size <= _MAX_TEXT:
                    content = tar.extractfile(member)
                    assert content is not None
                    texts.setdefault(key, {})[ending] = content.read()
                elif ending in IMAGE_ENDINGS and key in images:
                    problems.append(f"{key} has two images, {images[key].name} and {member.name}")
                elif ending in IMAGE_ENDINGS:
                    stream = tar.extractfile(member)
                    assert stream is not None
                    problem = examine and examine(stream, member.size)
                    place = (member.name, member.offset_data, member.size)
                    images[key] = Sample(*place, texts.setdefault(key, {}), problem)
            file.seek(tar.offset)
            end = file.read(_BLOCK)
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise ValueError(
            f"{printable(path)} is no tar that can be read ({error!r:.200}). Unpack compressed "
            "ones first; write one that is cut off again."
        ) from error
    if end != bytes(_BLOCK):
        found = "other bytes" if len(end) == _BLOCK else "the end of the file"
        raise ValueError(
            f"{printable(path)} is damaged or cut off: an empty block must follow the "
            f"{len(images):,} images in it. Received: {found} at byte {tar.offset:,}. Write it "
            "again; if nothing is missing, `head -c 1024 /dev/zero >> FILE` ends it."
        )
    problems += [f"{key} has no image" for key, each in texts.items() if each and key not in images]
    return list(images.values()), problems


def _split(name: str) -> tuple[str, str]:
    """Name of the sample, and ending, of a member."""
    folder, base = os.path.split(name)
    stem, _, ending = base.partition(".")
    return os.path.join(folder, stem), f".{ending.lower()}"


def make_item(path: str, name: str, start: int, length: int, changed: int) -> str:
    """An input of `load_item`.

    Args:
        path: The file.
        name: What the image is called in it.
        start: Position of its first byte.
        length: Its bytes.
        changed: When the file was changed, by which stored features are told apart, and a file
            that is changed later is refused.
    """
    return ITEM_SEPARATOR.join(map(str, (path, name, start, length, changed)))


def check_unchanged(path: str, found: os.stat_result, changed: int) -> None:
    """Raises a `ValueError` if a file is not as it was when labels and places were read from it."""
    if found.st_mtime_ns != changed:
        raise ValueError(
            f"{printable(path)} was changed after it was opened, so its labels and places may be "
            "wrong. Open the images again."
        )


def load_item(item: Any) -> Any:
    """Reads the bytes of an image, or of a record, at their place in a file; a string tensor."""

    def read(item: bytes) -> bytes:
        path, _, start, length, changed = os.fsdecode(item).split(ITEM_SEPARATOR)
        with open_regular(path) as file:
            check_unchanged(path, os.fstat(file.fileno()), int(changed))
            file.seek(int(start))
            return file.read(int(length))

    # Stateless, so that `ResumeTraining` repeats it. `FixedLengthRecordDataset`, without Python,
    # takes 8 ms of an image, this 0.3.
    return tf.ensure_shape(tf.numpy_function(read, [item], tf.string, stateful=False), ())
