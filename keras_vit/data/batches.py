"""Makes batches for `fit`, `evaluate` and `predict` from labelled images.

    1 this worker's part of an epoch, shuffled    5 RandAugment           (uint8)
    2 read the file                               6 random erasing
    3 decode and crop, resize   (float32)         7 batch, one-hot labels, label smoothing
    4 horizontal flip                             8 mixup or CutMix
                                                  9 normalise, if the model does not; prefetch

Evaluation does 1 without shuffling, 2, `eval_transform`, 7 and 9. The official code normalises
before it mixes. The results are the same, because both operations are linear.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batch_cache import cache_batches, digest_batches
from keras_vit.data.crops import default_resize_size, inception_crop, resized_crop
from keras_vit.data.epochs import EpochPlan, distribute, read_epochs
from keras_vit.data.image_set import ImageSet
from keras_vit.data.input_transform import InputTransform, transform_of
from keras_vit.data.labelled_set import SHUFFLE_BUFFER, make_batches
from keras_vit.data.mixing import erase, mix_images, mix_or_cut
from keras_vit.data.rand_augment import rand_augment
from keras_vit.data.transforms import decode_for, eval_transform, in_range, model_input
from keras_vit.runtime.losses import takes_integers

if TYPE_CHECKING:
    import keras

    from keras_vit.config import ResNetConfig, ViTConfig


def train_batches(
    images: ImageSet,
    model: keras.Model | ViTConfig | ResNetConfig | InputTransform,
    batch_size: int,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    *,
    image_size: int | tuple[int, int] | None = None,
    one_hot: bool | None = None,
    class_weights: Sequence[float] | None = None,
    drop_remainder: bool = True,
    repeats: int = 1,
    steps: int | None = None,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Makes training batches: shuffled, augmented, in the value range of the model.

    Every epoch has its own order, crops and mixtures. They depend only on the seed and the number
    of the epoch, so runs are reproducible, and `ResumeTraining` continues with the same pixels.
    Inside `strategy.scope()` every worker reads its own part, see `read_shards`.

    Args:
        images: Images, as from `read_folder`, `read_tfds`, `read_records` or `read_arrays`.
        model: The model to train, see `transform_of`.
        batch_size: Images per step, of all workers together.
        augmentation: Data augmentation; `None` takes that of the paper: Inception crop and
            horizontal flip.
        seed: Random seed.
        image_size: Pixels along (height, width), for a model that takes images of any size.
        one_hot: Whether labels are float32 of shape `(B, K)`; otherwise integers of shape `(B,)`,
            without label smoothing and mixing. `None` follows the loss that the model was compiled
            with: integers for a sparse cross-entropy. Labels of other tasks than `"single_label"`
            are vectors in any case.
        class_weights: A weight for every class, such as `images.class_weights()`. Batches then
            have the weight of every image as a third element; a mixed image has a mixed weight.
        drop_remainder: Whether to drop an incomplete last batch; the dropped images differ from
            epoch to epoch.
        repeats: How often an epoch reads the images, for very small data sets.
        steps: Number of steps after which an epoch ends early.
        shuffle_buffer: Size of the shuffle buffer, for images that are read sequentially.
        worker: Index and number of workers, if `tf.distribute` is not used.

    Returns:
        A `tf.data.Dataset` of pairs of float32 images `(B, H, W, C)` and labels (and weights), or
        under a strategy of several replicas a distributed dataset.

    Raises:
        ValueError: If the classes or the augmentation do not fit the model, or there are fewer
            images than a batch.

    Example:

    >>> train = keras_vit.data.train_batches(images, model, 512)  # doctest: +SKIP
    >>> model.fit(train, epochs=10)  # doctest: +SKIP
    """
    chosen = augmentation or Augmentation()
    if one_hot is None:
        one_hot = not takes_integers(model)
    one_hot = one_hot or images.task != "single_label"
    transform = transform_of(model, image_size)
    _check_classes(images, transform)
    _check_augmentation(chosen, transform, one_hot, images.task)
    chosen_weights = _check_weights(class_weights, images)

    def prepare(row: tuple[Any, Any], seed: Any) -> tuple[Any, Any, Any]:
        item, label = row
        pixels = train_transform(images.load(item), chosen, transform, seed, images.max_pixels)
        return pixels if chosen.mixes else in_range(transform, pixels), label, seed

    def finish(pixels: Any, labels: Any, seeds: Any) -> tuple[Any, ...]:
        labels = _checked(labels, images)
        weights = None if class_weights is None else tf.gather(chosen_weights, labels)
        if one_hot:
            labels = _smooth(_vectors(labels, images), chosen.label_smoothing, images.task)
        if chosen.mixes:
            parts = [labels] if weights is None else [labels, weights[:, None]]
            pixels, mixed = _mix(pixels, tf.concat(parts, -1), chosen, seeds[0] + _MIXING)
            pixels, labels = in_range(transform, pixels), mixed[:, : images.num_classes]
            weights = None if weights is None else mixed[:, -1]
        return (pixels, labels) if weights is None else (pixels, labels, weights)

    return make_batches(
        *(images, prepare, finish, batch_size, seed),
        drop_remainder=drop_remainder,
        repeats=repeats,
        steps=steps,
        shuffle_buffer=shuffle_buffer,
        worker=worker,
        seeds_order=False,
        advice=", drop_remainder=False for one small batch, or `repeats` for several epochs in one",
    )


