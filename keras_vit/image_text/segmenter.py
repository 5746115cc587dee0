"""Segmentation from the names of classes."""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras import ops

from keras_vit.config import ViTConfig
from keras_vit.image_text.classifier import Templates, class_scores, class_vectors
from keras_vit.image_text.towers import Towers
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.attention import check_whole, geometry_of
from keras_vit.models.graph import calls_of, find_blocks, token_norm
from keras_vit.runtime.model import Model

_POOLINGS = ("token", "gap", "map", "attention")


def zero_shot_segmenter(
    towers: Towers,
    class_names: Sequence[str],
    templates: Templates | None = None,
    last_attention: bool | None = None,
) -> Model:
    """Builds a model of images to logits for every pixel from the names of classes.

    Every patch is compared with the vectors of the classes, as MaskCLIP does
    (https://arxiv.org/abs/2112.01071); no masks are needed. The towers were trained on whole
    images, so how well patches fit depends on the pooling of the image tower:

    - the class token: patches go through what the class token goes through after the last
      attention. In that attention every patch attends to itself alone, so that it stays of its
      place, unless `last_attention` is True.
    - the mean of the patches: the patches themselves, of which the image's vector is the mean.
    - attention, as in SigLIP and AIMv2: the pooling reads one patch at a time.

    Args:
        towers: Towers of `load_towers`, or whose image tower is a model of `build_vit`.
        class_names: Names of two classes or more. What belongs to none of them needs a name too,
            such as "background".
        templates: As in `class_vectors`.
        last_attention: Whether patches attend to each other in the last block; `None` is False for
            towers that pool the class token, and True for others.

    Returns:
        A functional `keras_vit.Model` to float32 logits of shape `(B, H, W, K)`, with
        `class_names`, for `keras_vit.segmentation.predict_masks`, `evaluate_masks` and
        `export_segmenter`. It shares the layers of the image tower.

    Raises:
        ValueError: As in `class_vectors`; or if there is one class, or the image tower has no
            patches, merges them, or pools in another way.

    Example:

    >>> names = ["cat", "dog", "background"]
    >>> model = keras_vit.image_text.zero_shot_segmenter(towers, names)  # doctest: +SKIP
    >>> class_map = keras_vit.segmentation.predict_masks(model, image)  # doctest: +SKIP
    """
    image = towers.image
    config = _check_tower(image)
    if len(class_names) == 1:
        raise ValueError(
            f"Every pixel would be of the one class. Received: class_names={list(class_names)!r}. "
            'Add what else images may show, such as "background".'
        )
    vectors = class_vectors(towers, class_names, templates)
    geometry = geometry_of(image)
    attends = config.pooling != "token" if last_attention is None else last_attention
    x = _patches(image, config, geometry.num_prefix_tokens, attends)  # (B, N, D)
    x = class_scores(x, towers, vectors)  # (B, N, K)
    x = ops.reshape(x, (-1, *geometry.grid, len(vectors)))
    x = ResizeMaps(geometry.image_size, dtype=Float32Policy(), name="logits")(x)  # (B, H, W, K)
    model = Model(image.inputs[0], x, name="zero_shot_segmenter")
    model.class_names = class_names
    return model


def _check_tower(image: keras.Model) -> ViTConfig:
    """The configuration of an image tower whose patches can be read as its pooled vector."""
    config = getattr(image, "config", None)
    if not isinstance(config, ViTConfig):
        raise ValueError(
            "The image tower must be a Vision Transformer of this package, whose patches are "
            f"known. Received: {image.name!r}, with config={config!r:.200}."
        )
    check_whole(image, find_blocks(image)[1])
    others = ("distillation_token", "pre_logits", "patch_dropout_rate")
    found = {name: getattr(config, name) for name in others if getattr(config, name)}
    if config.pooling not in _POOLINGS:
        found["pooling"] = config.pooling
    elif config.pooling in ("map", "attention") and image.get_layer("pooling").num_prefix_tokens:
        found["map_prefix_tokens"] = False
    if found:
        listed = ", ".join(f"{name}={value!r}" for name, value in found.items())
        raise ValueError(
            f"A patch of {image.name!r} cannot be read as the vector of an image. Received: "
            f"{listed}. Load towers that pool by {', '.join(map(repr, _POOLINGS))}, without "
            f"{', '.join(others)}."
        )
    return config


def _patches(image: Model, config: ViTConfig, prefix: int, attends: bool) -> keras.KerasTensor:
    """Patches `(B, N, D)` in the space of the pooled vector, before the projection."""
    calls, block = calls_of(image), find_blocks(image)[1][-1]
    if attends:
        x = calls[block].outputs[0]
    else:
        x = block(calls[block].input_tensors[0], values_only=True)
    if (norm := token_norm(image)) is not None:
        x = norm(x)
    x = x[:, prefix:]
    if config.pooling in ("map", "attention"):
        x = image.get_layer("pooling")(x, values_only=True)
    return image.get_layer("encoder_norm")(x) if config.norm_after_pooling else x
