"""Pictures that tests write: whole ones, and everything that can be wrong with a file."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image


def pixels(height=40, width=60, seed=0, channels=3):
    """Smooth colours with some noise, uint8: a JPEG of them is near to them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin(x / 9 + c + seed) * np.cos(y / 7 + 2 * c) for c in range(channels)]
    return (np.stack(waves, -1) + rng.uniform(-8, 8, (height, width, channels))).astype("uint8")


def encoded(array, kind="jpeg", **options):
    """The bytes of a file."""
    buffer = io.BytesIO()
    image = array if isinstance(array, PIL.Image.Image) else PIL.Image.fromarray(array)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_folder(root, classes=("cats", "dogs"), count=6, size=(40, 60)):
    """A folder of JPEGs and a PNG, in one folder a class."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            kind = "png" if i == 1 else "jpeg"
            data = encoded(pixels(*size, seed=10 * label + i), kind)
            (root / name / f"{i}.{kind}").write_bytes(data)
    return root


def write_colours(root, count=16, seed=0):
    """Reddish and bluish images in one folder a class."""
    rng = np.random.default_rng(seed)
    for channel, name in ((0, "red"), (2, "blue")):
        (root / name).mkdir(parents=True)
        for i in range(count):
            x = rng.uniform(0, 60, (20, 24, 3))
            x[..., channel] += 150
            (root / name / f"{i}.png").write_bytes(encoded(x.astype("uint8"), "png"))
    return str(root)
