"""Models that predict a set of boxes, and the loss of their best matching with the true boxes.

End-to-End Object Detection with Transformers (DETR), https://arxiv.org/abs/2005.12872.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.layer import Tensor
from keras_vit.models.matching import check_backend, class_loss, match, part_of_replica
from keras_vit.runtime.model import Model

# Keys of `config.json` of transformers: weights of the costs of a pair of boxes, and of the losses.
LOSS_DEFAULTS = {
    "class_cost": 1, "bbox_cost": 5, "giou_cost": 2,
    "bbox_loss_coefficient": 5, "giou_loss_coefficient": 2, "eos_coefficient": 0.1,
}  # fmt: skip


@keras.saving.register_keras_serializable("keras_vit")
class DetectionTransformer(Model):
    """A `keras_vit.Model` from images to a set of boxes, which trains with plain `fit`.

    Its outputs are a dict of `"logits"` of shape `(B, N, K + 1)`, whose last class is "no object",
    and `"pred_boxes"` of shape `(B, N, 4)`: centre, width and height as shares of the image. Its
    loss is `set_loss`, with the weights of the checkpoint. Call `compile` without a loss, and train
    on the batches of `keras_vit.detection.box_batches`; `keras_vit.detection.predict_boxes` gives
    boxes in pixels. Under `tf.distribute`, each replica divides by the number of its own boxes.

    Raises:
        ValueError: If it is compiled with a loss or for XLA, or trains on another backend than
            TensorFlow.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes, without "no object"."""
        return int(self.output["logits"].shape[-1]) - 1

    num_named = num_classes

    def compile(
        self, optimizer: Any = "rmsprop", loss: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        check_backend()
        jit_compile = kwargs.pop("jit_compile", False)
        if loss is not None or jit_compile is True:
            raise ValueError(
                "The loss of a DetectionTransformer is its own, and XLA cannot compile its "
                f"matching of boxes. Received: loss={loss!r}, jit_compile={jit_compile!r}. Leave "
                "both out: model.compile(optimizer)."
            )
        super().compile(optimizer, None, *args, jit_compile=False, **kwargs)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:  # fmt: skip
        """The `set_loss` of a batch of `keras_vit.detection.box_batches`."""
        if not isinstance(y, dict) or {"boxes", "labels"} - y.keys() or sample_weight is not None:
            raise ValueError(
                'Detectors train on images and a dict of "boxes" and "labels", without weights of '
                f"images. Received: {type(y).__name__}{sorted(y) if isinstance(y, dict) else ''}, "
                f"sample_weight={sample_weight!r}. Make batches by keras_vit.detection.box_batches."
            )
        height, width = ops.shape(x)[1:3]
        sides = ops.cast(ops.stack([width, height, width, height]), "float32")
        shares = ops.cast(y["boxes"], "float32") / sides
        return part_of_replica(self.loss_of(y_pred, {**y, "boxes": shares}))

    def loss_of(self, outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        """The loss of the outputs, where boxes of the targets are shares of the image."""
        weights = self.stated(LOSS_DEFAULTS)
        predicted = outputs["logits"], outputs["pred_boxes"]
        return set_loss(*predicted, targets["boxes"], targets["labels"], weights)

    def stated(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """Values of the keys in `config.json` of the checkpoint, or else the defaults."""
        config = (self.published or {}).get("config", {})
        return {key: config.get(key, value) for key, value in defaults.items()}


def set_loss(
    logits: Tensor, predicted: Tensor, boxes: Tensor, labels: Tensor, weights: dict[str, float]
) -> Tensor:
    """Loss of predicted boxes that are matched one to one with true boxes at the least cost.

    Section 3.1 of https://arxiv.org/abs/2005.12872: cross entropy of all predictions, where those
    without a box are of the class "no object", distances of sides (L1) and generalised IoU of
    matched boxes. The last two are divided by the number of true boxes.

    Args:
        logits: Float tensor of shape `(B, N, K + 1)`.
        predicted: Float tensor of shape `(B, N, 4)`: centre, width and height, in [0, 1].
        boxes: Float tensor of shape `(B, M, 4)`: left, top, right and bottom, in [0, 1].
        labels: Tensor of shape `(B, M)`: classes, and -1 in rows that are no box.
        weights: Weights of costs and losses, with the keys of `LOSS_DEFAULTS`.

    Returns:
        A float32 scalar.

    Raises:
        ImportError: If SciPy is not installed.
        ValueError: On another backend than TensorFlow.
    """
    check_backend()
    import tensorflow as tf

    logits, predicted = ops.cast(logits, "float32"), ops.cast(predicted, "float32")
    boxes, labels, count = known_boxes(boxes, labels)
    centred, distances, overlaps = compare_boxes(predicted, boxes)
    chosen = tf.gather(ops.softmax(logits), ops.maximum(labels, 0), axis=2, batch_dims=1)
    costs = (
        weights["bbox_cost"] * distances
        - weights["class_cost"] * chosen
        - weights["giou_cost"] * overlaps
    )
    matched = match(costs, labels)
    is_matched = ops.cast(matched >= 0, "float32")
    loss = class_loss(logits, labels, matched, weights["eos_coefficient"])
    own = tf.gather(predicted, ops.maximum(matched, 0), batch_dims=1)  # (B, M, 4)
    far = weights["bbox_loss_coefficient"] * ops.sum(ops.abs(own - centred), -1)  # (B, M)
    apart = weights["giou_loss_coefficient"] * (1 - generalized_iou(to_corners(own), boxes))
    return loss + ops.sum(is_matched * (far + apart)) / ops.maximum(count, 1.0)


def known_boxes(boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """True boxes with an area in every row, their classes in int32, and how many they are.

    Args:
        boxes: Float tensor of shape `(B, M, 4)`: left, top, right and bottom.
        labels: Tensor of shape `(B, M)`: classes, and -1 in rows that are no box.
    """
    labels = ops.cast(labels, "int32")
    is_box = labels >= 0  # (B, M)
    # Rows that are no box count nothing, but must have an area.
    boxes = ops.where(is_box[..., None], boxes, ops.convert_to_tensor([0.0, 0.0, 1.0, 1.0]))
    return boxes, labels, ops.sum(ops.cast(is_box, "float32"))


def compare_boxes(predicted: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """True boxes as centre and size, and distances and generalised IoU of all pairs.

    Args:
        predicted: Float tensor of shape `(B, N, 4)`: centre, width and height.
        boxes: Float tensor of shape `(B, M, 4)`: left, top, right and bottom.

    Returns:
        Float tensors of shapes `(B, M, 4)`, `(B, N, M)` and `(B, N, M)`.
    """
    first, last = boxes[..., :2], boxes[..., 2:]
    centred = ops.concatenate([(first + last) / 2, last - first], axis=-1)  # (B, M, 4)
    distances = ops.sum(ops.abs(predicted[:, :, None] - centred[:, None]), -1)  # (B, N, M)
    overlaps = generalized_iou(to_corners(predicted)[:, :, None], boxes[:, None])
    return centred, distances, overlaps


def to_corners(boxes: Tensor) -> Tensor:
    """Left, top, right and bottom of boxes `(..., 4)` given as centre, width and height."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return ops.concatenate([centre - half, centre + half], axis=-1)


def generalized_iou(one: Tensor, other: Tensor) -> Tensor:
    """Generalised intersection over union (https://arxiv.org/abs/1902.09630), in [-1, 1].

    Args:
        one: Boxes of shape `(..., 4)`: left, top, right and bottom.
        other: Boxes of a shape that is broadcast with it.

    Returns:
        Float tensor of shape `(...)`.
    """
    common, union, hull = areas_of(one, other)
    return common / union - (hull - union) / hull


def areas_of(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Areas of the intersection, the union and the hull of boxes, as for `generalized_iou`."""

    def area(first: Tensor, last: Tensor) -> Tensor:
        return ops.prod(ops.maximum(last - first, 0.0), axis=-1)

    first, last = (one[..., :2], other[..., :2]), (one[..., 2:], other[..., 2:])
    common = area(ops.maximum(*first), ops.minimum(*last))
    union = area(first[0], last[0]) + area(first[1], last[1]) - common
    return common, union, area(ops.minimum(*first), ops.maximum(*last))
