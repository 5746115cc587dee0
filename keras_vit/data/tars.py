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

from keras_vit.data.headers import MAX_PIXELS
from keras_vit.data.image_files import IMAGE_ENDINGS
from keras_vit.data.labelled_set import ITEM_SEPARATOR
from keras_vit.data.tiff import as_png, load_bytes
from keras_vit.errors import DamagedFileError, printable
from keras_vit.reading import is_left_over, open_regular, refusing

_MAX_TEXT = 1 << 20  # bytes of a member
_BLOCK = 512
_EXTENDED = b"xgXLK"  # types of headers about the next member: pax, Solaris, GNU's long names
_MAX_HEADER = 1 << 14  # bytes of one; older versions of Python search it in quadratic time
_MAX_FIELDS = 64  # of a header for all members; `tarfile` copies them for each


class Sample(NamedTuple):
    """An image in a tar, and what its other members hold.

    Args:
        name: Name of the image's member, without control characters.
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
        paths = pattern.parent.glob(pattern.name)
        found = sorted(os.fspath(path) for path in paths if not is_left_over(path.name))
    else:
        found = [os.fspath(file) for file in files]
    if not found:
        raise FileNotFoundError(f"There are no files {printable(files)}.")
    return found


def read_tar(
    path: str, endings: Iterable[str], examine: Callable[[IO[bytes], int], str | None] | None = None
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
    advice = "Unpack compressed ones first; write one that is cut off again."
    with (
        refusing(path, "is no tar that can be read", advice),
        open_regular(path) as file,
        tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as tar,
    ):
        total = os.fstat(file.fileno()).st_size
        for member in tar:
            key, ending = _split(member.name)
            name = printable(member.name)
            _check_member(member, tar)
            is_skipped = any(map(is_left_over, member.name.split("/")))
            if is_skipped or not member.isreg() or member.issparse():
                continue
            left = total - member.offset_data
            if not 0 <= member.size <= left:
                raise ValueError(f"{name} claims {member.size:,} bytes, of {left:,} that are left")
            stream = tar.extractfile(member)
            assert stream is not None
            if ending in kept and member.size <= _MAX_TEXT:
                texts.setdefault(key, {})[ending] = stream.read()
            elif ending in IMAGE_ENDINGS and key in images:
                problems.append(f"{key} has two images, {images[key].name} and {name}")
            elif ending in IMAGE_ENDINGS:
                problem = examine and examine(stream, member.size)
                place = (name, member.offset_data, member.size)
                images[key] = Sample(*place, texts.setdefault(key, {}), problem)
        file.seek(tar.offset)
        end = file.read(_BLOCK)
    if end != bytes(_BLOCK):
        found = "other bytes" if len(end) == _BLOCK else "the end of the file"
        raise DamagedFileError(
            f"{printable(path)} is damaged or cut off: an empty block must follow the "
            f"{len(images):,} images in it. Received: {found} at byte {tar.offset:,}. Write it "
            "again; if nothing is missing, `head -c 1024 /dev/zero >> FILE` ends it."
        )
    problems += [f"{key} has no image" for key, each in texts.items() if each and key not in images]
    return list(images.values()), problems


class _Member(tarfile.TarInfo):
    """A header of a size that no attacker chose: `tarfile` reads extended ones as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _EXTENDED and member.size > _MAX_HEADER):
            raise ValueError(f"the header {printable(member.name)} claims {member.size:,} bytes")
        return member


def _check_member(member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    """Raises ValueError if the next member does not follow, or every one has very many fields."""
    if tar.offset <= member.offset:
        raise ValueError(f"{printable(member.name)} claims {member.size:,} bytes")
    if len(tar.pax_headers) > _MAX_FIELDS:
        raise ValueError(f"it gives every member {len(tar.pax_headers):,} fields")


def _split(name: str) -> tuple[str, str]:
    """Name of the sample, and ending, of a member."""
    folder, base = os.path.split(name)
    stem, _, ending = base.partition(".")
    return os.path.join(folder, stem), f".{ending.lower()}"


def make_item(path: str, name: str, start: int, length: int, changed: int) -> str:
    """An input of `load_item`.

    Args:
        path: The file.
        name: What the image is called in it, without `ITEM_SEPARATOR`.
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


def load_item(item: Any, max_pixels: int = MAX_PIXELS) -> Any:
    """Reads the bytes of an image, or of a record, at their place in a file; a string tensor.

    `max_pixels` is as for `as_png`.
    """

    # `FixedLengthRecordDataset`, without Python, takes 8 ms of an image, this 0.3.
    def read(item: str) -> bytes:
        path, _, start, length, changed = item.split(ITEM_SEPARATOR)
        with open_regular(path) as file:
            check_unchanged(path, os.fstat(file.fileno()), int(changed))
            file.seek(int(start))
            return as_png(file.read(int(length)), max_pixels)

    return load_bytes(read, item)