def eval_batches(
    images: ImageSet,
    model: keras.Model | ViTConfig | ResNetConfig | InputTransform,
    batch_size: int,
    *,
    image_size: int | tuple[int, int] | None = None,
    one_hot: bool | None = None,
    cache: bool | str | os.PathLike[str] = False,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Makes evaluation batches: every image once, in order, transformed by `eval_transform`.

    Args:
        images: As for `train_batches`.
        model: As for `train_batches`.
        batch_size: Images per step, of all workers together.
        image_size: As for `train_batches`.
        one_hot: As for `train_batches`.
        cache: `True` caches the batches in memory; a path caches them in files with that prefix and
            a digest of images, labels, preprocessing and batch size. Other batches therefore get
            other files, and remove none. After a kill, the files are written again.
        worker: As for `train_batches`.

    Returns:
        As for `train_batches`.

    Raises:
        ValueError: If the classes do not fit the model.
    """
    check_positive("batch_size", batch_size)
    transform = transform_of(model, image_size)
    _check_classes(images, transform)
    is_one_hot = not takes_integers(model) if one_hot is None else one_hot
    path = None if isinstance(cache, bool) else cache or None
    digest = "" if path is None else digest_batches(images, transform, is_one_hot)

    def read(plan: EpochPlan) -> tf.data.Dataset:
        batches = read_epochs(plan, lambda part, _: images.read(part, None, 0), prepare, 0, finish)
        if path is not None:
            batches = cache_batches(batches, path, digest, plan)
        return batches.cache() if cache is True else batches

    def prepare(item: Any, label: Any) -> tuple[Any, Any]:
        return model_input(transform, images.load(item), images.max_pixels), label

    def finish(pixels: Any, labels: Any) -> tuple[Any, Any]:
        labels = _checked(labels, images)
        return pixels, _vectors(labels, images) if is_one_hot else labels

    plan = functools.partial(EpochPlan, images.num_images, batch_size)
    return distribute(plan, read, worker)


_MIXING = (0, 1 << 48)  # added to the first image's seed; greater than all positions


@tf.autograph.experimental.do_not_convert
def train_transform(
    image: Any, chosen: Augmentation, transform: InputTransform, seed: Any, max_pixels: int
) -> Any:
    """Decodes, crops and augments a training image, to float32 pixels in [0, 255]."""
    crop, flip, augment, erasing = tf.unstack(tf.random.split(seed, 4))
    if chosen.crop == "none":
        pixels = decode_for(transform, image, max_pixels)
        pixels = eval_transform(pixels, transform.preprocessing, transform.image_size)
    else:
        draw = inception_crop if chosen.crop == "inception" else resized_crop
        pixels = draw(image, chosen, transform, crop, max_pixels)
    if chosen.flip:
        pixels = tf.image.stateless_random_flip_left_right(pixels, flip)
    if chosen.rand_augment is not None:  # on clipped uint8, as in big_vision
        whole = tf.cast(tf.clip_by_value(pixels, 0.0, 255.0), tf.uint8)
        pixels = tf.cast(rand_augment(whole, *chosen.rand_augment, augment), tf.float32)
    if chosen.erasing:
        mean, std = transform.preprocessing.per_channel(transform.channels)
        pixels = erase(pixels, chosen.erasing, mean, std, erasing)
    return tf.ensure_shape(pixels, (*transform.image_size, transform.channels))


@tf.autograph.experimental.do_not_convert
def _mix(pixels: Any, labels: Any, chosen: Augmentation, seed: Any) -> tuple[Any, Any]:
    if chosen.mixing == "official":
        return mix_images(pixels, labels, chosen.mixup, seed)
    return mix_or_cut(pixels, labels, chosen.mixup, chosen.cutmix, seed)


@tf.autograph.experimental.do_not_convert
def _vectors(labels: Any, images: ImageSet) -> Any:
    """Labels as float32 vectors: one-hot for classes."""
    return tf.one_hot(labels, images.num_classes) if images.task == "single_label" else labels


@tf.autograph.experimental.do_not_convert
def _smooth(labels: Any, smoothing: float, task: str) -> Any:
    """Label smoothing as in Keras's categorical or, for several labels, binary cross-entropy."""
    choices = labels.shape[-1] if task == "single_label" else 2
    return labels * (1 - smoothing) + smoothing / choices if smoothing else labels


@tf.autograph.experimental.do_not_convert
def _checked(labels: Any, images: ImageSet) -> Any:
    """Returns the labels, of classes with an assertion that all are in range."""
    if images.task != "single_label":
        return labels
    message = f"A label of {images.name} is not from 0 to {images.num_classes - 1}."
    are_classes = tf.reduce_all((labels >= 0) & (labels < images.num_classes))
    with tf.control_dependencies([tf.debugging.Assert(are_classes, [message, labels])]):
        return tf.identity(labels)


def _check_classes(images: ImageSet, transform: InputTransform) -> None:
    adapted = f"`keras_vit.adapt_model(model, classes={images.num_classes})`"
    images.check_classes(transform.classes, f", or adapt it: {adapted}")


def _check_weights(class_weights: Sequence[float] | None, images: ImageSet) -> Any:
    if class_weights is None:
        return None
    if images.task != "single_label":
        raise ValueError(
            f"`class_weights` need one class for each image, and {images.name} has "
            f"task={images.task!r}."
        )
    return tf.constant(images.check_class_weights(class_weights))


def _check_augmentation(
    chosen: Augmentation, transform: InputTransform, one_hot: bool, task: str
) -> None:
    if task == "regression" and chosen.label_smoothing:
        raise ValueError(
            "Label smoothing is for classes, and the images have regression targets. Received: "
            f"label_smoothing={chosen.label_smoothing}. Set it to 0."
        )
    if not one_hot and (chosen.mixes or chosen.label_smoothing):
        raise ValueError(
            "Mixing and smoothing make labels of several classes, which integers cannot express. "
            "Received: integer labels (one_hot=False, or a model compiled with a sparse loss). "
            "Compile with `CategoricalCrossentropy(from_logits=True)`, or use an `Augmentation` "
            "without them."
        )
    if chosen.rand_augment is not None and transform.channels != 3:
        raise ValueError(
            f"RandAugment needs images of 3 channels. The model takes {transform.channels}: use an "
            "`Augmentation` without it."
        )
    resized, size = chosen.resize_size, transform.image_size
    if chosen.crop in ("resize_small", "resize") and resized and np.less(resized, size).any():
        raise ValueError(
            "Random crops of the model's image size need images of that size or more. Received: "
            f"resize_size={resized}, image_size={size}. Set `resize_size` too: to "
            f"{default_resize_size(size)}, or to `None`, which means the same."
        )
