"""Pictures of which tests/golden/depth.json has the depth."""

from __future__ import annotations

import numpy as np
import skimage.data

PICTURES = ("astronaut", "chelsea", "coffee", "rocket", "retina", "noise")


def picture_of(name: str) -> np.ndarray:
    """A picture of scikit-image, or noise."""
    if hasattr(skimage.data, name):
        return getattr(skimage.data, name)()[..., :3]
    return np.random.default_rng(0).integers(0, 256, (91, 60, 3)).astype("uint8")
