"""Detection in real time: a light decoder on a Vision Transformer whose blocks attend in windows.

RF-DETR (https://arxiv.org/abs/2511.09554), after LW-DETR (https://arxiv.org/abs/2406.03459).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.costs import Cost
from keras_vit.layers.deformable import DeformableSampling, refine_boxes
from keras_vit.layers.float32 import Float32Policy, float32_dense, float32_norm
from keras_vit.layers.group_queries import GroupAttention, ObjectProposals, box_layers, class_layer
from keras_vit.layers.layer import Tensor
from keras_vit.layers.queries import MaskLogits
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.attention import geometry_of
from keras_vit.models.graph import calls_of, single_input
from keras_vit.models.group_prediction import GROUP_DEFAULTS, sum_of_group_losses
from keras_vit.models.pyramid import conv, exact_gelu
from keras_vit.models.set_prediction import DetectionTransformer
from keras_vit.runtime.model import Model

_LAST = "channels_last"  # whatever `keras.config.image_data_format()` is
_EPSILON = 1e-6  # of norms of the projector and of masks
_DECODER_EPSILON = 1e-5  # PyTorch's default
_ACTIVATIONS: dict[str, Any] = {"relu": "relu", "silu": "silu", "gelu": exact_gelu}


@keras.saving.register_keras_serializable("keras_vit")
class RealTimeDetector(DetectionTransformer):
    """A `keras_vit.Model` from images to a set of boxes, and masks, whose classes are independent.

    Its outputs are a dict of float32 `"logits"` of shape `(B, N, K)`, `"pred_boxes"` of shape
    `(B, N, 4)`: centre, width and height as shares of the image, and with masks `"pred_masks"` of
    shape `(B, N, rows, columns)`, logits.

    `model(images, training=True)` gives the same dict for the loss, of all predictions: those of
    each decoder layer, the first one first, then those of the proposals, joined along the axis of
    queries. Of each there are all groups of queries, `groups * N`. `model.all_predictions(images,
    training=False)` gives them of the first group alone, `(layers + 1) * N`: for a validation loss.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.output["logits"].shape[-1])

    num_named = num_classes

    @functools.cached_property  # which Keras does not track, or save
    def all_predictions(self) -> keras.Model:
        """The model of all predictions that the loss takes, of the same layers."""
        return _with_all_predictions(self)

    def loss_of(self, outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        """The sum of the losses of all predictions: see `sum_of_group_losses`."""
        proposals = self.get_layer("proposals")
        queries, groups = proposals.num_queries, proposals.num_groups
        weights = self.stated(GROUP_DEFAULTS)
        return sum_of_group_losses(outputs, targets, weights, queries, groups)

    def clearest_images(self, images: np.ndarray, count: int) -> np.ndarray:
        """Indices of images in which the scores of the proposals are furthest apart.

        Rounding decides which of two equal proposals comes first, and each place has features of
        its own: a file computes something else from the other order, without any fault.
        """
        queries = self.output["logits"].shape[1]
        gaps = []
        for image in images:
            logits = self.all_predictions(image[None], training=False)["logits"][:, -queries:]
            scores = ops.convert_to_numpy(ops.max(logits, axis=-1))  # the best first
            gaps.append(np.diff(-scores).min())
        return np.sort(np.argsort(gaps)[-count:])

    def compile(self, *args: Any, **kwargs: Any) -> None:
        _ = self.all_predictions  # made outside of any graph of TensorFlow
        super().compile(*args, **kwargs)

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        if training:
            self.check_inputs(inputs)
            return self.all_predictions(self.select_inputs(inputs), training=True)
        return super().call(inputs, training=training, mask=mask, **kwargs)


def build_real_time_detector(
    backbone: Model,
    stages: Sequence[int],
    global_blocks: Sequence[int],
    num_windows: int,
    classes: int,
    options: SimpleNamespace,
    norm: bool = True,
) -> RealTimeDetector:
    """Builds the detector on a Vision Transformer, whose weights it shares.

    Args:
        backbone: The Vision Transformer, for images of one size.
        stages: Numbers of blocks, from 1, after which feature maps are read; 0 is before the first.
        global_blocks: Indices of the blocks whose tokens attend across windows.
        num_windows: Windows along each axis. Each has a class token of its own.
        classes: Number of classes `K`.
        options: Sizes of the rest, by the keys of `config.json` of transformers;
            `mask_downsample_ratio` is `None` without masks.
        norm: Whether the last norm of the backbone is applied to each map.

    Raises:
        ValueError: If images are not square, or not a whole number of windows.
    """
    maps = project(window_maps(backbone, stages, global_blocks, num_windows, norm), options)
    proposals = ObjectProposals(options.num_queries, options.group_detr, classes, name="proposals")
    x, positions, boxes, *_ = proposals(maps)
    for index in range(options.decoder_layers):
        x = decoder_layer(x, positions, boxes, maps, options, f"decoder_{index}")
    layers = {layer.name: layer for layer in _heads(classes, options)}
    if options.mask_downsample_ratio:
        side = backbone.inputs[0].shape[1] // options.mask_downsample_ratio
        maps = ResizeMaps(side, dtype=Float32Policy(), name="mask_resize")(maps)
        for index in range(options.decoder_layers):
            maps = _mask_block(maps, options, f"mask_block_{index}")
    outputs = _predict(layers, x, boxes, maps)
    model = RealTimeDetector(single_input(backbone), outputs, name=backbone.name)
    for index in range(options.decoder_layers):
        model.get_layer(f"decoder_{index}_offsets").bias.assign(_directions(options))
    return model


def _directions(options: SimpleNamespace) -> np.ndarray:
    """Offsets at the start: each head reads in a direction of its own, as in Deformable DETR."""
    heads = options.decoder_cross_attention_heads
    angles = np.arange(heads) * 2 * np.pi / heads
    steps = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    steps /= np.abs(steps).max(axis=-1, keepdims=True)
    return (steps[:, None] * np.arange(1, options.decoder_n_points + 1)[:, None]).reshape(-1)


def window_maps(
    backbone: Model,
    stages: Sequence[int],
    global_blocks: Sequence[int],
    num_windows: int,
    norm: bool,
) -> Tensor:
    """Feature maps `(B, rows, columns, D)` of several blocks, one after the other in channels.

    Windows are images of their own in all blocks but the global ones, where they are one sequence.
    """
    geometry, calls = geometry_of(backbone), calls_of(backbone)
    layers = {layer.name: layer for layer in backbone.layers}
    side, rest = divmod(geometry.grid[0], num_windows)
    if rest or geometry.grid[0] != geometry.grid[1]:
        patch = geometry.image_size[0] // geometry.grid[0]
        raise ValueError(
            "RF-DETR takes square images of a whole number of windows. Received: "
            f"{geometry.image_size[0]} x {geometry.image_size[1]} pixels, patches of {patch}, "
            f"{num_windows} windows along each axis. Pass input_shape=(side, side, 3) with a "
            f"multiple of {num_windows * patch}."
        )
    x = calls[layers["block_0"]].input_tensors[0]  # (B, 1 + N, D)
    width, count = x.shape[-1], num_windows**2
    grid = (-1, num_windows, side, num_windows, side, width)
    patches = ops.transpose(ops.reshape(x[:, 1:], grid), (0, 1, 3, 2, 4, 5))
    patches = ops.reshape(patches, (-1, count, side**2, width))
    token = ops.repeat(x[:, None, :1], count, axis=1)  # (B, windows, 1, D)
    x = ops.reshape(ops.concatenate([token, patches], axis=2), (-1, 1 + side**2, width))
    maps = []
    for index in range(max(stages) + 1):
        if index in stages:
            y = layers["encoder_norm"](x) if norm else x
            y = ops.reshape(y[:, 1:], (-1, num_windows, num_windows, side, side, width))
            y = ops.transpose(y, (0, 1, 3, 2, 4, 5))
            maps.append(ops.reshape(y, (-1, *geometry.grid, width)))
        if index == max(stages):
            break
        if index in global_blocks:
            x = ops.reshape(x, (-1, count * (1 + side**2), width))
        x = ops.reshape(layers[f"block_{index}"](x), (-1, 1 + side**2, width))
    return ops.concatenate(maps, axis=-1) if len(maps) > 1 else maps[0]


def project(x: Tensor, options: SimpleNamespace) -> Tensor:
    """The projector: convolutions whose outputs are joined, as in C2f of YOLOv8."""
    hidden = int(options.d_model * options.hidden_expansion)

    def convolve(x: Tensor, channels: int, kernel: int, name: str) -> Tensor:
        norm = keras.layers.LayerNormalization(epsilon=options.layer_norm_eps, name=f"{name}_norm")
        function = _ACTIVATIONS[options.activation_function]
        x = norm(conv(channels, kernel, name, use_bias=False)(x))
        return keras.layers.Activation(function, name=f"{name}_activation")(x)

    x = convolve(x, 2 * hidden, 1, "projector_cv1")
    parts = [x[..., :hidden], x[..., hidden:]]
    for index in range(options.c2f_num_blocks):
        x = convolve(parts[-1], hidden, 3, f"projector_m_{index}_cv1")
        parts.append(convolve(x, hidden, 3, f"projector_m_{index}_cv2"))
    x = convolve(ops.concatenate(parts, axis=-1), options.d_model, 1, "projector_cv2")
    return float32_norm("projector_norm", _EPSILON)(x)


def decoder_layer(
    x: Tensor, positions: Tensor, boxes: Tensor, maps: Tensor, options: SimpleNamespace, name: str
) -> Tensor:
    """A layer of the decoder, from queries `(B, M, D)` to the same: norms follow each sum."""

    def dense(units: int, part: str, activation: Any = None, **more: Any) -> keras.layers.Layer:
        return float32_dense(units, f"{name}_{part}", activation, **more)

    def drop(x: Tensor, part: str) -> Tensor:
        return keras.layers.Dropout(options.dropout, name=f"{name}_{part}_dropout")(x)

    def add(x: Tensor, y: Tensor, part: str) -> Tensor:
        return float32_norm(f"{name}_{part}", _DECODER_EPSILON)(x + drop(y, part))

    width, heads, own_heads, points = (
        options.d_model, options.decoder_cross_attention_heads,
        options.decoder_self_attention_heads, options.decoder_n_points,
    )  # fmt: skip
    attention = GroupAttention(3 * width, own_heads, options.num_queries, name=f"{name}_attention")
    x = add(x, dense(width, "attention_output")(attention(x, positions)), "norm1")
    y = DeformableSampling(heads, points, name=f"{name}_sampling")(
        dense(width, "values")(maps),
        boxes,
        dense(2 * heads * points, "offsets", kernel_initializer="zeros")(x + positions),
        dense(heads * points, "weights", kernel_initializer="zeros")(x + positions),
    )
    x = add(x, dense(width, "output")(y), "norm2")
    function = _ACTIVATIONS[options.decoder_activation_function]
    y = drop(dense(options.decoder_ffn_dim, "linear1", function)(x), "linear1")
    return add(x, dense(width, "linear2")(y), "norm3")


def _heads(classes: int, options: SimpleNamespace) -> list[keras.Layer]:
    """Layers of classes, boxes and masks, which all decoder layers share."""
    layers = [
        float32_norm("decoder_norm", _DECODER_EPSILON), class_layer(classes, "class_head"),
        *box_layers(options.d_model, "box"),
    ]  # fmt: skip
    if options.mask_downsample_ratio:
        layers += [
            conv(options.d_model, 1, "mask_projection", dtype=Float32Policy()),
            QueryMasks(
                options.intermediate_size, options.segmentation_head_activation_function,
                name="masks",
            ),
        ]  # fmt: skip
    return layers


def _mask_block(maps: Tensor, options: SimpleNamespace, name: str) -> Tensor:
    """Adds what a depthwise convolution and a layer of its norm give."""
    exact = {"dtype": Float32Policy()}
    x = keras.layers.DepthwiseConv2D(
        3, padding="same", data_format=_LAST, name=f"{name}_dwconv", **exact
    )(maps)
    function = _ACTIVATIONS[options.segmentation_head_activation_function]
    dense = float32_dense(options.d_model, f"{name}_pwconv1", function)
    x = dense(float32_norm(f"{name}_norm", _EPSILON)(x))
    return keras.layers.Add(name=name, **exact)([maps, x])


@keras.saving.register_keras_serializable("keras_vit")
class QueryMasks(MaskLogits):
    """Masks of queries that an MLP changes before: see `MaskLogits`. It computes in float32.

    Args:
        mask_dim: Hidden dimension of the MLP.
        activation: Its activation: `"relu"`, `"silu"` or `"gelu"`.
    """

    def __init__(self, mask_dim: int, activation: str = "gelu", **kwargs: Any):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        self.mask_dim = mask_dim
        self.activation = activation

    def build(self, queries_shape: Shape, maps_shape: Shape) -> None:
        super().build(queries_shape, maps_shape)
        width, function = queries_shape[-1], _ACTIVATIONS[self.activation]
        hidden, last = ".query_features_block.layers.0", ".query_features_block.layers.2"
        # By their names in files of transformers.
        self.parts = {
            ".bias": self.add_weight((1,), "zeros", name="bias"),
            ".query_features_block.norm_in": float32_norm("norm", _DECODER_EPSILON),
            hidden: float32_dense(self.mask_dim, "mlp_0", function),
            last: float32_dense(width, "mlp_2"),
            ".query_features_proj": float32_dense(width, "projection"),
        }
        for name, part in self.parts.items():
            if name != ".bias":
                part.build((None, self.mask_dim if name == last else width))

    def call(self, queries: Tensor, maps: Tensor) -> Tensor:
        bias, *mlp, projection = self.parts.values()
        x = queries
        for layer in mlp:
            x = layer(x)
        return super().call(projection(queries + x), maps) + bias

    def count_costs(self, queries_shape: Shape, maps_shape: Shape) -> Cost:
        """Cost for one image."""
        size, width = math.prod(queries_shape[1:]), queries_shape[-1]
        macs = size * (2 * self.mask_dim + width)
        return super().count_costs(queries_shape, maps_shape) + Cost(macs, 6 * size)


def _predict(
    layers: dict[str, keras.Layer], x: Tensor, boxes: Tensor, maps: Tensor
) -> dict[str, Tensor]:
    """Classes, boxes and masks of queries after a decoder layer."""
    x = changes = layers["decoder_norm"](x)
    for step in range(3):
        changes = layers[f"box_{step}"](changes)
    outputs = {"logits": layers["class_head"](x), "pred_boxes": refine_boxes(boxes, changes)}
    if "masks" in layers:
        outputs["pred_masks"] = layers["masks"](x, layers["mask_projection"](maps))
    return outputs


def _with_all_predictions(model: RealTimeDetector) -> keras.Model:
    """The predictions of all decoder layers and of the proposals, along the axis of queries."""
    layers, calls = {layer.name: layer for layer in model.layers}, calls_of(model)

    def output(name: str) -> Tensor:
        return calls[layers[name]].outputs[0] if name in layers else None

    _, _, boxes, features, logits, proposed = calls[layers["proposals"]].outputs
    found = [
        _predict(layers, output(f"decoder_{i}_norm3"), boxes, output(f"mask_block_{i}"))
        for i in range(sum(name.endswith("_norm3") for name in layers))
    ]
    found.append({"logits": logits, "pred_boxes": proposed})
    if "masks" in layers:
        found[-1]["pred_masks"] = layers["masks"](features, output("mask_resize"))
    outputs = {name: ops.concatenate([each[name] for each in found], 1) for name in found[0]}
    return keras.Model(single_input(model), outputs, name=f"{model.name}_all")
