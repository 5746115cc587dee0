"""Images with labels -> batches for `fit`, `evaluate` and `predict`: one order of steps.

    1 this worker's part of a pass, shuffled    5 RandAugment           (uint8)
    2 read, if it is a file                     6 random erasing
    3 decode with crop, resize   (float32)      7 batch, one-hot labels, smoothing
    4 mirror                                    8 mixup or CutMix
                                                9 value range, where the model does not; prefetch

Evaluation does 1 without shuffling, 2, `eval_view`, 7 and 9. The official code normalises before it
mixes: the same, for both are linear.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import tensorflow as tf

from keras_vit.checks import check_positive, pair
from keras_vit.config import Preprocessing
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.crops import inception_crop, random_flip, resized_crop
from keras_vit.data.decode import decode
from keras_vit.data.epochs import Plan, distribute, read_passes
from keras_vit.data.image_set import SHUFFLE_BUFFER, ImageSet
from keras_vit.data.mixing import erase, mix_images, mix_or_cut
from keras_vit.data.rand_augment import rand_augment
from keras_vit.data.transforms import eval_view, normalize


@dataclasses.dataclass(frozen=True)
class View:
    """What a model reads: the size of its images, their channels and their values.

    Args:
        image_size: Pixels along (height, width).
        preprocessing: From pixels to the model's range, and how images are resized for evaluation.
        normalize: Whether the batches are in the model's range; otherwise in [0, 255].
        channels: 1 or 3.
        classes: Outputs of the model, or `None` if it has no head.
    """

    image_size: tuple[int, int]
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    normalize: bool = False
    channels: int = 3
    classes: int | None = None


def view_of(model: Any, image_size: int | tuple[int, int] | None = None) -> View:
    """What a model reads.

    Args:
        model: A model of this package or its configuration, one of the user's own that takes pixels
            in [0, 255], or a `View`, which stays as it is.
        image_size: Pixels along (height, width), for a model of images of any size.

    Returns:
        A `View`.

    Raises:
        ValueError: If the size is not known, or the model takes another.
    """
    if isinstance(model, View):
        return model
    config = getattr(model, "config", model)
    if hasattr(config, "preprocessing"):
        *size, channels = config.input_shape
        own = {"preprocessing": config.preprocessing, "classes": config.classes}
        normalizes = not config.include_preprocessing
    else:  # built on one of ours, or the user's own
        *size, channels = model.inputs[0].shape[1:]
        own, normalizes = {}, False
    if image_size is not None:
        wanted = pair("image_size", image_size)
        if None not in size and tuple(size) != wanted:
            raise ValueError(
                f"The model takes images of {tuple(size)} pixels. Received: image_size={wanted}. "
                "Build it for that size: `create_model(..., input_shape=(height, width, 3))`."
            )
        size = list(wanted)
    if None in size:
        raise ValueError("The model takes images of any size. Pass `image_size`.")
    return View(tuple(size), normalize=normalizes, channels=channels, **own)


def train_batches(
    images: ImageSet,
    model: Any,
    batch_size: int,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    *,
    image_size: int | tuple[int, int] | None = None,
    one_hot: bool = True,
    drop_remainder: bool = True,
    repeats: int = 1,
    steps: int | None = None,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Batches to train a model on: shuffled, augmented, in the model's range.

    Every pass has its own order, crops and mixtures. They follow from the seed and the number of
    the pass, whatever runs in parallel, so runs repeat, and `ResumeTraining` goes on with the same
    pixels. Inside `strategy.scope()` every worker reads a part of its own, see `read_shards`.

    Args:
        images: As from `read_folder`, `read_tfds`, `read_records` or `read_arrays`.
        model: Whose images these are to be, see `view_of`.
        batch_size: Images of one step, of all workers together.
        augmentation: `None` is the paper's: Inception crop and mirroring.
        seed: What all random choices follow from.
        image_size: Pixels along (height, width), for a model of images of any size.
        one_hot: Whether labels are float32 of shape `(B, K)`; otherwise integers of shape `(B,)`,
            which know neither smoothing nor mixing.
        drop_remainder: Whether to leave out what does not fill a last batch, other images in every
            pass.
        repeats: How often a pass goes through the images, for very small sets.
        steps: Steps after which a pass ends early.
        shuffle_buffer: Images to draw from where they can only be read one after the other.
        worker: Index and number of workers where `tf.distribute` is not what joins them.

    Returns:
        A `tf.data.Dataset` of pairs of float32 images `(B, H, W, C)` and labels, or under a
        strategy of several replicas its distributed form.

    Raises:
        ValueError: If the classes do not fit the model, or the images make no batch.

    Example:

    >>> train = keras_vit.data.train_batches(images, model, 512)  # doctest: +SKIP
    >>> model.fit(train, epochs=10)  # doctest: +SKIP
    """
    chosen = augmentation or Augmentation()
    view = _check(images, view_of(model, image_size), batch_size)
    _check_augmentation(chosen, view, one_hot)
    if drop_remainder and images.num_images * repeats < batch_size:
        raise ValueError(
            f"{images.name} has {images.num_images} images, fewer than a batch of {batch_size}. "
            f"Take batch_size={images.num_images} or less, drop_remainder=False for one small "
            "batch, or `repeats` for several passes in one."
        )

    def read(index: int, workers: int, replicas: int) -> tuple[Plan, tf.data.Dataset]:
        plan = Plan(
            images.num_images, batch_size, index, workers, replicas, drop_remainder, repeats, steps
        )
        return plan, read_passes(plan, read_part, prepare, seed, finish)

    def read_part(part: tuple[int, int], number: Any) -> tf.data.Dataset:
        pairs = images.read(part, number, shuffle_buffer)
        # What an image's random choices follow from: seed and pass, and its place in the pass.
        number += seed % (1 << 30) * _MANY_PASSES
        return pairs.enumerate(part[0]).map(lambda place, pair: (*pair, tf.stack((number, place))))

    def prepare(item: Any, label: Any, own: Any) -> tuple[Any, Any, Any]:
        pixels = _train_view(images.load(item), chosen, view, own)
        return pixels if chosen.mixes else _in_range(pixels, view), label, own

    def finish(pixels: Any, labels: Any, seeds: Any) -> tuple[Any, Any]:
        labels = _checked(labels, images)
        if one_hot:
            labels = _smooth(tf.one_hot(labels, images.num_classes), chosen.label_smoothing)
        if chosen.mixes:
            pixels, labels = _mix(pixels, labels, chosen, seeds[0] + _BEHIND)
            pixels = _in_range(pixels, view)
        return pixels, labels

    return distribute(read, worker)


