"""Pictures of what a masked autoencoder sees, and of what it makes of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.layers.hidden_patches import EPSILON, PatchPixels
from keras_vit.runtime.model import find_preprocessing
from keras_vit.self_supervised.masked_autoencoder import MaskedAutoencoder

_GREY = 128.0


def draw_reconstructions(
    autoencoder: MaskedAutoencoder, images: Any, noise: Any = None
) -> np.ndarray:
    """Draws each image, the patches that are seen, and these with the predicted others.

    Of normalised patches, mean and variance are those of the image, as in the authors' pictures.

    Args:
        autoencoder: The model, with preprocessing included.
        images: Pixels of shape `(B, H, W, 3)` in [0, 255].
        noise: As for `MaskedAutoencoder.loss`; `None` draws it, always the same.

    Returns:
        uint8 array of shape `(B * H, 3 W, 3)`.

    Raises:
        ValueError: If the model does not include its preprocessing.
    """
    preprocessing, includes = find_preprocessing(autoencoder.encoder)
    if preprocessing is None or not includes:
        raise ValueError(
            "Pictures need an encoder that takes pixels in [0, 255]. Received: "
            f"{autoencoder.encoder.name!r}, without preprocessing."
        )
    images = np.asarray(images, "float32")
    layer = autoencoder.model.get_layer("targets")
    height, width = layer.patch_size
    rows, columns = images.shape[1] // height, images.shape[2] // width
    if noise is None:
        noise = np.random.default_rng(0).random((len(images), rows * columns), "float32")
    found, mask = autoencoder.reconstruct(images, noise)
    mean, std = (np.array(x, "float32") for x in preprocessing.per_channel(images.shape[-1]))
    own = np.asarray(PatchPixels(layer.patch_size, False)((images - mean) / std))
    if layer.is_normalized:
        variance = own.var(-1, ddof=1, keepdims=True)
        found = found * np.sqrt(variance + EPSILON) + own.mean(-1, keepdims=True)

    def as_images(patches: np.ndarray) -> np.ndarray:
        x = patches.reshape(-1, rows, columns, height, width, images.shape[-1])
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape)

    hidden = as_images(np.broadcast_to(mask[..., None], own.shape))
    guessed = as_images(np.where(mask[..., None], found, own)) * std + mean
    sheet = np.concatenate([images, np.where(hidden, _GREY, images), guessed], axis=2)
    return np.clip(sheet.reshape(-1, *sheet.shape[2:]) + 0.5, 0, 255).astype("uint8")
