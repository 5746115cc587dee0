"""Feature maps of a backbone for dense prediction, at one scale or as a pyramid of four."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.checks import check_positive
from keras_vit.layers.any_size import TokensToMaps
from keras_vit.layers.layer import Tensor
from keras_vit.layers.mlp import gelu
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.residual import ResNetStage
from keras_vit.layers.tokens import ClassToken
from keras_vit.models.attention import check_whole, geometry_of
from keras_vit.models.feature_extraction import as_grid, features_of, find_output
from keras_vit.models.graph import (
    Chain,
    calls_of,
    find_blocks,
    in_one_graph,
    single_input,
    token_norm,
    walk_layers,
)
from keras_vit.runtime.model import Model, find_preprocessing

EVENLY = "even"
_LAST = "channels_last"  # whatever `keras.config.image_data_format()` is
_EPSILON = 1e-6  # of the norms of the pyramid, as in Detectron2


def feature_maps(
    model: keras.Model,
    blocks: int | str | Sequence[int | str] = 1,
    norm: bool = True,
    prefix_tokens: bool = False,
) -> Model:
    """Builds a model from the same images to feature maps of chosen blocks, in one pass.

    It shares layers and weights with `model`, and can be trained, saved and exported.

    Args:
        model: A Vision Transformer, a hybrid or a BiT ResNet, or a model built on one.
        blocks: A number takes the last so many blocks, `"even"` four at even intervals, of which
            the last is the last block. Otherwise indices of blocks (negative ones count from the
            last) and names, such as `"stem_stage_2"` of a hybrid. The blocks of a ResNet are its
            stages.
        norm: Whether the model's last norm is applied to each map, as DINOv2 does. Maps stay as
            they are where the norm follows the pooling, as in timm; of a ResNet, the norm and the
            ReLU are applied to the last stage only.
        prefix_tokens: Whether to give the tokens before the patches too, under the name of the
            block and `_prefix`.

    Returns:
        A `keras_vit.Model` to a dict by names of blocks, from first to last as asked for: maps of
        shape `(B, rows, columns, D)`, prefix tokens of shape `(B, P, D)`.

    Raises:
        ValueError: If there is no such block, if tokens are merged or left out, or if there are no
            prefix tokens.

    Example:

    >>> backbone = keras_vit.ViTTi16(weights=None, include_top=False, input_shape=(224, 320, 3))
    >>> maps = keras_vit.models.feature_maps(backbone, "even")
    >>> {name: tuple(x.shape) for name, x in maps.output.items()}["block_11"]
    (None, 14, 20, 192)
    """
    stages = [x for _, x in walk_layers(model) if isinstance(x, ResNetStage)]
    if stages and not any(stage.name.startswith("stem_") for stage in stages):
        names = choose_blocks(model.name, [stage.name for stage in stages], blocks)
        return _maps_of_resnet(model, names, stages[-1].name, norm)
    chain, layers = find_blocks(model)
    check_whole(model, layers)
    _check_dropout(model)
    names = choose_blocks(model.name, [layer.name for layer in layers], blocks)
    last_norm = token_norm(chain[-1]) if norm else None
    calls = calls_of(chain[-1])
    to_maps, prefix = _mapping(model, chain[-1])
    if prefix_tokens and not prefix:
        raise ValueError(
            f"The model {model.name!r} has no tokens before its patches. Leave prefix_tokens=False."
        )
    wanted: dict[str, tuple[Chain, Any]] = {}
    blocks_by_name = {layer.name: layer for layer in layers}
    for name in names:
        if name not in blocks_by_name:  # a stage of the stem, or another layer
            wanted[name] = find_output(model, name)
            continue
        x = calls[blocks_by_name[name]].outputs[0]  # (B, T, D)
        x = x if last_norm is None else last_norm(x)
        wanted[name] = chain, to_maps(x)
        if prefix_tokens:
            wanted[f"{name}_prefix"] = chain, x[:, :prefix]
    outputs = dict(zip(wanted, in_one_graph(model, list(wanted.values())), strict=True))
    for name in set(names) - blocks_by_name.keys():
        if len(outputs[name].shape) != 4:
            outputs[name] = as_grid(outputs[name], geometry_of(model))
    return Model(single_input(model), outputs, name=f"{model.name}_maps")


def _mapping(model: keras.Model, owner: keras.Model) -> tuple[Callable[[Tensor], Tensor], int]:
    """A function from tokens to feature maps, and the number of tokens before the patches."""
    encoder = next((x for x in owner.layers if isinstance(x, PatchEncoder)), None)
    if encoder is None or not encoder.any_size:
        geometry = geometry_of(model)
        prefix = geometry.num_prefix_tokens
        return lambda x: ops.reshape(x[:, prefix:], (-1, *geometry.grid, x.shape[-1])), prefix
    prefix = sum(x.num_tokens for x in owner.layers if isinstance(x, ClassToken))
    maps = calls_of(owner)[encoder].outputs[0]  # (B, rows, columns, D)
    return lambda x: TokensToMaps(prefix)(x, maps), prefix


def check_includes_preprocessing(backbone: keras.Model) -> None:
    """Raises ValueError if a backbone leaves normalisation to its data.

    Nothing in a model on its tensors would tell `mask_batches` or `box_batches` so.
    """
    if find_preprocessing(backbone)[1] is False:
        raise ValueError(
            f"{backbone.name!r} leaves normalisation to its data (include_preprocessing=False). "
            "Models on it would be trained on pixels in [0, 255]. Build it with True."
        )


def last_map(model: keras.Model) -> tuple[Tensor, int]:
    """Finds the last feature map of a backbone, normalised, and its stride in pixels.

    Raises:
        ValueError: If a map does not have the same stride along both axes.
    """
    maps = feature_maps(model)
    (tensor,) = maps.output.values()
    image, size = maps.inputs[0].shape[1:3], tensor.shape[1:3]
    if None in (*image, *size):
        raise ValueError(
            f"The size of the images of {model.name!r} must be known. Received: input shape "
            f"{tuple(maps.inputs[0].shape)}. Build the model with image_size=(height, width), or "
            "keras_vit.models.resize_model(model, (height, width))."
        )
    strides = {math.ceil(pixels / count) for pixels, count in zip(image, size, strict=True)}
    if len(strides) != 1:
        raise ValueError(
            f"Patches must be squares. Received: maps of {size} for images of {image} pixels."
        )
    return tensor, strides.pop()


@keras.saving.register_keras_serializable("keras_vit")
def exact_gelu(x: Tensor) -> Tensor:
    """GELU as PyTorch's default, in the form that LiteRT and ONNX have one operator for."""
    return gelu(x, "exact")


