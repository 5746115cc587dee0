"""Loss of detectors with groups of queries, whose classes are independent.

Group DETR (https://arxiv.org/abs/2207.13085) and LW-DETR (https://arxiv.org/abs/2406.03459), as in
RF-DETR.
"""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_vit.layers.layer import Tensor
from keras_vit.models.mask_points import at_points, mask_costs, mask_losses
from keras_vit.models.matching import check_backend, match
from keras_vit.models.set_prediction import (
    areas_of,
    compare_boxes,
    generalized_iou,
    known_boxes,
    to_corners,
)

# Keys of `config.json` of transformers, with its defaults.
GROUP_DEFAULTS = {
    "auxiliary_loss": True, "class_cost": 2, "bbox_cost": 5, "giou_cost": 2,
    "class_loss_coefficient": 1, "bbox_loss_coefficient": 5, "giou_loss_coefficient": 2,
    "focal_alpha": 0.25, "mask_point_sample_ratio": 16,
    "mask_class_loss_coefficient": 5.0, "mask_dice_loss_coefficient": 5.0,
}  # fmt: skip
_COST_ALPHA = 0.25  # of the focal cost; transformers does not take `focal_alpha` there
_LEAST_TARGET = 0.01  # of the class of a matched prediction


def sum_of_group_losses(
    outputs: dict[str, Tensor],
    targets: dict[str, Tensor],
    weights: dict[str, Any],
    num_queries: int,
    groups: int,
) -> Tensor:
    """The sum of the losses of all predictions: of every decoder layer, and of the proposals.

    Args:
        outputs: As for `group_loss`, of all sets of predictions: one after the other along the axis
            of queries, the proposals last. Of `num_queries` predictions, as for evaluation, there
            is one set of one group.
        targets: As for `group_loss`.
        weights: As for `group_loss`.
        num_queries: Queries of a group.
        groups: Groups of queries in training.

    Returns:
        A float32 scalar.

    Raises:
        ImportError: If SciPy is not installed.
        ValueError: Without the masks of a model for masks, or on another backend than TensorFlow.
    """
    if "pred_masks" in outputs and "masks" not in targets:
        raise ValueError(
            'Models for masks train on batches with "masks" of shape (B, M, H, W). Received: '
            f"{sorted(targets)}."
        )
    total = outputs["logits"].shape[1]
    groups = 1 if total == num_queries else groups
    num_sets = total // (groups * num_queries)
    parts = {name: ops.split(value, num_sets, axis=1) for name, value in outputs.items()}
    chosen = range(num_sets)
    if not weights["auxiliary_loss"]:  # the last layer, and without masks the proposals
        chosen = chosen[-2:][: 1 if "pred_masks" in outputs else 2]
    sets = ({name: value[index] for name, value in parts.items()} for index in chosen)
    return ops.sum(ops.stack([group_loss(each, targets, weights, groups) for each in sets]))


