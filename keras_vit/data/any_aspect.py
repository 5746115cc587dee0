"""Images of any aspect ratio as a fixed number of patches: the preprocessing of SigLIP 2 NaFlex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_vit.data.pillow import resample
from keras_vit.data.transforms import normalize, resize

if TYPE_CHECKING:
    import keras

    from keras_vit.config import ViTConfig

# The search of transformers and big_vision halves (1e-6, 100) until it is narrower than 1e-5.
_FIRST, _LAST, _HALVINGS = 1e-6, 100.0, 24


def fit_patches(image: Any, model: keras.Model | ViTConfig) -> dict[str, Any]:
    """Resizes an image to as many patches as fit, keeping its aspect ratio, and pads them.

    Each side becomes a whole number of patches, rounded up from the largest scale at which there
    are at most `max_num_patches`. Sizes are those of transformers and big_vision, pixels those of
    `preprocessing.library`: of transformers' processor on Pillow images in published checkpoints.

    Args:
        image: Tensor of shape `(h, w, C)`, any type, values in [0, 255].
        model: A model with `config.max_num_patches`, or its configuration.

    Returns:
        Inputs of the model for one image: `patches`, float32 of shape `(max_num_patches, pixels of
        a patch * C)`, row by row and then zeros, in [0, 255] where the model normalises them; and
        `grid`, int32 of shape `(2,)`, rows and columns of patches.

    Raises:
        ValueError: If the model takes images of one size.

    Example:

    >>> model = keras_vit.create_model("siglip2_naflex_b16", include_top=False)  # doctest: +SKIP
    >>> images.map(lambda image: keras_vit.data.fit_patches(image, model))  # doctest: +SKIP
    """
    config: Any = getattr(model, "config", model)
    if getattr(config, "max_num_patches", None) is None:
        raise ValueError(
            "The model takes images of one size (max_num_patches=None). Use "
            "`keras_vit.data.eval_batches`, or build it with max_num_patches=256."
        )
    image = tf.convert_to_tensor(image)
    limit, patch = config.max_num_patches, config.patch_size
    grid = _fitting_grid(tf.shape(image)[:2], patch, limit)
    size = grid * patch
    if config.preprocessing.library == "tensorflow":
        pixels = resize(image, size, config.preprocessing.interpolation)
    else:
        pixels = resample(image, size, (0, 0), size, config.preprocessing.interpolation)
    if not config.include_preprocessing:
        pixels = normalize(pixels, config.preprocessing)
    width = patch[0] * patch[1] * config.channels
    x = tf.reshape(pixels, (grid[0], patch[0], grid[1], patch[1], config.channels))
    x = tf.reshape(tf.transpose(x, (0, 2, 1, 3, 4)), (-1, width))  # (patches, pixels)
    x = tf.pad(x, [[0, limit - tf.shape(x)[0]], [0, 0]])
    return {"patches": tf.ensure_shape(x, (limit, width)), "grid": tf.ensure_shape(grid, (2,))}


def _fitting_grid(own: Any, patch_size: tuple[int, int], limit: int) -> Any:
    """Rows and columns of patches of an image of `own` pixels, at the largest scale that fits."""
    patch = tf.constant(patch_size, tf.float64)
    sides = tf.cast(own, tf.float64)

    def grid_at(scale: Any) -> Any:
        return tf.maximum(tf.math.ceil(sides * scale / patch), 1.0)

    def halve(step: Any, least: Any, most: Any) -> tuple[Any, Any, Any]:
        scale = (least + most) / 2
        fits = tf.reduce_prod(grid_at(scale)) <= limit
        return step + 1, tf.where(fits, scale, least), tf.where(fits, most, scale)

    ends = (tf.constant(_FIRST, tf.float64), tf.constant(_LAST, tf.float64))
    _, scale, _ = tf.while_loop(lambda step, *_: step < _HALVINGS, halve, (0, *ends))
    return tf.cast(grid_at(scale), tf.int32)