@keras.saving.register_keras_serializable("keras_vit")
class PyramidModel(Model):
    """A `keras_vit.Model` to a feature pyramid, with the interface of keras-hub's detectors."""

    @property
    def pyramid_outputs(self) -> dict[str, Tensor]:
        """Symbolic maps by level; `"P3"` is an eighth of the image along each axis."""
        return {name: self.output[name] for name in sorted(self.output)}


def build_pyramid(
    backbone: keras.Model, channels: int = 256, levels: Sequence[int] = (2, 3, 4, 5)
) -> PyramidModel:
    """Builds the simple feature pyramid of ViTDet on the last feature map of a backbone.

    https://arxiv.org/abs/2203.16527, section 3: transposed convolutions make the finer maps, max
    pooling the coarser ones, and two convolutions with layer norms follow on every level. Weights
    start as in Keras; those of the backbone are shared.

    Args:
        backbone: A Vision Transformer, or a model built on one; its head is not used.
        channels: Channels of every map.
        levels: Level `n` has a stride of `2**n` pixels.

    Returns:
        A `PyramidModel` to a dict `{"P2": (B, H / 4, W / 4, channels), ...}`. Its
        `pyramid_outputs` is what keras-hub's `RetinaNetBackbone` reads.

    Raises:
        ValueError: If the stride of the backbone is no power of two, the image is no whole number
            of the largest stride, or the backbone has no preprocessing.

    Example:

    >>> backbone = keras_vit.ViTTi16(weights=None, include_top=False, pooling=None)
    >>> pyramid = keras_vit.models.build_pyramid(backbone)
    >>> [tuple(x.shape[1:3]) for x in pyramid.pyramid_outputs.values()]
    [(56, 56), (28, 28), (14, 14), (7, 7)]
    """
    check_positive("channels", channels)
    for level in levels:
        check_positive("levels", level)
    check_includes_preprocessing(backbone)
    x, stride = last_map(backbone)
    height, width = backbone.inputs[0].shape[1:3]
    base = stride.bit_length() - 1
    if 2**base != stride:
        raise ValueError(
            f"The levels of a pyramid have strides of 4, 8, 16, 32, ... pixels. Received: patches "
            f"of {stride} pixels, from which no power of two leads there. Choose a model of patch "
            "size 8, 16 or 32, or load weights with patch_size=16, which resizes their patches."
        )
    largest = 2 ** max(levels)
    if height % largest or width % largest:
        fitting = tuple(-(-side // largest) * largest for side in (height, width))
        raise ValueError(
            f"Images must be whole numbers of the largest stride, {largest} pixels. Received: "
            f"{height} x {width}. Use keras_vit.models.resize_model(model, {fitting}) first."
        )
    outputs = {f"P{level}": _level(x, level, base, channels) for level in sorted(set(levels))}
    return PyramidModel(single_input(backbone), outputs, name=f"{backbone.name}_pyramid")


def conv(filters: int, kernel: int, name: str, **options: Any) -> keras.layers.Conv2D:
    """A convolution of maps `(B, rows, columns, D)`, padded as PyTorch's."""
    options = {"padding": "same", "data_format": _LAST, **options}
    return keras.layers.Conv2D(filters, kernel, name=name, **options)


def up_conv(filters: int, factor: int, name: str, **options: Any) -> keras.layers.Conv2DTranspose:
    """A layer that enlarges maps `(B, rows, columns, D)` by a whole factor."""
    options = {"data_format": _LAST, "name": name, **options}
    return keras.layers.Conv2DTranspose(filters, factor, factor, **options)


def _level(x: Tensor, level: int, base: int, channels: int) -> Tensor:
    name = f"pyramid_{level}"
    for step in range(base - level):  # finer: twice the size, half the channels
        if step:
            x = keras.layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}_up_norm_{step}")(x)
            x = keras.layers.Activation(exact_gelu, name=f"{name}_up_gelu_{step}")(x)
        x = up_conv(x.shape[-1] // 2, 2, f"{name}_up_{step}")(x)
    if level > base:
        size = 2 ** (level - base)
        x = keras.layers.MaxPooling2D(size, data_format=_LAST, name=f"{name}_down")(x)
    for part, kernel in (("project", 1), ("smooth", 3)):
        own = f"{name}_{part}"
        x = conv(channels, kernel, own, use_bias=False)(x)
        x = keras.layers.LayerNormalization(epsilon=_EPSILON, name=f"{own}_norm")(x)
    return x  # (B, rows, columns, channels)


def choose_blocks(
    model_name: str, known: list[str], blocks: int | str | Sequence[int | str]
) -> list[str]:
    """Finds the names of chosen blocks among those of all: see `feature_maps`."""
    depth = len(known)
    chosen: Sequence[int | str]
    if blocks == EVENLY:
        if depth < 4:
            raise ValueError(f'blocks="even" chooses four, and {model_name!r} has {depth} blocks.')
        chosen = [depth * part // 4 - 1 for part in (1, 2, 3, 4)]
    elif isinstance(blocks, str):
        chosen = [blocks]
    elif isinstance(blocks, int):
        if not 1 <= blocks <= depth:
            raise ValueError(
                f"{model_name!r} has {depth} blocks. Received: blocks={blocks}, the last so many "
                "of them. Pass a list for a block by its index."
            )
        chosen = range(depth - blocks, depth)
    else:
        chosen = list(blocks)
    outside = [x for x in chosen if isinstance(x, int) and not -depth <= x < depth]
    if outside or not chosen:
        raise ValueError(
            f"{model_name!r} has the blocks 0 to {depth - 1}. Received: blocks={list(chosen)}."
        )
    return list(dict.fromkeys(x if isinstance(x, str) else known[x] for x in chosen))


def _maps_of_resnet(model: keras.Model, names: list[str], last: str, norm: bool) -> Model:
    """Maps of stages; the last is normalised by the layers `norm` and `relu`."""
    found = features_of(model, ["relu" if norm and name == last else name for name in names])
    outputs = dict(zip(names, found.output.values(), strict=True))
    return Model(single_input(model), outputs, name=f"{model.name}_maps")


def _check_dropout(model: keras.Model) -> None:
    for _, layer in walk_layers(model):
        if layer.name == "patch_dropout" and getattr(layer, "rate", 0):
            raise ValueError(
                f"{model.name!r} leaves patches out in training (patch_dropout_rate="
                f"{layer.rate}), so they make no map. Build it with patch_dropout_rate=0."
            )
