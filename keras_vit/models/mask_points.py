"""Costs and losses of masks at sampled points: section 3.3 of https://arxiv.org/abs/2112.01527."""

from __future__ import annotations

from keras import ops

from keras_vit.layers.layer import Tensor


def mask_costs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy and dice of all pairs of predicted and true masks.

    Args:
        logits: Float tensor of shape `(B, Q, P)`, at `P` points.
        targets: Float tensor of shape `(B, M, P)`, in [0, 1], at the same points.

    Returns:
        Two float tensors of shape `(B, Q, M)`.
    """
    import tensorflow as tf

    def sums(x: Tensor, y: Tensor) -> Tensor:
        return tf.matmul(x, y, transpose_b=True)

    inside, outside = sums(ops.softplus(-logits), targets), sums(ops.softplus(logits), 1 - targets)
    probabilities = ops.sigmoid(logits)
    total = ops.sum(probabilities, -1)[:, :, None] + ops.sum(targets, -1)[:, None]
    dice = 1 - (2 * sums(probabilities, targets) + 1) / (total + 1)
    return (inside + outside) / ops.cast(ops.shape(logits)[-1], logits.dtype), dice


def mask_losses(
    logits: Tensor, masks: Tensor, num_points: int, oversample_ratio: float,
    importance_sample_ratio: float, nearest: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cross entropy and dice of matched masks, at random points: most of them where it is unsure.

    Args:
        logits: Float tensor of shape `(B, M, G, rows, columns)`: `G` predictions of every mask.
        masks: Float tensor of shape `(B, M, H, W)`, in [0, 1], of any size.
        num_points: Points of a prediction.
        oversample_ratio: Times as many points are drawn, of which the least sure are taken.
        importance_sample_ratio: Share of points that are taken so; the others are random.
        nearest: Whether masks have the value of the nearest pixel, not one between pixels.

    Returns:
        Two float tensors of shape `(B, M, G)`.
    """
    import tensorflow as tf

    shape = ops.shape(logits)
    logits = ops.reshape(logits, (-1, 1, *logits.shape[3:]))  # (B * M * G, 1, rows, columns)
    masks = ops.reshape(masks, (-1, 1, *masks.shape[2:]))  # (B * M, 1, H, W)
    count = ops.shape(logits)[0]
    unsure = int(num_points * importance_sample_ratio)
    points = tf.random.uniform((count, int(num_points * oversample_ratio), 2))
    doubt = -ops.abs(at_points(tf.stop_gradient(logits), points)[:, 0])
    points = tf.gather(points, tf.math.top_k(doubt, unsure).indices, batch_dims=1)
    rest = tf.random.uniform((count, num_points - unsure, 2))
    points = ops.concatenate([points, rest], axis=1)
    x = at_points(logits, points)[:, 0]
    # All points of a mask at once, so that it is not repeated for its predictions.
    at_masks = at_points(masks, ops.reshape(points, (-1, shape[2] * num_points, 2)), nearest)
    y = ops.reshape(at_masks, (-1, num_points))
    entropy = ops.mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x), axis=-1)
    x = ops.sigmoid(x)
    dice = 1 - (2 * ops.sum(x * y, -1) + 1) / (ops.sum(x, -1) + ops.sum(y, -1) + 1)
    return ops.reshape(entropy, shape[:3]), ops.reshape(dice, shape[:3])


def at_points(maps: Tensor, points: Tensor, nearest: bool = False) -> Tensor:
    """Values at points between the centres of pixels, 0 beyond the edges.

    Args:
        maps: Float tensor of shape `(B, C, rows, columns)`.
        points: Across and down, in [0, 1], of shape `(B, P, 2)`.
        nearest: Whether to take the nearest pixel, instead of the four around the point.

    Returns:
        Float tensor of shape `(B, C, P)`.
    """
    import tensorflow as tf

    rows, columns = maps.shape[2:]
    flat = ops.reshape(maps, (-1, maps.shape[1], rows * columns))
    places = points * ops.convert_to_tensor((columns, rows), points.dtype) - 0.5
    first = ops.round(places) if nearest else ops.floor(places)
    right, down = ops.unstack(places - first, axis=-1)
    x, y = ops.unstack(ops.cast(first, "int32"), axis=-1)
    corners = [(y, x, (1 - down) * (1 - right)), (y, x + 1, (1 - down) * right),
               (y + 1, x, down * (1 - right)), (y + 1, x + 1, down * right)]  # fmt: skip
    total = 0.0
    for row, column, share in [(y, x, ops.ones_like(right))] if nearest else corners:
        is_inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        index = ops.where(is_inside, row * columns + column, 0)
        values = tf.gather(flat, index, axis=2, batch_dims=1)  # (B, C, P)
        total += values * ops.where(is_inside, share, 0.0)[:, None]
    return total
