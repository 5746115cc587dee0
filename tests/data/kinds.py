"""Image files of every kind, of one colour a frame."""

from __future__ import annotations

import io
import struct

from PIL import Image

RED, BLUE = (250, 10, 20), (10, 20, 250)


def encode(kind, *colours, size=(12, 9), mode="RGB", **options):
    """A file of `kind`, one frame for each colour; `size` is (width, height)."""
    frames = [Image.new(mode, size, colour) for colour in colours]
    file = io.BytesIO()
    animation = {"save_all": True, "append_images": frames[1:]} if frames[1:] else {}
    frames[0].save(file, kind, **animation, **options)
    return file.getvalue()


def claim(kind, width, height):
    """A small file of `kind` whose header claims a size; `webp` is lossless."""
    data = bytearray(encode(kind, RED, **({"lossless": True} if kind == "webp" else {})))
    if kind == "jpeg":
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    elif kind == "png":
        data[16:24] = struct.pack(">II", width, height)
    elif kind == "gif":
        image = data.index(b"\x2c\0\0\0\0")
        data[image + 5 : image + 9] = struct.pack("<HH", width, height)
    elif kind == "bmp":
        data[18:26] = struct.pack("<ii", width, -height)
    elif kind == "webp":
        data[21:25] = struct.pack("<I", width - 1 | height - 1 << 14)
    return bytes(data)
