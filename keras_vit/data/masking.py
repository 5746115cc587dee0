"""Masked patch prediction: inputs and targets as a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.checks import check_choice, check_whole_patches, pair
from keras_vit.config import COLOR_LEVELS, PATCH_TARGETS

_SMALL = 4  # pixels along a side of the small patch


def mask_patches(
    dataset: tf.data.Dataset,
    patch_size: int | tuple[int, int],
    target: str = "mean_color",
    rate: float = 0.5,
    masked: float = 0.8,
    replaced: float = 0.1,
    seed: int = 0,
) -> tf.data.Dataset:
    """Makes a dataset for masked patch prediction of one of images.

    Appendix B.1.2 of https://arxiv.org/abs/2010.11929. Of the patches of each image, the share
    `rate` is corrupted: 80 % of them become the mask token, 10 % another patch of the same image,
    drawn at random, and 10 % stay as they are. All corrupted ones are to be predicted. The paper
    leaves open whether other patches come from the same image, and how many are drawn: here the
    number is `round(rate N)` in every image.

    Args:
        dataset: `tf.data.Dataset` of batches of images with values in [0, 255], or of tuples that
            begin with them; the rest is dropped.
        patch_size: Pixels along (height, width) of a patch; for a hybrid of what one token sees.
        target: What to predict of a patch: `"mean_color"`, its mean colour with 3 bits a channel
            (512 colours), which the paper reports; `"small_patch"`, its 4 x 4 downsized version
            in the same colours; `"pixels"`, all its values, scaled to [-1, 1].
        rate: Share of the patches to corrupt, in (0, 1]. The paper also tried 0.15.
        masked: Share of those that become the mask token.
        replaced: Share of those that become another patch.
        seed: Of the choice, which differs from batch to batch and from epoch to epoch.

    Returns:
        `tf.data.Dataset` of `(inputs, targets, weights)`: `inputs` is a dict of `images` and of
        `sources`, int32 of shape `(B, N)`, what `PatchMask` takes; `targets` are colours, int32 of
        shape `(B, N)` or `(B, N, 16)`, or float32 values `(B, N, pixels * C)`; `weights`, float32
        of shape `(B, N)` or `(B, N, 1)`, are 0 where nothing is to be predicted, with mean 1.

    Raises:
        ValueError: If a rate is out of range, `target` unknown, or images no whole number of
            patches.
    """
    check_choice("target", target, PATCH_TARGETS)
    if not (0 < rate <= 1 and masked >= 0 and replaced >= 0 and masked + replaced <= 1):
        raise ValueError(
            "`rate` must be in (0, 1], `masked` and `replaced` shares whose sum is at most 1. "
            f"Received: rate={rate}, masked={masked}, replaced={replaced}."
        )
    patch_size = pair("patch_size", patch_size)
    shares = (rate, masked, replaced)

    @tf.autograph.experimental.do_not_convert
    def corrupt(seeds: Any, element: Any) -> tuple[dict[str, Any], Any, Any]:
        images = element[0] if isinstance(element, tuple) else element
        patches = _cut(images, patch_size)  # (B, N, h, w, C)
        sources, corrupted = _draw(tf.shape(images)[0], patches.shape[1], shares, seeds)
        weights = tf.cast(corrupted, tf.float32)
        weights /= tf.reduce_mean(weights)
        if target == "small_patch":
            weights = weights[:, :, None]
        return {"images": images, "sources": sources}, _TARGETS[target](patches), weights

    # Iterators are numbered by TensorFlow, so a restarted run can draw the same again.
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
    return tf.data.Dataset.zip(seeds, dataset).map(corrupt, num_parallel_calls=tf.data.AUTOTUNE)


def _cut(images: Any, patch_size: tuple[int, int]) -> Any:
    """Cuts images `(B, H, W, C)` into patches `(B, N, h, w, C)`, row by row."""
    if images.shape.rank != 4 or None in images.shape[1:]:
        raise ValueError(
            "`mask_patches` takes batches of images of shape (batch, height, width, channels), all "
            f"but the batch known. Received: shape {images.shape}."
        )
    height, width, channels = images.shape[1:]
    check_whole_patches((height, width), patch_size)
    rows, columns = height // patch_size[0], width // patch_size[1]
    x = tf.reshape(images, (-1, rows, patch_size[0], columns, patch_size[1], channels))
    x = tf.transpose(x, (0, 1, 3, 2, 4, 5))
    return tf.cast(tf.reshape(x, (-1, rows * columns, *patch_size, channels)), tf.float32)


def _draw(
    images: Any, patches: int, shares: tuple[float, float, float], seeds: Any
) -> tuple[Any, Any]:
    """Draws the source of each token, and which patches are corrupted: `(B, N)` each."""
    rate, masked, replaced = shares
    shape = (images, patches)
    order = tf.argsort(tf.random.stateless_uniform(shape, tf.stack([seeds[0], 0])), axis=1)
    rank = tf.argsort(order, axis=1)  # of each patch
    corrupted = rank < max(1, round(rate * patches))
    choice = tf.random.stateless_uniform(shape, tf.stack([seeds[1], 1]))
    step = tf.random.stateless_uniform(
        shape, tf.stack([seeds[0], 2]), 1, max(2, patches), dtype=tf.int32
    )
    here = tf.broadcast_to(tf.range(patches), shape)
    other = (here + step) % patches  # never itself
    sources = tf.where(choice < masked, -1, tf.where(choice < masked + replaced, other, here))
    return tf.where(corrupted, sources, here), corrupted


def _colors(pixels: Any) -> Any:
    """Values in [0, 255], `(..., C)`, as one of `8 ** C` colours."""
    levels = tf.cast(pixels, tf.int32) // (256 // COLOR_LEVELS)
    levels = tf.clip_by_value(levels, 0, COLOR_LEVELS - 1)
    factors = [COLOR_LEVELS**power for power in reversed(range(pixels.shape[-1]))]
    return tf.reduce_sum(levels * tf.constant(factors), axis=-1)


def _mean_color(patches: Any) -> Any:
    return _colors(tf.reduce_mean(patches, axis=(2, 3)))


def _small_patch(patches: Any) -> Any:
    count, (height, width, channels) = patches.shape[1], patches.shape[2:]
    x = tf.reshape(patches, (-1, height, width, channels))
    x = tf.image.resize(x, (_SMALL, _SMALL), "area")
    return _colors(tf.reshape(x, (-1, count, _SMALL**2, channels)))


def _pixels(patches: Any) -> Any:
    x = tf.reshape(patches, (-1, patches.shape[1], patches.shape[2:].num_elements()))
    return x / 127.5 - 1.0


_TARGETS: dict[str, Callable[[Any], Any]] = {
    "mean_color": _mean_color,
    "small_patch": _small_patch,
    "pixels": _pixels,
}