def group_loss(
    outputs: dict[str, Tensor], targets: dict[str, Tensor], weights: dict[str, Any], groups: int = 1
) -> Tensor:
    """Loss of predictions of which each group is matched with the true boxes.

    The class of a matched prediction learns a mean of its probability and its overlap (IoU) with
    the box: `IoU-aware` in LW-DETR, section 3.2. Others learn 0, weighted by the square of their
    probability. Matched boxes have the losses of `set_loss`, and masks those of `mask_losses`. All
    are divided by the number of boxes times the number of groups.

    Args:
        outputs: `"logits"` of shape `(B, G * N, K)`, `"pred_boxes"` of shape `(B, G * N, 4)`, as
            centre, width and height in [0, 1], and perhaps `"pred_masks"` of shape
            `(B, G * N, rows, columns)`.
        targets: `"boxes"` of shape `(B, M, 4)`, as left, top, right and bottom in [0, 1],
            `"labels"` of shape `(B, M)`, -1 in rows that are no box, and of models for masks
            `"masks"` of shape `(B, M, H, W)`.
        weights: Weights of costs and losses, with the keys of `GROUP_DEFAULTS`.
        groups: Number of groups `G`.

    Returns:
        A float32 scalar.

    Raises:
        ImportError: If SciPy is not installed.
        ValueError: On another backend than TensorFlow.
    """
    check_backend()
    import tensorflow as tf

    outputs = {name: ops.cast(value, "float32") for name, value in outputs.items()}
    logits, predicted = outputs["logits"], outputs["pred_boxes"]
    boxes, labels, count = known_boxes(targets["boxes"], targets["labels"])
    num_boxes, known = ops.maximum(groups * count, 1.0), ops.maximum(labels, 0)
    centred, distances, overlaps = compare_boxes(predicted, boxes)
    costs = (
        weights["class_cost"] * _class_costs(tf.gather(logits, known, axis=2, batch_dims=1))
        + weights["bbox_cost"] * distances
        - weights["giou_cost"] * overlaps
    )
    if "pred_masks" in outputs:
        masks = ops.cast(targets["masks"], "float32")
        costs += _mask_costs(outputs["pred_masks"], masks, weights)
    matched = _match_groups(costs, labels, groups)  # (B, M, G)
    is_matched = ops.cast(matched >= 0, "float32")
    own = {name: tf.gather(x, ops.maximum(matched, 0), batch_dims=1) for name, x in outputs.items()}
    corners = to_corners(own["pred_boxes"])
    far = ops.sum(ops.abs(own["pred_boxes"] - centred[:, :, None]), -1)  # (B, M, G)
    apart = 1 - generalized_iou(corners, boxes[:, :, None])
    losses = weights["bbox_loss_coefficient"] * far + weights["giou_loss_coefficient"] * apart
    # Of all predictions as if they were not matched, and the difference of those that are.
    x = tf.gather(own["logits"], ops.repeat(known[..., None], groups, -1), batch_dims=3)
    common, union, _ = areas_of(corners, boxes[:, :, None])
    alpha, overlap = weights["focal_alpha"], tf.stop_gradient(common / union)
    target = ops.sigmoid(tf.stop_gradient(x)) ** alpha * overlap ** (1 - alpha)
    target = ops.maximum(target, _LEAST_TARGET)
    of_match = target * ops.softplus(-x) + (1 - target) * ops.softplus(x) - _background_loss(x)
    losses += weights["class_loss_coefficient"] * of_match
    if "pred_masks" in outputs:
        rows, columns = outputs["pred_masks"].shape[2:]
        num_points = max(rows, rows * columns // weights["mask_point_sample_ratio"])
        entropy, dice = mask_losses(own["pred_masks"], masks, num_points, 3, 0.75, nearest=True)
        losses += weights["mask_class_loss_coefficient"] * entropy
        losses += weights["mask_dice_loss_coefficient"] * dice
    everywhere = weights["class_loss_coefficient"] * ops.sum(_background_loss(logits))
    return (everywhere + ops.sum(is_matched * losses)) / num_boxes


def _background_loss(logits: Tensor) -> Tensor:
    """Loss of classes that are none."""
    return ops.sigmoid(logits) ** 2 * ops.softplus(logits)


def _class_costs(logits: Tensor) -> Tensor:
    """Focal loss as a class, without that as none."""
    p, alpha = ops.sigmoid(logits), _COST_ALPHA
    return (1 - alpha) * p**2 * ops.log(1 - p + 1e-8) - alpha * (1 - p) ** 2 * ops.log(p + 1e-8)


def _mask_costs(logits: Tensor, masks: Tensor, weights: dict[str, float]) -> Tensor:
    """Costs of all pairs of masks, `(B, G * N, M)`, at the same random points."""
    import tensorflow as tf

    batch, queries = ops.shape(logits)[:2]
    # transformers takes the size of the array of all boxes for that of the masks.
    num_points = batch * queries * 4 // weights["mask_point_sample_ratio"]
    points = ops.repeat(tf.random.uniform((1, num_points, 2)), batch, 0)
    entropy, dice = mask_costs(at_points(logits, points), at_points(masks, points, nearest=True))
    entropy = weights["mask_class_loss_coefficient"] * entropy
    return entropy + weights["mask_dice_loss_coefficient"] * dice


def _match_groups(costs: Tensor, labels: Tensor, groups: int) -> Tensor:
    """The prediction of every box in every group, `(B, M, G)`; -1 where there is none."""
    _, total, most = ops.shape(costs)
    each = ops.reshape(costs, (-1, total // groups, most))  # (B * G, N, M)
    found = match(each, ops.repeat(labels, groups, axis=0))
    found = ops.transpose(ops.reshape(found, (-1, groups, most)), (0, 2, 1))
    first = ops.arange(groups, dtype="int32") * (total // groups)
    return ops.where(found >= 0, found + first, -1)
