"""Pixels of images for OWL-ViT and OWLv2, as transformers resizes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.pillow import resample
from keras_vit.installation import needing
from keras_vit.models.text_detector import pads_images
from keras_vit.runtime.model import Model


def owl_pixels(image: np.ndarray, model: Model) -> np.ndarray:
    """Resizes an image for OWL-ViT or OWLv2, also for the exported file of a detector.

    OWL-ViT takes the whole image, resized by Pillow; OWLv2 pads it with black below or to the right
    to a square, and resizes it with SciPy, smoothed before where it shrinks.

    Args:
        image: Array of shape `(h, w, 3)` with values in [0, 255].
        model: What `load_open_vocabulary(folder).detector(texts)` gives.

    Returns:
        float32 array of shape `model.input_shape[1:]` with values in [0, 255].

    Raises:
        ImportError: If SciPy is not installed, for OWLv2.
    """
    size = model.input_shape[1:3]
    if not pads_images(model.published):
        how = {2: "bilinear"}.get(model.published["processor"].get("resample"), "bicubic")
        return np.asarray(resample(tf.convert_to_tensor(image), size, (0, 0), size, how))
    with needing("detection", "Resizing of images for OWLv2 needs SciPy"):
        from scipy import ndimage
    height, width, _ = image.shape
    side = max(height, width)
    pixels = (image.astype("float64") / 255).astype("float32")
    pixels = np.pad(pixels, ((0, side - height), (0, side - width), (0, 0)))
    factors = np.array([side / size[0], side / size[1], 1.0])
    smooth = ndimage.gaussian_filter(pixels, np.maximum(0, (factors - 1) / 2), mode="mirror")
    resized = ndimage.zoom(smooth, 1 / factors, order=1, mode="mirror", grid_mode=True)
    return np.clip(resized, pixels.min(), pixels.max()) * np.float32(255)


def displayed_size(image: np.ndarray, facts: dict[str, Any]) -> tuple[int, int]:
    """Height and width in pixels of what boxes are shares of: in OWLv2 the padded square."""
    height, width = image.shape[:2]
    return (max(height, width),) * 2 if pads_images(facts) else (height, width)
