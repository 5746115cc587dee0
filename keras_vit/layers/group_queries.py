"""Queries of objects in groups: one group predicts, and all of them learn.

Group DETR (https://arxiv.org/abs/2207.13085), in two stages as LW-DETR
(https://arxiv.org/abs/2406.03459): queries start at the best proposals of the feature map.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, check_heads
from keras_vit.layers.attention_kernels import attention_scores, merge_heads, split_heads
from keras_vit.layers.costs import Cost
from keras_vit.layers.deformable import gather_rows, refine_boxes
from keras_vit.layers.float32 import Float32Policy, float32_dense, float32_norm
from keras_vit.layers.layer import Layer, Tensor

_SIDE = 0.05  # of the box at each position of the map, as a share of the image
_EDGES = (0.01, 0.99)  # within which its centre must lie
_EPSILON = 1e-5  # of the norms
# Names in files of transformers.
_QUERIES, _CHANGES = "query_feat.weight", "refpoint_embed.weight"
_POSITION = "transformer.decoder.ref_point_head.layers"
_DENSE, _NORM = "transformer.enc_output", "transformer.enc_output_norm"
_CLASSES, _BOXES = "transformer.enc_out_class_embed", "transformer.enc_out_bbox_embed"
_PRIOR = -math.log(99)  # of classes: a probability of 1% at the start


def class_layer(classes: int, name: str) -> keras.layers.Dense:
    """The layer from a query to logits of classes, each of which starts at 1%."""
    start = keras.initializers.Constant(_PRIOR)
    return float32_dense(classes, name, bias_initializer=start)


def box_layers(width: int, name: str) -> list[keras.layers.Dense]:
    """The layers from a query to changes of its box, which are 0 at the start."""
    hidden = [float32_dense(width, f"{name}_{step}", "relu") for step in range(2)]
    return [*hidden, float32_dense(4, f"{name}_2", kernel_initializer="zeros")]


@keras.saving.register_keras_serializable("keras_vit")
class ObjectProposals(Layer):
    """Learned queries, and the boxes that they start from: the best proposals of a feature map.

    In training it gives the queries of all groups, group after group, otherwise those of the first.
    It computes in float32.

    Args:
        num_queries: Queries `N` of a group.
        num_groups: Number of groups.
        classes: Number of classes `K`.

    Call arguments:
        maps: Float tensor of shape `(B, rows, columns, D)`, of a known grid.
        training: Whether to give all groups.

    Returns:
        Tensors of `M` queries, the number of groups times `N`: queries `(B, M, D)`, embeddings of
        their boxes `(B, M, D)`, their boxes `(B, M, 4)`, and of the proposals the features
        `(B, M, D)`, the logits `(B, M, K)` and the boxes `(B, M, 4)`.

    Raises:
        ValueError: If the map has fewer positions than there are queries.
    """

    def __init__(self, num_queries: int, num_groups: int, classes: int, **kwargs: Any):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        self.num_queries = num_queries
        self.num_groups = num_groups
        self.classes = classes

    def build(self, maps_shape: Shape) -> None:
        _, rows, columns, width = maps_shape
        if rows * columns < self.num_queries:
            raise ValueError(
                f"{self.num_queries} queries start at as many positions of the feature map. "
                f"Received: a map of {rows} x {columns}. Take larger images."
            )
        total = self.num_groups * self.num_queries
        normal = keras.initializers.RandomNormal(stddev=1.0)
        layers = {
            f"{_POSITION}.0": float32_dense(width, "position_0", "relu"),
            f"{_POSITION}.1": float32_dense(width, "position_1"),
        }
        for group in range(self.num_groups):
            name = f"group_{group}"
            layers[f"{_DENSE}.{group}"] = float32_dense(width, f"{name}_dense")
            layers[f"{_NORM}.{group}"] = float32_norm(f"{name}_norm", _EPSILON)
            layers[f"{_CLASSES}.{group}"] = class_layer(self.classes, f"{name}_class_head")
            for step, layer in enumerate(box_layers(width, f"{name}_box")):
                layers[f"{_BOXES}.{group}.layers.{step}"] = layer
        for name, layer in layers.items():
            layer.build((None, 2 * width if name == f"{_POSITION}.0" else width))
        # Weights and layers by their names in files of transformers.
        self.parts = {
            _QUERIES: self.add_weight((total, width), normal, name="queries"),
            _CHANGES: self.add_weight((total, 4), "zeros", name="changes"),
            **layers,
        }

    def call(self, maps: Tensor, training: bool | None = None) -> tuple[Tensor, ...]:
        _, rows, columns, width = maps.shape
        y, x = (np.indices((rows, columns)).reshape(2, -1) + 0.5) / np.array([[rows], [columns]])
        boxes = np.stack([x, y, *2 * [np.full_like(x, _SIDE)]], -1).astype("float32")  # (S, 4)
        inside: np.ndarray = np.all((boxes > _EDGES[0]) & (boxes < _EDGES[1]), axis=-1)
        memory = ops.reshape(maps, (-1, rows * columns, width))
        if not inside.all():
            memory = memory * inside[:, None].astype("float32")
            boxes = boxes * inside[:, None]
        groups = self.num_groups if training else 1
        found = [self.propose(group, memory, boxes, inside) for group in range(groups)]
        features, logits, proposed = (ops.concatenate(x, 1) for x in zip(*found, strict=True))
        total, batch = groups * self.num_queries, ops.shape(maps)[0]
        queries, changes = (
            ops.convert_to_tensor(self.parts[name])[:total] for name in (_QUERIES, _CHANGES)
        )
        queries = ops.broadcast_to(queries[None], (batch, total, width))
        starts = refine_boxes(ops.stop_gradient(proposed), changes)
        return queries, self.embed(starts, width), starts, features, logits, proposed

    def propose(
        self, group: int, memory: Tensor, boxes: np.ndarray, inside: np.ndarray
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features, logits and boxes of the best positions of the map, by a group's own layers."""
        classify = self.parts[f"{_CLASSES}.{group}"]
        x = self.parts[f"{_NORM}.{group}"](self.parts[f"{_DENSE}.{group}"](memory))
        best = ops.max(classify(x), axis=-1)  # (B, S)
        if not inside.all():
            best = ops.where(inside, best, -np.inf)
        chosen = ops.top_k(best, self.num_queries)[1]
        x = changes = gather_rows(x, chosen)
        for step in range(3):
            changes = self.parts[f"{_BOXES}.{group}.layers.{step}"](changes)
        return x, classify(x), refine_boxes(ops.take(boxes, chosen, axis=0), changes)

    def embed(self, boxes: Tensor, width: int) -> Tensor:
        """Embeddings of boxes: sines and cosines of y, x, width and height, and two layers."""
        frequencies = (10_000 ** (2 * np.arange(width // 4) / (width // 2))).astype("float32")
        boxes = ops.concatenate([boxes[..., 1:2], boxes[..., :1], boxes[..., 2:]], axis=-1)
        angles = (boxes * np.float32(2 * math.pi))[..., None] / frequencies
        waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (B, M, 4, D / 4, 2)
        x = ops.reshape(waves, (-1, boxes.shape[1], 2 * width))
        return self.parts[f"{_POSITION}.1"](self.parts[f"{_POSITION}.0"](x))

    def count_costs(self, maps_shape: Shape) -> Cost:
        """Cost for one image, of one group."""
        _, rows, columns, width = maps_shape
        size, chosen = rows * columns * width, self.num_queries * width
        macs = size * (width + self.classes) + chosen * (5 * width + 4 + self.classes)
        return Cost(macs, 4 * size + 7 * chosen)


@keras.saving.register_keras_serializable("keras_vit")
class GroupAttention(keras.layers.Dense):
    """Self-attention of queries within their group, without the layer after it; in float32.

    Args:
        num_heads: Heads `A`, which divide the width.
        num_queries: Queries of a group.
        **kwargs: `units`, three times the width: queries, keys and values are one product.

    Call arguments:
        queries: Float tensor of shape `(B, M, D)`, group after group.
        positions: Float tensor of shape `(B, M, D)`, which queries and keys have, not values.

    Returns:
        Float tensor of shape `(B, M, D)`.

    Raises:
        ValueError: If the heads do not divide the width.
    """

    def __init__(self, units: int, num_heads: int, num_queries: int, **kwargs: Any):
        super().__init__(units, **{"dtype": Float32Policy(), **kwargs})
        check_heads(units // 3, num_heads)
        self.num_heads = num_heads
        self.num_queries = num_queries

    def call(self, queries: Tensor, positions: Tensor, training: bool | None = None) -> Tensor:
        _, count, width = queries.shape
        parts = zip(
            (queries + positions, queries + positions, queries),
            ops.split(ops.convert_to_tensor(self.kernel), 3, axis=1),
            ops.split(ops.convert_to_tensor(self.bias), 3),
            strict=True,
        )
        q, k, v = (
            split_heads(ops.matmul(x, w) + b, self.num_queries, self.num_heads) for x, w, b in parts
        )  # (B * groups, A, N, d)
        x = merge_heads(ops.matmul(attention_scores(q, k), v))
        return ops.reshape(x, (-1, count, width))

    def compute_output_shape(self, queries_shape: Shape, positions_shape: Shape) -> Shape:
        return queries_shape

    def count_costs(self, queries_shape: Shape, positions_shape: Shape) -> Cost:
        """Cost for one image."""
        size, scores = math.prod(queries_shape[1:]), queries_shape[1] * self.num_queries
        macs = 3 * size * queries_shape[2] + 2 * scores * queries_shape[2]
        return Cost(macs, 5 * size + self.num_heads * scores)

    def get_config(self) -> dict[str, Any]:
        own = {"num_heads": self.num_heads, "num_queries": self.num_queries}
        return {**super().get_config(), **own}
