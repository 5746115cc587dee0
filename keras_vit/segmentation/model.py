"""Semantic segmentation: heads that give logits for every pixel from feature maps."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from keras_vit.checks import check_choice, check_positive, check_rate
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Tensor
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.dpt import NORM, DptHead, fuse_dpt
from keras_vit.models.graph import single_input, walk_layers
from keras_vit.models.pyramid import (
    EVENLY,
    PyramidModel,
    check_includes_preprocessing,
    conv,
    feature_maps,
)
from keras_vit.runtime.model import Model

HEADS = ("linear", "mlp", "dpt")


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
        x = fuse_dpt(list(maps.values()), list(tokens.values()), DptHead(channels))
    else:
        x = _join(maps, None if head == "linear" else channels)
    if head == "linear":
        x = keras.layers.Dropout(dropout_rate, name="segmentation_dropout")(x)
        x = keras.layers.BatchNormalization(**NORM, name="segmentation_norm")(x)
    else:
        kernel = 3 if head == "dpt" else 1
        x = conv(channels, kernel, "segmentation_fuse", use_bias=False)(x)
        x = keras.layers.BatchNormalization(**NORM, name="segmentation_norm")(x)
        x = keras.layers.ReLU(name="segmentation_relu")(x)
        x = keras.layers.Dropout(dropout_rate, name="segmentation_dropout")(x)
    x = conv(classes, 1, "segmentation_head", dtype=Float32Policy())(x)
    x = ResizeMaps(size, dtype=Float32Policy(), name="logits")(x)  # (B, H, W, K)
    return Model(inputs, x, name=name or f"{backbone.name}_segmenter")


def _join(maps: dict[str, Tensor], channels: int | None) -> Tensor:
    """Concatenates maps at the size of the finest, each projected to `channels` if given."""
    finest = tuple(max(x.shape[axis] for x in maps.values()) for axis in (1, 2))
    parts = []
    for name, x in maps.items():
        if channels is not None:
            x = conv(channels, 1, f"segmentation_{name}")(x)
        if tuple(x.shape[1:3]) != finest:
            x = ResizeMaps(finest, name=f"segmentation_{name}_resize")(x)
        parts.append(x)
    if len(parts) == 1:
        return parts[0]
    return keras.layers.Concatenate(name="segmentation_maps")(parts)
