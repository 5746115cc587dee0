"""Orientations in the headers of image files."""

from __future__ import annotations

import io
import tracemalloc
import zlib

import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from keras_vit.data.headers import read_exif_orientation
from keras_vit.data.orientation import read_orientation, read_png_orientation, read_webp_orientation
from tests.data.test_orientation import PHOTOGRAPH, classify, photograph
from tests.hostile_files import IMAGES

READERS = {"JPEG": read_orientation, "PNG": read_png_orientation, "WEBP": read_webp_orientation}


@pytest.mark.parametrize("name", ["exif.png", "exif.webp"])
def test_a_block_that_claims_gigabytes_is_not_allocated(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(IMAGES[name]())
    tracemalloc.start()
    assert read_exif_orientation(path, path.suffix[1:]) == 1
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    path.write_bytes(b"\xff\xd8\xff\xe1\0\0" + bytes(10**7))  # a length below that of itself
    assert read_exif_orientation(path, "jpeg") == 1


def chunk(name, data):
    checksum = zlib.crc32(name + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + name + data + checksum


def test_where_a_png_has_its_block():
    plain = photograph(None, "PNG")
    exif = photograph(6, "PNG")
    at = exif.index(b"eXIf") - 4
    block = exif[at : at + 12 + int.from_bytes(exif[at : at + 4], "big")]
    text = chunk(b"tEXt", b"Comment\0about eXIf and eXIfMM\0*")
    end = plain.index(b"IEND") - 4
    for data in (
        plain[:end] + block + plain[end:],  # after the pixels
        plain[:33] + text + block + plain[33:],
        plain[:end] + text + block + plain[end:],
    ):
        assert read_png_orientation(tf.constant(data)) == 6
        image = PIL.Image.open(io.BytesIO(data))
        assert classify().turn(image).size == (24, 40)
    for data in (plain, plain[:33] + text + plain[33:], exif[: at + 20], b"eXIf", b""):
        assert read_png_orientation(tf.constant(data)) == 1


def test_webp_blocks_of_other_programs():
    data = photograph(6, "WEBP")
    at = data.index(b"EXIF")
    block = b"Exif\0\0" + data[at + 8 :]
    started = data[:at] + b"EXIF" + len(block).to_bytes(4, "little") + block
    assert read_webp_orientation(tf.constant(started)) == 6
    for broken in (
        photograph(None, "WEBP"),
        data[:20] + bytes([data[20] & ~8]) + data[21:],  # no flag
        data[:at] + b"EXIF" + b"\xff" * 4 + data[at + 8 : at + 12],
        data[: at + 6],
        data[:14],
        data[:16] + b"\xff" * (len(data) - 16),
    ):
        assert read_webp_orientation(tf.constant(broken)) == 1


def test_orientations_that_are_not_stated():
    assert read_orientation(tf.constant(photograph(None))) == 1
    for kind, read in READERS.items():
        assert read(tf.constant(photograph(9, kind))) == 1
        assert read(tf.constant(photograph(6, kind, byte_order=b"II"))) == 6
        assert read(tf.constant(photograph(6, kind)[:25])) == 1
    plain = io.BytesIO()
    PIL.Image.fromarray(PHOTOGRAPH.astype("uint8")).save(plain, "JPEG")
    assert read_orientation(tf.constant(plain.getvalue())) == 1
