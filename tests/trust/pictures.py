"""A folder of dark and bright pictures."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def brightness_folder(folder, count=60, wrong=(3, 44), copied=10):
    """Dark and bright pictures, of which some are in the wrong class, and one is in both."""
    random = np.random.default_rng(0)
    for i in range(count):
        is_bright = i >= count // 2
        pixels = random.uniform(0, 90, (32, 32, 3)) + 130 * is_bright
        name = "bright" if is_bright != (i in wrong) else "dark"
        (folder / name).mkdir(parents=True, exist_ok=True)
        encoded = tf.io.encode_png(pixels.astype("uint8")).numpy()
        (folder / name / f"{i}.png").write_bytes(encoded)
        if i == copied:
            (folder / "bright").mkdir(exist_ok=True)
            (folder / "bright" / "copy.png").write_bytes(encoded)
