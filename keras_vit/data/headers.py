"""Checks image files by their headers: format, size, and whether they are complete."""

from __future__ import annotations

import io
import os
import struct
from typing import IO, Any, NamedTuple

import tensorflow as tf

from keras_vit.reading import open_regular

# Height times width above which an image is refused: 5,792 x 5,792, 100 MB in three channels.
MAX_PIXELS = 1 << 25
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_PARTS = ((273, 279), (324, 325))  # tags of positions and lengths of strips, or of tiles

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_START = 33  # bytes of the signature and of the first chunk, with the size
_PNG_END = b"\0\0\0\0IEND"  # length and name of the last chunk
_JPEG_END = b"\xff\xd9"
_TAIL = 4096
_BLOCK = 1 << 20
_MAX_PARTS = 1 << 17  # segments or chunks looked at: those of a PNG of 1 GB, whose have 8 KB mostly
_READS_WEBP = hasattr(tf.io, "decode_webp")
ORIENTATION = 0x0112  # tag of EXIF and TIFF
_MAX_EXIF = 1 << 16  # bytes; a segment of a JPEG is not longer
EXIF_SEGMENTS = 3  # of a JPEG: EXIF is the first segment, or follows the one or two of JFIF
# Frame headers of JPEG: 0xC0 to 0xCF, except tables (C4, CC) and the reserved C8.
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def find_problem(file: IO[bytes], size: int, max_pixels: int) -> str | None:
    """Checks whether an image can be read, by its first and last bytes.

    Args:
        file: The image, from its first byte on.
        size: Its bytes.
        max_pixels: Height times width above which an image is rejected.

    Returns:
        The reason why it cannot be read, or `None`. Damage in the middle is not found.
    """
    if not size:
        return "is empty (0 bytes)"
    try:
        header = _read_header(file, size)
    except (struct.error, IndexError):
        return "is cut off in its header"
    shape = header.shape
    if header.format == "webp" and not _READS_WEBP:
        return "is a WebP file, which this version of TensorFlow does not read: convert it"
    if header.problem is not None:
        return header.problem
    if not header.is_whole:
        return "is cut off: its end is missing"
    if not min(shape):
        return f"says that it has {shape[0]:,} x {shape[1]:,} pixels"
    if shape[0] * shape[1] > max_pixels:
        return (
            f"has {shape[0]:,} x {shape[1]:,} pixels, more than max_pixels={max_pixels:,}: "
            "make it smaller"
        )
    return None


def read_size(path: str | os.PathLike[str]) -> tuple[int, int, str]:
    """Reads height, width and format of an image file that `find_problem` accepts."""
    with open_regular(path) as file:
        header = _read_header(file, os.stat(path).st_size)
    return *header.shape, header.format


def read_exif_orientation(path: str | os.PathLike[str], format: str) -> int:
    """Reads the EXIF orientation of an image file: 1 is upright, 2 to 8 are turned or mirrored.

    The tag 0x0112 of the first directory, see the EXIF standard 2.32, section 4.6.
    """
    if format == "tiff":
        with open_regular(path) as file:
            image, _ = open_tiff(file, os.stat(path).st_size)
            return int(image.tag_v2.get(ORIENTATION, 1)) if image else 1
    read_block = _EXIF_READERS.get(format)
    if read_block is None:
        return 1
    try:
        with open_regular(path) as file:
            tiff = read_block(file).removeprefix(b"Exif\0\0")
        order = {b"II": "<", b"MM": ">"}[tiff[:2]]
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if tag == ORIENTATION and 1 <= value <= 8:
                return value
    except (struct.error, IndexError, KeyError):
        pass
    return 1


