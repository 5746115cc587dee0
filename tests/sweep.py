"""The record of many small models of timm and transformers, and their files made from it.

`scripts/peers/sweep_theirs.py` writes the record: names and shapes of arrays, sidecar files and
outputs. The values of an array follow from its name, so they are not stored. No Keras here: that
script reads this module with PyTorch alone.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import zlib
from typing import Any

import numpy as np

RECORD = pathlib.Path(__file__).parent / "golden" / "sweep.json.gz"
Shape = tuple[int, ...]


def values(name: str, shape: Shape) -> np.ndarray:
    """Values that hide nothing: every branch, bias, scale and position counts."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    if name.endswith("running_var"):
        noise = 1 + 0.1 * np.abs(noise)
    elif len(shape) == 1:
        is_scale = name.endswith(("gamma", "lambda1")) or (
            "norm" in name.lower() and name.endswith("weight")
        )
        noise = 0.2 * noise + is_scale
    elif any(word in name for word in ("token", "pos", "probe", "latent")):
        noise = 0.5 * noise
    else:
        noise = noise / np.prod(shape[1:]) ** 0.5
    return np.asarray(noise, "float32")


def images(size: tuple[int, int], channels: int = 3) -> np.ndarray:
    """Two images in [-1, 1], array of shape `(2, height, width, channels)`."""
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (2, *size, channels)).astype("float32")


def patches_of(pixels: np.ndarray, side: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches of images as vectors, `(B, limit, pixels)` with zeros at the end, and their grids."""
    count, height, width, channels = pixels.shape
    rows, columns = height // side, width // side
    x = pixels.reshape(count, rows, side, columns, side, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(count, rows * columns, -1)
    x = np.pad(x, ((0, 0), (0, limit - rows * columns), (0, 0)))
    return x, np.tile([[rows, columns]], (count, 1))


def read_record() -> dict[str, dict[str, Any]]:
    """The cases by title; see `scripts/peers/sweep_theirs.py`."""
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def arrays(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a case's file by name."""
    return {name: values(name, tuple(shape)) for name, shape in case["shapes"].items()}
