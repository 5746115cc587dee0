"""Loss of mask classification: queries are matched to masks, each to one."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from keras_vit.models.mask_points import at_points, mask_costs, mask_losses
from keras_vit.models.matching import class_loss, match


@dataclasses.dataclass(frozen=True)
class MaskLoss:
    """Loss of Mask2Former (https://arxiv.org/abs/2112.01527, section 3.3), which EoMT takes over.

    Every mask is matched to the query of the least cost. Masks are compared at random points, most
    of them where the prediction is least sure. Other queries learn the class of no object. Names
    and values are those of `config.json` of transformers.

    Args:
        class_weight: Of the cross-entropy of classes.
        mask_weight: Of the binary cross-entropy of masks.
        dice_weight: Of the dice loss of masks.
        no_object_weight: Of queries without a mask in the cross-entropy of classes.
        train_num_points: Points of a mask.
        oversample_ratio: Times as many points are drawn, of which the least sure are taken.
        importance_sample_ratio: Share of points that are taken so; the others are random.

    Call arguments:
        mask_logits: Float tensor of shape `(B, Q, rows, columns)`.
        class_logits: Float tensor of shape `(B, Q, K + 1)`.
        masks: Tensor of shape `(B, M, H, W)`, 1 inside a mask and 0 outside, of any size.
        labels: Integer tensor of shape `(B, M)`, -1 for a mask that is none.

    Returns:
        Float scalar.
    """

    class_weight: float = 2.0
    mask_weight: float = 5.0
    dice_weight: float = 5.0
    no_object_weight: float = 0.1
    train_num_points: int = 12544
    oversample_ratio: float = 3.0
    importance_sample_ratio: float = 0.75

    def __call__(self, mask_logits: Any, class_logits: Any, masks: Any, labels: Any) -> Any:
        masks, labels = tf.cast(masks, mask_logits.dtype), tf.cast(labels, tf.int32)
        queries = self._match(mask_logits, class_logits, masks, labels)
        count = tf.reduce_sum(tf.cast(labels >= 0, tf.float32))
        own = tf.gather(mask_logits, tf.maximum(queries, 0), batch_dims=1)
        sampling = self.train_num_points, self.oversample_ratio, self.importance_sample_ratio
        entropy, dice = mask_losses(own[:, :, None], masks, *sampling)
        weighted = (self.mask_weight * entropy + self.dice_weight * dice)[..., 0]
        losses = tf.where(queries >= 0, weighted, 0.0)
        of_classes = class_loss(class_logits, labels, queries, self.no_object_weight)
        return tf.reduce_sum(losses) / tf.maximum(count, 1.0) + self.class_weight * of_classes

    def _match(self, mask_logits: Any, class_logits: Any, masks: Any, labels: Any) -> Any:
        """The query of every mask, `(B, M)`; -1 for none."""
        points = tf.random.uniform((tf.shape(masks)[0], self.train_num_points, 2))
        logits, targets = at_points(mask_logits, points), at_points(masks, points)
        entropy, dice = mask_costs(logits, targets)
        known = tf.maximum(labels, 0)
        classes = tf.gather(tf.nn.softmax(class_logits), known, axis=2, batch_dims=1)
        cost = self.mask_weight * entropy + self.dice_weight * dice - self.class_weight * classes
        return match(cost, labels)
