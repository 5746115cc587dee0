"""Reads TIFF files with Pillow, as PNG: TensorFlow reads PNG, and no TIFF."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.headers import MAX_PIXELS, ORIENTATION, find_problem, is_tiff, open_tiff
from keras_vit.reading import read_bytes

TIFF_ENDINGS = (".tif", ".tiff")


def as_png(data: bytes, max_pixels: int = MAX_PIXELS) -> bytes:
    """The first page of a TIFF as PNG, with its 16 bits and EXIF orientation; other files as is.

    Args:
        data: A file of any format.
        max_pixels: Height times width above which a TIFF is refused.

    Raises:
        ValueError: If a TIFF cannot be read, holds other numbers than 1 to 16 bits without sign, or
            has more pixels.
    """
    if not is_tiff(data):
        return data
    problem = find_problem(io.BytesIO(data), len(data), max_pixels)
    if problem is not None:
        raise ValueError(problem)
    import PIL.Image

    image, _ = open_tiff(io.BytesIO(data), len(data))

    try:
        if image.mode.startswith("I;16"):
            page = PIL.Image.fromarray(np.asarray(image).astype("uint16"))
        else:
            page = image.convert("RGBA" if image.mode in ("RGBA", "LA", "PA") else "RGB")
        exif = PIL.Image.Exif()
        exif[ORIENTATION] = image.getexif().get(ORIENTATION, 1)  # 1 where Pillow has turned it
        png = io.BytesIO()
        page.save(png, "PNG", exif=exif, compress_level=1)
    except MemoryError:  # is no fault of the file
        raise
    except Exception as error:
        raise ValueError(f"is a TIFF file that cannot be decoded ({error})") from error
    return png.getvalue()


def file_loader(paths: Iterable[Any], max_pixels: int) -> Callable[[Any], Any]:
    """A function from the path of an image file to its bytes: `tf.io.read_file` without TIFFs."""
    if not any(str(path).lower().endswith(TIFF_ENDINGS) for path in paths):
        return tf.io.read_file

    return functools.partial(load_tiff, max_pixels)


def load_tiff(max_pixels: int, path: Any) -> Any:
    """Reads a file as `file_loader` does, where some are TIFF."""
    return load_bytes(lambda path: as_png(read_bytes(path), max_pixels), path)


def load_bytes(read: Callable[[str], bytes], item: Any) -> Any:
    """Calls a function from a name to bytes on a string tensor, in a graph or in eager mode.

    It is stateless, so that `ResumeTraining` repeats it.
    """

    def call(item: Any) -> bytes:  # bytes in graphs, and an array of them in eager mode
        return read(os.fsdecode(np.asarray(item).item()))

    return tf.ensure_shape(tf.numpy_function(call, [item], tf.string, stateful=False), ())
