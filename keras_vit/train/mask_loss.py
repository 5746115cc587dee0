"""Loss of mask classification: queries are matched to masks, each to one."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

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
        losses = tf.where(queries >= 0, self._mask_losses(own, masks), 0.0)
        of_classes = class_loss(class_logits, labels, queries, self.no_object_weight)
        return tf.reduce_sum(losses) / tf.maximum(count, 1.0) + self.class_weight * of_classes

    def _match(self, mask_logits: Any, class_logits: Any, masks: Any, labels: Any) -> Any:
        """The query of every mask, `(B, M)`; -1 for none."""
        points = tf.random.uniform((tf.shape(masks)[0], self.train_num_points, 2))
        logits, targets = _at_points(mask_logits, points), _at_points(masks, points)
        # Sums over points of all pairs, (B, Q, M).
        inside = tf.matmul(tf.nn.softplus(-logits), targets, transpose_b=True)
        outside = tf.matmul(tf.nn.softplus(logits), 1 - targets, transpose_b=True)
        probabilities = tf.sigmoid(logits)
        common = tf.matmul(probabilities, targets, transpose_b=True)
        total = tf.reduce_sum(probabilities, -1)[:, :, None] + tf.reduce_sum(targets, -1)[:, None]
        known = tf.maximum(labels, 0)
        classes = tf.gather(tf.nn.softmax(class_logits), known, axis=2, batch_dims=1)
        cost = (
            self.mask_weight * (inside + outside) / self.train_num_points
            + self.dice_weight * (1 - (2 * common + 1) / (total + 1))
            - self.class_weight * classes
        )
        return match(cost, labels)

    def _mask_losses(self, logits: Any, masks: Any) -> Any:
        """Losses of matched masks, each `(B, M, rows, columns)`, of shape `(B, M)`."""
        pairs = tf.shape(masks)[:2]
        logits, masks = (
            tf.reshape(x, (-1, 1, *x.shape[2:])) for x in (logits, masks)
        )  # (B * M, 1, rows, columns)
        drawn = int(self.train_num_points * self.oversample_ratio)
        unsure = int(self.train_num_points * self.importance_sample_ratio)
        points = tf.random.uniform((tf.shape(logits)[0], drawn, 2))
        doubt = -tf.abs(_at_points(tf.stop_gradient(logits), points)[:, 0])
        points = tf.gather(points, tf.math.top_k(doubt, unsure).indices, batch_dims=1)
        rest = (tf.shape(logits)[0], self.train_num_points - unsure, 2)
        points = tf.concat([points, tf.random.uniform(rest)], 1)
        x, y = _at_points(logits, points)[:, 0], _at_points(masks, points)[:, 0]
        entropy = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x), -1)
        x = tf.sigmoid(x)
        common, total = tf.reduce_sum(x * y, -1), tf.reduce_sum(x, -1) + tf.reduce_sum(y, -1)
        dice = 1 - (2 * common + 1) / (total + 1)
        return tf.reshape(self.mask_weight * entropy + self.dice_weight * dice, pairs)


def _at_points(maps: Any, points: Any) -> Any:
    """Values between the centres of pixels, 0 beyond the edges.

    Args:
        maps: Float tensor of shape `(B, C, rows, columns)`.
        points: Across and down, in [0, 1], of shape `(B, P, 2)`.

    Returns:
        Float tensor of shape `(B, C, P)`.
    """
    rows, columns = maps.shape[2:]
    flat = tf.reshape(maps, (-1, maps.shape[1], rows * columns))
    places = points * tf.constant((columns, rows), points.dtype) - 0.5
    first = tf.floor(places)
    right, down = tf.unstack(places - first, axis=-1)
    x, y = tf.unstack(tf.cast(first, tf.int32), axis=-1)
    total = 0.0
    for row, of_row in ((y, 1 - down), (y + 1, down)):
        for column, of_column in ((x, 1 - right), (x + 1, right)):
            is_inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
            index = tf.where(is_inside, row * columns + column, 0)
            values = tf.gather(flat, index, axis=2, batch_dims=1)  # (B, C, P)
            total += values * tf.where(is_inside, of_row * of_column, 0.0)[:, None]
    return total
