"""The model that trains the mask decoder of Segment Anything, and its loss."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.models.matching import part_of_replica
from keras_vit.runtime.model import Model

_FOCAL = 20.0  # times the dice loss, appendix A of https://arxiv.org/abs/2304.02643
_ALPHA = 0.25  # of pixels inside; with the square below, as in https://arxiv.org/abs/1708.02002


def prompt_loss(logits: Any, scores: Any, masks: Any) -> Any:
    """Loss of Segment Anything: focal and dice loss of masks, and squared error of their scores.

    Appendix A of https://arxiv.org/abs/2304.02643: 20 times the focal loss plus the dice loss, of
    the mask that fits best; and the error of the IoU that is expected of every mask.

    Args:
        logits: Float tensor of shape `(B, M, rows, columns)`.
        scores: Float tensor of shape `(B, M)`: the expected IoU.
        masks: Tensor of shape `(B, rows, columns)`, 1 inside of the object and 0 outside.

    Returns:
        Float tensor of shape `(B,)`.
    """
    x, y = ops.cast(logits, "float32"), ops.cast(masks, "float32")[:, None]
    p, axes = ops.sigmoid(x), (2, 3)
    entropy = ops.softplus(x) - x * y
    missed = p + y - 2 * p * y  # of the probability of the true side
    focal = ops.mean((_ALPHA * y + (1 - _ALPHA) * (1 - y)) * missed**2 * entropy, axes)
    total = ops.sum(p, axes) + ops.sum(y, axes)
    dice = 1 - (2 * ops.sum(p * y, axes) + 1) / (total + 1)
    inside = ops.cast(x > 0, "float32")
    union = ops.sum(ops.maximum(inside, y), axes)
    iou = ops.sum(inside * y, axes) / ops.maximum(union, 1.0)
    errors = ops.square(ops.cast(scores, "float32") - iou)
    return ops.min(_FOCAL * focal + dice, -1) + ops.mean(errors, -1)


@keras.saving.register_keras_serializable("keras_vit")
class PromptTrainer(Model):
    """A decoder of masks that trains with `prompt_loss`: `compile(optimizer)` and `fit`.

    Its labels are masks of shape `(B, rows, columns)`, in the size of its logits.

    Args:
        *args: As for `keras_vit.Model`.
        **kwargs: As for `keras_vit.Model`.
    """

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        """The mean of `prompt_loss` over a batch, and the losses of the layers."""
        losses = prompt_loss(y_pred["masks"], y_pred["scores"], y)
        losses = losses if sample_weight is None else losses * ops.cast(sample_weight, losses.dtype)
        return part_of_replica(ops.sum(ops.stack([ops.mean(losses), *self.losses])))
