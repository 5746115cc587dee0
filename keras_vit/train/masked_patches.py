"""Masked patch prediction: self-supervised pre-training on images without labels."""

from __future__ import annotations

import math

import keras

from keras_vit.checks import check_choice
from keras_vit.config import COLOR_LEVELS, PATCH_TARGETS, ViTConfig
from keras_vit.layers.float32 import Float32Policy, float32_dense
from keras_vit.layers.patches import PatchMask
from keras_vit.models.feature_extraction import token_stage
from keras_vit.runtime.model import Model

_PRETRAIN_WITHOUT = "Pre-train it with 0; the weights are the same"
# Fields that must be off, what is needed in their place, and what to do.
_EXCLUDED = (
    ("num_merged_tokens", "one token per patch", _PRETRAIN_WITHOUT),
    ("max_num_patches", "images of one size", "Build or load it with max_num_patches=None"),
    ("patch_dropout_rate", "every patch", _PRETRAIN_WITHOUT),
    (
        "any_size",
        "images of a known size",
        "Pre-train keras_vit.models.resize_model(model, (height, width)); "
        "resize_model(model, None) makes it one for any size again",
    ),
)


def masked_patch_model(model: Model, target: str = "mean_color") -> Model:
    """Builds a model that predicts masked patches with the layers of a classifier.

    Appendix B.1.2 of https://arxiv.org/abs/2010.11929. The model shares its layers with `model`:
    train it with `fit` on a dataset of `keras_vit.data.mask_patches`, then fine-tune `model`. Only
    the mask token and the head `patch_head` are new.

    Args:
        model: A Vision Transformer or hybrid of this package, with preprocessing included.
        target: As in `keras_vit.data.mask_patches`.

    Returns:
        A functional `keras_vit.Model` from a dict of `images` and `sources` to a float32 tensor.
        For three channels these are logits of shape `(B, N, 512)` for `"mean_color"` and
        `(B, N, 16, 512)` for `"small_patch"`, and values of shape `(B, N, pixels * C)` for
        `"pixels"`.

    Raises:
        ValueError: If `target` is unknown, `model` is not a Vision Transformer with its
            preprocessing included, or it merges or drops tokens.

    Example:
        masked = keras_vit.train.masked_patch_model(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        masked.compile(optimizer="adam", loss=loss, weighted_metrics=["accuracy"])
        masked.fit(keras_vit.data.mask_patches(dataset, patch_size=16), epochs=10)
    """
    check_choice("target", target, PATCH_TARGETS)
    config = getattr(model, "config", None)
    if not isinstance(config, ViTConfig) or not config.include_preprocessing:
        raise ValueError(
            "Masked patch prediction needs a Vision Transformer of this package with "
            f"`include_preprocessing=True`. Received: {model!r}."
        )
    for field, needed, advice in _EXCLUDED:
        value = getattr(config, field)
        if value:
            raise ValueError(
                f"Masked patch prediction needs {needed}. Received: a model with {field}={value}. "
                f"{advice}."
            )
    patches = math.prod(config.grid)
    images = keras.Input(config.input_shape, name="images")
    sources = keras.Input((patches,), dtype="int32", name="sources")
    encoded = model.get_layer("patch_encoder").output
    first = keras.Model(model.inputs[0], encoded, name="patches")
    rest = keras.Model(encoded, model.get_layer(token_stage(model)).output, name="blocks")
    x = PatchMask(name="patch_mask")(first(images), sources)  # (B, N, D)
    x = rest(x)[:, config.num_prefix_tokens :]
    (height, width), channels = config.image_size, config.channels
    colors = COLOR_LEVELS**channels
    shape: tuple[int, ...] = {
        "mean_color": (patches, colors),
        "small_patch": (patches, 16, colors),
        "pixels": (patches, height * width // patches * channels),
    }[target]
    units = math.prod(shape[1:])
    x = float32_dense(units, "patch_head", kernel_initializer="lecun_normal")(x)
    if len(shape) > 2:
        x = keras.layers.Reshape(shape, dtype=Float32Policy(), name="patch_colors")(x)
    return Model({"images": images, "sources": sources}, x, name=f"{model.name}_masked")
