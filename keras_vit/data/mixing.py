"""Mixup, CutMix and random erasing, as the official code and timm define them.

The Keras layers of these names compute something else: `keras.layers.MixUp` and `CutMix` draw one
ratio and one random partner per image. `RandomErasing` treats its factor as the maximum of a random
probability, multiplies two areas, and has no aspect ratio.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

_TRIES = 10  # to fit a rectangle, as in timm


def mix_images(images: Any, labels: Any, alpha: float, seed: Any) -> tuple[Any, Any]:
    """Mixup (https://arxiv.org/abs/1710.09412) as in the official code.

    The batch has one mixing ratio: the greater of `a ~ Beta(alpha, alpha)` and `1 - a`. Each image
    is mixed with the previous image of the batch, the first with the last.

    Args:
        images: Float tensor of shape `(B, H, W, C)`.
        labels: Float tensor of shape `(B, K)`.
        alpha: Parameter of the beta distribution, above 0.
        seed: Integer tensor of shape `(2,)`.

    Returns:
        Images and labels of the same shapes.
    """
    share = _beta(alpha, seed)
    share = tf.maximum(share, 1 - share)

    def mix(x: Any) -> Any:
        return share * x + (1 - share) * tf.roll(x, 1, 0)

    return mix(images), mix(labels)


def mix_or_cut(
    images: Any, labels: Any, mixup_alpha: float, cutmix_alpha: float, seed: Any
) -> tuple[Any, Any]:
    """Mixup or CutMix (https://arxiv.org/abs/1905.04899), as in timm and DeiT.

    Each is applied to half of the batches. If one alpha is 0, the other method is always applied.
    The batch has one mixing ratio or one rectangle. Image `i` is mixed with image `B - 1 - i`.

    Args:
        images: Float tensor of shape `(B, H, W, C)`.
        labels: Float tensor of shape `(B, K)`.
        mixup_alpha: Parameter of the beta distribution of mixup, or 0.
        cutmix_alpha: Parameter of the beta distribution of CutMix, or 0.
        seed: Integer tensor of shape `(2,)`.

    Returns:
        Images and labels of the same shapes.
    """
    coin, mix_seed = tf.unstack(tf.random.split(seed, 2))

    def mix() -> tuple[Any, Any]:
        share = _beta(mixup_alpha, mix_seed)
        return share * images + (1 - share) * images[::-1], share

    def cut() -> tuple[Any, Any]:
        return _cut(images, cutmix_alpha, mix_seed)

    if not (mixup_alpha and cutmix_alpha):
        mixed, share = cut() if cutmix_alpha else mix()
    else:
        mixed, share = tf.cond(tf.random.stateless_uniform((), coin) < 0.5, cut, mix)
    return mixed, share * labels + (1 - share) * labels[::-1]


def _cut(images: Any, alpha: float, seed: Any) -> tuple[Any, Any]:
    """Pastes a rectangle of the partner into each image; also returns the share that is kept."""
    ratio_seed, *centre_seeds = tf.unstack(tf.random.split(seed, 3))
    shape = tf.shape(images)
    ratio = tf.sqrt(1 - _beta(alpha, ratio_seed))
    inside = []
    for side, centre_seed in zip(tf.unstack(shape[1:3]), centre_seeds, strict=True):
        length = tf.cast(tf.cast(side, tf.float32) * ratio, tf.int32)
        centre = tf.random.stateless_uniform((), centre_seed, 0, side, tf.int32)
        start = tf.clip_by_value(centre - length // 2, 0, side)
        end = tf.clip_by_value(centre + length // 2, 0, side)
        inside.append((tf.range(side) >= start) & (tf.range(side) < end))
    rectangle = inside[0][:, None] & inside[1][None, :]
    share = 1 - tf.reduce_mean(tf.cast(rectangle, tf.float32))
    return tf.where(rectangle[None, :, :, None], images[::-1], images), share


def erase(
    image: Any, probability: float, mean: tuple[float, ...], std: tuple[float, ...], seed: Any
) -> Any:
    """Random erasing (https://arxiv.org/abs/1708.04896) as in timm and DeiT.

    A rectangle with 2 to 33 % of the area and an aspect ratio of 3:10 to 10:3 is filled with
    Gaussian noise, which has mean 0 and deviation 1 in the model's value range.

    Args:
        image: Float tensor of shape `(H, W, C)`, values in [0, 255].
        probability: Probability that a rectangle of the image is erased.
        mean: Mean of each channel, as in `Preprocessing`.
        std: Standard deviation of each channel.
        seed: Integer tensor of shape `(2,)`.

    Returns:
        float32 tensor of the same shape; the noise is not clipped to [0, 255].
    """
    coin, noise, area, aspect, place = tf.unstack(tf.random.split(seed, 5))
    shape = tf.shape(image)[:2]
    sides = tf.cast(shape, tf.float32)
    areas = tf.reduce_prod(sides) * tf.random.stateless_uniform((_TRIES,), area, 0.02, 1 / 3)
    least = math.log(0.3)
    aspects = tf.exp(tf.random.stateless_uniform((_TRIES,), aspect, least, -least))
    heights = tf.cast(tf.round(tf.sqrt(areas * aspects)), tf.int32)
    widths = tf.cast(tf.round(tf.sqrt(areas / aspects)), tf.int32)
    fits = (heights < shape[0]) & (widths < shape[1])
    first = tf.argmax(fits)  # first rectangle that fits
    size = tf.stack((heights[first], widths[first]))
    free = tf.cast(shape - size + 1, tf.float32)
    start = tf.cast(tf.random.stateless_uniform((2,), place) * free, tf.int32)
    rows, columns = (
        (tf.range(shape[i]) >= start[i]) & (tf.range(shape[i]) < start[i] + size[i]) for i in (0, 1)
    )
    rectangle = (rows[:, None] & columns[None, :])[..., None]
    applies = tf.reduce_any(fits) & (tf.random.stateless_uniform((), coin) < probability)
    x = tf.cast(image, tf.float32)
    values = tf.constant(mean) + tf.constant(std) * tf.random.stateless_normal(tf.shape(x), noise)
    return tf.where(rectangle & applies, values, x)


def _beta(alpha: float, seed: Any) -> Any:
    """Draws a float32 number from the distribution Beta(alpha, alpha)."""
    # In float32 both may underflow to 0 if alpha is small.
    a, b = tf.unstack(tf.random.stateless_gamma((2,), seed, alpha, dtype=tf.float64))
    return tf.cast(a / (a + b), tf.float32)
