"""Image files of every kind, of one colour a frame."""

from __future__ import annotations

import io

from PIL import Image

RED, BLUE = (250, 10, 20), (10, 20, 250)


def encode(kind, *colours, size=(12, 9), mode="RGB", **options):
    """A file of `kind`, one frame for each colour; `size` is (width, height)."""
    frames = [Image.new(mode, size, colour) for colour in colours]
    file = io.BytesIO()
    more = {"save_all": True, "append_images": frames[1:]} if frames[1:] else {}
    frames[0].save(file, kind, **more, **options)
    return file.getvalue()