def eval_batches(
    images: ImageSet,
    model: Any,
    batch_size: int,
    *,
    image_size: int | tuple[int, int] | None = None,
    one_hot: bool = True,
    cache: bool | str | os.PathLike = False,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Batches to evaluate a model on: every image once, in its own order, seen by `eval_view`.

    Args:
        images: As for `train_batches`.
        model: As for `train_batches`.
        batch_size: Images of one step, of all workers together.
        image_size: As for `train_batches`.
        one_hot: As for `train_batches`.
        cache: Whether to keep what was read for the next time, in memory or in files that begin
            with a path.
        worker: As for `train_batches`.

    Returns:
        As `train_batches`.

    Raises:
        ValueError: If the classes do not fit the model.
    """
    view = _check(images, view_of(model, image_size), batch_size)

    def read(index: int, workers: int, replicas: int) -> tuple[Plan, tf.data.Dataset]:
        plan = Plan(images.num_images, batch_size, index, workers, replicas)
        batches = read_passes(plan, lambda part, _: images.read(part, None, 0), prepare, 0, finish)
        if cache:
            path = "" if cache is True else f"{os.fspath(cache)}.{index}-of-{workers}"
            batches = batches.cache(path)
        return plan, batches

    def prepare(item: Any, label: Any) -> tuple[Any, Any]:
        pixels = decode(images.load(item), view.channels)
        seen = eval_view(pixels, view.preprocessing, view.image_size)
        seen = tf.ensure_shape(seen, (*view.image_size, view.channels))
        return _in_range(seen, view), label

    def finish(pixels: Any, labels: Any) -> tuple[Any, Any]:
        labels = _checked(labels, images)
        return pixels, tf.one_hot(labels, images.num_classes) if one_hot else labels

    return distribute(read, worker)


_MANY_PASSES = 1 << 32
_BEHIND = (0, 1 << 48)  # all places


def _train_view(image: Any, chosen: Augmentation, view: View, seed: Any) -> Any:
    crop, flip, augment, erasing = tf.unstack(tf.random.split(seed, 4))
    pixels = _crop(image, chosen, view, crop)
    if chosen.flip:
        pixels = random_flip(pixels, flip)
    if chosen.rand_augment is not None:  # on whole numbers, cut off as in big_vision
        whole = tf.cast(tf.clip_by_value(pixels, 0.0, 255.0), tf.uint8)
        pixels = tf.cast(rand_augment(whole, *chosen.rand_augment, augment), tf.float32)
    if chosen.erasing:
        mean, std = view.preprocessing.per_channel(view.channels)
        pixels = erase(pixels, chosen.erasing, mean, std, erasing)
    return tf.ensure_shape(pixels, (*view.image_size, view.channels))


def _crop(image: Any, chosen: Augmentation, view: View, seed: Any) -> Any:
    size, channels = view.image_size, view.channels
    if chosen.crop == "none":
        return eval_view(decode(image, channels), view.preprocessing, size)
    if chosen.crop == "inception":
        return inception_crop(image, size, seed, chosen.area_range, chosen.interpolation, channels)
    larger = chosen.resize_size or (round(size[0] * 7 / 6), round(size[1] * 7 / 6))
    keep = chosen.crop == "resize_small"
    return resized_crop(image, larger, size, seed, keep, chosen.interpolation, channels)


def _mix(pixels: Any, labels: Any, chosen: Augmentation, seed: Any) -> tuple[Any, Any]:
    if chosen.mixing == "official":
        return mix_images(pixels, labels, chosen.mixup, seed)
    return mix_or_cut(pixels, labels, chosen.mixup, chosen.cutmix, seed)


def _smooth(labels: Any, smoothing: float) -> Any:
    """As `keras.losses.CategoricalCrossentropy(label_smoothing=...)` does."""
    return labels * (1 - smoothing) + smoothing / labels.shape[-1] if smoothing else labels


def _in_range(pixels: Any, view: View) -> Any:
    return normalize(pixels, view.preprocessing) if view.normalize else pixels


def _checked(labels: Any, images: ImageSet) -> Any:
    """Labels, once each is known to be one of a class."""
    message = f"A label of {images.name} is not from 0 to {images.num_classes - 1}."
    are_classes = tf.reduce_all((labels >= 0) & (labels < images.num_classes))
    with tf.control_dependencies([tf.debugging.Assert(are_classes, [message, labels])]):
        return tf.identity(labels)


def _check(images: ImageSet, view: View, batch_size: int) -> View:
    check_positive("batch_size", batch_size)
    if view.classes is not None and view.classes != images.num_classes:
        raise ValueError(
            f"{images.name} has {images.num_classes} classes, the model {view.classes}. Build it "
            f"with classes={images.num_classes}, or adapt it: "
            f"`keras_vit.adapt_model(model, classes={images.num_classes})`."
        )
    return view


def _check_augmentation(chosen: Augmentation, view: View, one_hot: bool) -> None:
    if not one_hot and (chosen.mixes or chosen.label_smoothing):
        raise ValueError(
            "Mixing and smoothing make labels of several classes, which integers cannot be. "
            "Received: one_hot=False. Set it to True."
        )
    if chosen.rand_augment is not None and view.channels != 3:
        raise ValueError(
            f"RandAugment needs images of 3 channels. The model takes {view.channels}: use an "
            "`Augmentation` without it."
        )
