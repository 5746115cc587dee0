"""Semantic segmentation: heads that give logits for every pixel from feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.checks import check_choice, check_positive, check_rate
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Tensor
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.graph import single_input, walk_layers
from keras_vit.models.pyramid import (
    EVENLY,
    PyramidModel,
    check_includes_preprocessing,
    exact_gelu,
    feature_maps,
)
from keras_vit.runtime.model import Model

HEADS = ("linear", "mlp", "dpt")
_LAST = "channels_last"  # whatever `keras.config.image_data_format()` is
_NORM = {"momentum": 0.9, "epsilon": 1e-5}  # PyTorch's, as in the heads' projects
_DPT_FACTORS = (4, 2, 1, 0.5)  # sizes of the maps, as multiples of the grid of patches


def build_segmenter(
    backbone: keras.Model,
    classes: int,
    head: str = "linear",
    blocks: int | str | Sequence[int | str] | None = None,
    channels: int = 256,
    dropout_rate: float = 0.1,
    name: str | None = None,
) -> Model:
    """Builds a model from images to logits for every pixel.

    It shares the weights of the backbone. Set `backbone.trainable = False` before to train the
    head on frozen features.

    - `"linear"`: batch norm and a 1 x 1 convolution, as DINOv2 and DINOv3 evaluate features
      (https://arxiv.org/abs/2304.07193). Several blocks are concatenated.
    - `"mlp"`: the all-MLP decoder of SegFormer (https://arxiv.org/abs/2105.15203): every map to
      `channels`, resized to the finest map, concatenated and fused. Of a `PyramidModel` it reads
      all levels.
    - `"dpt"`: the dense prediction Transformer (https://arxiv.org/abs/2103.13413): four maps,
      joined with the class token where there is one, resampled to 4, 2, 1 and 1/2 times the grid,
      and fused from coarse to fine, with batch norm in the residual units.

    Args:
        backbone: A Vision Transformer, a hybrid, a BiT ResNet, or a model of `build_pyramid`.
        classes: Number of classes `K`.
        head: `"linear"`, `"mlp"` or `"dpt"`.
        blocks: As for `feature_maps`; `None` takes the last for `"linear"`, `"even"` otherwise.
        channels: Channels of the `"mlp"` and `"dpt"` heads.
        dropout_rate: Before the last convolution, in [0, 1).
        name: Name of the model.

    Returns:
        A `keras_vit.Model` to float32 logits of shape `(B, H, W, K)`.

    Raises:
        ValueError: If an argument is out of its range, or the backbone has other maps than the head
            needs, or no preprocessing.

    Example:

    >>> backbone = keras_vit.ViTTi16(weights=None, include_top=False, input_shape=(128, 192, 3))
    >>> model = keras_vit.segmentation.build_segmenter(backbone, classes=21, head="mlp")
    >>> model.output_shape
    (None, 128, 192, 21)
    >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(
    ...     from_logits=True, ignore_class=255))
    """
    check_positive("classes", classes)
    check_positive("channels", channels)
    check_choice("head", head, HEADS)
    check_rate("dropout_rate", dropout_rate)
    check_includes_preprocessing(backbone)
    inputs = single_input(backbone)
    size = backbone.inputs[0].shape[1:3]
    if isinstance(backbone, PyramidModel):
        if blocks is not None or head != "mlp":
            raise ValueError(
                'A pyramid has levels, all of which the "mlp" head reads. Received: '
                f"head={head!r}, blocks={blocks!r}. Build the other heads on the backbone itself."
            )
        maps = backbone.pyramid_outputs
    else:
        chosen = blocks or (1 if head == "linear" else EVENLY)
        has_class = any(layer.name == "class_token" for _, layer in walk_layers(backbone))
        found = feature_maps(backbone, chosen, prefix_tokens=head == "dpt" and has_class).output
        tokens = {name: found.pop(name)[:, 0] for name in list(found) if name.endswith("_prefix")}
        maps = found
    if None in size:
        raise ValueError(
            f"Segmentation needs images of a known size. Received: {backbone.name!r} with inputs "
            f"of shape {backbone.inputs[0].shape}. Build it on the same backbone of one size: "
            "keras_vit.models.resize_model(model, (height, width))."
        )
    if head == "dpt":
        x = _fuse_dpt(list(maps.values()), list(tokens.values()), channels)
    else:
        x = _join(maps, None if head == "linear" else channels)
    if head == "linear":
        x = keras.layers.Dropout(dropout_rate, name="segmentation_dropout")(x)
        x = keras.layers.BatchNormalization(**_NORM, name="segmentation_norm")(x)
    else:
        kernel = 3 if head == "dpt" else 1
        x = _conv(channels, kernel, "segmentation_fuse", use_bias=False)(x)
        x = keras.layers.BatchNormalization(**_NORM, name="segmentation_norm")(x)
        x = keras.layers.ReLU(name="segmentation_relu")(x)
        x = keras.layers.Dropout(dropout_rate, name="segmentation_dropout")(x)
    x = _conv(classes, 1, "segmentation_head", dtype=Float32Policy())(x)
    x = ResizeMaps(size, dtype=Float32Policy(), name="logits")(x)  # (B, H, W, K)
    return Model(inputs, x, name=name or f"{backbone.name}_segmenter")


def _conv(filters: int, kernel: int, name: str, **options: Any) -> keras.layers.Conv2D:
    options = {"padding": "same", "data_format": _LAST, **options}
    return keras.layers.Conv2D(filters, kernel, name=name, **options)


def _join(maps: dict[str, Tensor], channels: int | None) -> Tensor:
    """Concatenates maps at the size of the finest, each projected to `channels` if given."""
    finest = tuple(max(x.shape[axis] for x in maps.values()) for axis in (1, 2))
    parts = []
    for name, x in maps.items():
        if channels is not None:
            x = _conv(channels, 1, f"segmentation_{name}")(x)
        if tuple(x.shape[1:3]) != finest:
            x = ResizeMaps(finest, name=f"segmentation_{name}_resize")(x)
        parts.append(x)
    if len(parts) == 1:
        return parts[0]
    return keras.layers.Concatenate(name="segmentation_maps")(parts)


def _fuse_dpt(maps: list[Tensor], tokens: list[Tensor], channels: int) -> Tensor:
    """Reassembles four maps at four sizes, and fuses them from coarse to fine."""
    if len(maps) != len(_DPT_FACTORS):
        raise ValueError(f'The "dpt" head reads four blocks. Received: {len(maps)}.')
    if len({tuple(x.shape[1:]) for x in maps}) != 1:
        raise ValueError(
            'The "dpt" head reads maps of one size, those of Transformer blocks. Received: '
            f'{[tuple(x.shape[1:]) for x in maps]}. Choose head="mlp" for stages of a ResNet.'
        )
    levels = [
        _reassemble(x, tokens[index] if tokens else None, index, channels)
        for index, x in enumerate(maps)
    ]
    fused = None
    for index in reversed(range(len(levels))):
        x = levels[index]
        if fused is not None:
            skip = _residual(x, f"dpt_skip_{index}")
            x = keras.layers.Add(name=f"dpt_add_{index}")([fused, skip])
        x = _residual(x, f"dpt_fuse_{index}")
        size = levels[index - 1].shape[1:3] if index else (2 * x.shape[1], 2 * x.shape[2])
        x = ResizeMaps(tuple(size), "align_corners", name=f"dpt_up_{index}")(x)
        fused = _conv(channels, 1, f"dpt_project_{index}")(x)
    return fused


def _reassemble(x: Tensor, token: Tensor | None, index: int, channels: int) -> Tensor:
    """Joins the class token to a map, and resamples it; sections 3 and A of the paper."""
    name, width, factor = f"dpt_{index}", x.shape[-1], _DPT_FACTORS[index]
    if token is not None:
        rows, columns = x.shape[1:3]
        token = keras.layers.RepeatVector(rows * columns, name=f"{name}_token")(token)
        token = keras.layers.Reshape((rows, columns, width), name=f"{name}_token_map")(token)
        x = keras.layers.Concatenate(name=f"{name}_join")([x, token])  # (B, rows, columns, 2 D)
        x = keras.layers.Dense(width, activation=exact_gelu, name=f"{name}_readout")(x)
    x = _conv(channels * 2 ** min(index, 2) // 4 or 1, 1, f"{name}_reduce")(x)
    if factor > 1:
        stride = int(factor)
        resample = keras.layers.Conv2DTranspose(
            x.shape[-1], stride, stride, data_format=_LAST, name=f"{name}_resample"
        )
        x = resample(x)
    elif factor < 1:
        # As PyTorch pads.
        x = keras.layers.ZeroPadding2D(1, data_format=_LAST, name=f"{name}_pad")(x)
        x = _conv(x.shape[-1], 3, f"{name}_resample", strides=2, padding="valid")(x)
    return _conv(channels, 3, f"{name}_project", use_bias=False)(x)


def _residual(x: Tensor, name: str) -> Tensor:
    """A residual convolution unit of RefineNet (https://arxiv.org/abs/1611.06612).

    With batch norm, as the authors' models for segmentation (isl-org/DPT, `DPTSegmentationModel`).
    """
    y = x
    for step in (1, 2):
        y = keras.layers.ReLU(name=f"{name}_relu_{step}")(y)
        y = _conv(x.shape[-1], 3, f"{name}_conv_{step}", use_bias=False)(y)
        y = keras.layers.BatchNormalization(**_NORM, name=f"{name}_norm_{step}")(y)
    return keras.layers.Add(name=f"{name}_add")([x, y])