def read_displayed_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Reads height and width of an image file as it is displayed, turned as its EXIF says."""
    height, width, format = read_size(path)
    return (width, height) if read_exif_orientation(path, format) >= 5 else (height, width)


def is_tiff(head: bytes) -> bool:
    """Whether a file begins as TIFF, or as BigTIFF, does."""
    return head[:4] in _TIFF


def open_tiff(file: IO[bytes], size: int) -> tuple[Any, str | None]:
    """Opens a TIFF of `size` bytes without decoding it: a `PIL` image, and what is wrong with it.

    Without Pillow, or if it knows no such TIFF, the image is `None`.
    """
    try:
        from PIL.TiffImagePlugin import TiffImageFile
    except ImportError:
        return None, "is a TIFF file, which Pillow reads: pip install pillow"
    try:
        file.seek(0)
        image = TiffImageFile(file)  # `Image.open` has a limit of its own
        tags = image.tag_v2
        parts = [(tags.get(a) or (), tags.get(b) or ()) for a, b in _TIFF_PARTS]
        end = max((sum(each) for a, b in parts for each in zip(a, b, strict=False)), default=0)
    except Exception as error:
        return None, f"is a TIFF file that Pillow does not read ({error}): convert it"
    if image.mode in ("F", "I"):
        kind = "floats" if image.mode == "F" else "signed or 32-bit integers"
        return image, f"is a TIFF of {kind}, whose range is not known: convert it to 8 or 16 bits"
    return image, None if end <= size else "is cut off: its end is missing"


def _jpeg_exif(file: IO[bytes]) -> bytes:
    """Looks where `orientation.read_orientation` does, so that masks are turned as their images."""
    head = io.BytesIO(file.read(_MAX_EXIF))
    head.seek(2)
    for _ in range(EXIF_SEGMENTS):
        marker, length = struct.unpack(">HH", head.read(4))
        data = head.read(max(length - 2, 0))
        if marker == 0xFFE1 and data.startswith(b"Exif"):
            return data
    return b""


def _png_exif(file: IO[bytes]) -> bytes:
    file.seek(len(_PNG))
    for _ in range(_MAX_PARTS):
        length, name = struct.unpack(">I4s", file.read(8))
        if name in (b"eXIf", b"IEND"):
            return file.read(min(length, _MAX_EXIF))
        file.seek(length + 4, os.SEEK_CUR)
    return b""


def _webp_exif(file: IO[bytes]) -> bytes:
    head = file.read(21)
    if head[12:16] != b"VP8X" or not head[20] & 8:
        return b""
    file.seek(12)
    for _ in range(_MAX_PARTS):
        name, length = struct.unpack("<4sI", file.read(8))
        if name == b"EXIF":
            return file.read(min(length, _MAX_EXIF))
        file.seek(length + length % 2, os.SEEK_CUR)
    return b""


_EXIF_READERS = {"jpeg": _jpeg_exif, "png": _png_exif, "webp": _webp_exif}


class _Header(NamedTuple):
    """Format, shape and completeness of a file, from its first and last bytes."""

    format: str
    shape: tuple[int, int]
    is_whole: bool
    problem: str | None = None


def _read_header(file: IO[bytes], size: int) -> _Header:
    head = file.read(32)
    if head[:2] == b"\xff\xd8":
        shape = _jpeg_shape(file)  # a thumbnail before it has an end marker too
        if shape is None:
            problem = f"is a JPEG with more than {_MAX_PARTS:,} segments before its size"
            return _Header("jpeg", (0, 0), True, problem)
        return _Header("jpeg", shape, _has_end(file, _JPEG_END, file.tell(), size))
    if head[:8] == _PNG:
        width, height = struct.unpack(">II", head[16:24])
        return _Header("png", (height, width), _has_end(file, _PNG_END, _PNG_START, size))
    if head[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack("<HH", head[6:10])
        file.seek(max(0, size - _TAIL))
        is_whole = file.read().rstrip(b"\0").endswith(b"\x3b")
        return _Header("gif", (height, width), is_whole)
    if head[:2] == b"BM":
        (stored,) = struct.unpack("<I", head[2:6])
        width, height = struct.unpack("<ii", head[18:26])
        return _Header("bmp", (abs(height), abs(width)), size >= stored)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        moves = head[12:16] == b"VP8X" and head[20] & 2
        problem = "is a WebP file that moves, which TensorFlow does not read: convert it"
        is_whole = size >= struct.unpack("<I", head[4:8])[0] + 8
        return _Header("webp", _webp_shape(head), is_whole, problem if moves else None)
    if is_tiff(head):
        image, wrong = open_tiff(file, size)
        # Not `image.size`, which is that of the turned image in some versions.
        shape = (0, 0) if image is None else (image.tag_v2[257], image.tag_v2[256])
        return _Header("tiff", shape, True, wrong)
    return _Header("?", (0, 0), False, "is no JPEG, PNG, GIF, BMP, TIFF or WebP file")


def _jpeg_shape(file: IO[bytes]) -> tuple[int, int] | None:
    """Height and width of a JPEG, from its frame header; `None` if too much precedes it."""
    file.seek(2)
    for _ in range(_MAX_PARTS):
        first, marker = struct.unpack("BB", file.read(2))
        if first != 0xFF:
            raise IndexError
        if marker == 0xFF:
            marker = _after_fill(file)
        (length,) = struct.unpack(">H", file.read(2))
        if length < 2:
            raise IndexError
        if marker in _FRAMES:
            height, width = struct.unpack(">xHH", file.read(5))
            return height, width
        file.seek(length - 2, os.SEEK_CUR)
    return None


def _after_fill(file: IO[bytes]) -> int:
    """The first byte that is no fill byte, of which any number can precede a marker."""
    while block := file.read(_TAIL):
        rest = block.lstrip(b"\xff")
        if rest:
            file.seek(1 - len(rest), os.SEEK_CUR)
            return rest[0]
    raise IndexError


def _webp_shape(head: bytes) -> tuple[int, int]:
    """Height and width of a WebP file: extended, lossy or lossless."""
    if head[12:16] == b"VP8X":
        wide, high = (int.from_bytes(head[i : i + 3], "little") for i in (24, 27))
        return high + 1, wide + 1
    if head[12:16] == b"VP8 ":
        width, height = struct.unpack("<HH", head[26:30])
        return height & 0x3FFF, width & 0x3FFF
    bits = int.from_bytes(head[21:25], "little")
    return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1


def _has_end(file: IO[bytes], marker: bytes, start: int, size: int) -> bool:
    """Whether an end marker follows `start`: in the last bytes, or before appended data.

    Motion photos of phones are a JPEG and a video in one file.
    """
    return _is_in(file, marker, max(start, size - _TAIL)) or _is_in(file, marker, start)


def _is_in(file: IO[bytes], marker: bytes, start: int) -> bool:
    file.seek(start)
    block = b""
    while data := file.read(_BLOCK):
        block = block[1 - len(marker) :] + data  # a marker may lie across two blocks
        if marker in block:
            return True
    return False
