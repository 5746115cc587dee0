"""Images with captions, and the batches of pairs that are made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import train_transform
from keras_vit.data.image_set import ImageSet
from keras_vit.data.input_transform import transform_of
from keras_vit.data.labelled_set import LabelledSet, make_batches
from keras_vit.data.transforms import in_range, model_input
from keras_vit.evaluate.feature_store import Features
from keras_vit.image_text.classifier import Templates, sentences_of
from keras_vit.image_text.towers import Towers, check_ids

CROP = Augmentation(area_range=(0.9, 1.0), flip=False)  # open_clip's


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PairSet(LabelledSet):
    """Images with captions, made by `class_captions`, `read_captions` or `read_caption_shards`.

    Args:
        name: Name of the source, for error messages.
        class_names: Names of the classes, or none.
        rows: For every image what `load` takes, its label (its class, or else a number of its own),
            and its position in `captions`.
        load: Maps the first element of a row to an encoded image, or pixels `(h, w, C)`.
        max_pixels: Height times width above which an encoded image is refused.
        records: None here.
        captions: The captions of every image, one or more.
    """

    captions: tuple[tuple[str, ...], ...] = ()

    @property
    def images(self) -> ImageSet:
        """The images without their captions, such as for `image_features`."""
        items, labels, _ = self.rows
        names = self.class_names or ("image",)
        labels = labels if self.class_names else np.zeros_like(labels)
        return ImageSet(self.name, names, (items, labels), self.load, self.max_pixels)

    @property
    def labels(self) -> np.ndarray:
        """The labels, int64 array of shape `(images,)`."""
        return self.rows[1]

    @property
    def strata(self) -> tuple[str | None, np.ndarray]:
        """As of `LabelledSet`: the classes, of `class_captions`."""
        return "single_label" if self.class_names else None, self.labels

    def texts(self) -> list[tuple[str, ...]]:
        """The captions of every image, in the order of the images."""
        return [self.captions[position] for position in self.rows[2]]


def make_pairs(
    name: str, items: np.ndarray, load: Any, captions: Iterable[Sequence[str]], max_pixels: int
) -> PairSet:
    """A `PairSet` of images without classes: each has a label of its own."""
    numbers = np.arange(len(items))
    every = tuple(map(tuple, captions))
    return PairSet(name, (), (items, numbers, numbers), load, max_pixels, captions=every)


def class_captions(images: ImageSet, templates: Templates | None = None) -> PairSet:
    """Makes captions of the names of classes: no one has written them for these images.

    All images of a class have the same captions, so train with
    `ContrastiveLoss(positives="labels")`: otherwise images of a class count as not belonging to the
    captions of others of it.

    Args:
        images: Images with one class each, of files, a table or arrays: `read_folder`, `read_csv`,
            `read_arrays`, or `in_memory()` of others.
        templates: As in `class_vectors`: sentences with `{}` for the name, or a function from a
            name to its sentences, such as attributes of the class. Underscores of a name become
            spaces.

    Returns:
        A `PairSet` whose labels are the classes.

    Raises:
        ValueError: If images have other labels, or are read sequentially; or a class has no
            sentence.
    """
    if images.task != "single_label" or images.items is None or images.labels is None:
        raise ValueError(
            "Captions of classes need images with one class each, in any order. Received: "
            f"{images.name} with task={images.task!r}"
            f"{', read one after the other: pass images.in_memory()' * (images.items is None)}."
        )
    make = sentences_of(templates)
    captions = tuple(tuple(make(name.replace("_", " "))) for name in images.class_names)
    without = [name for name, each in zip(images.class_names, captions, strict=True) if not each]
    if without:
        raise ValueError(f"`templates` gives no sentence for {', '.join(without[:5])}.")
    rows = (images.items, np.asarray(images.labels, "int64"), np.asarray(images.labels, "int64"))
    arguments = (images.name, images.class_names, rows, images.load, images.max_pixels)
    return PairSet(*arguments, captions=captions)


def pair_batches(
    pairs: PairSet,
    towers: Towers,
    batch_size: int,
    seed: int = 0,
    *,
    training: bool = True,
    augmentation: Augmentation | None = None,
    features: Features | np.ndarray | None = None,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Makes batches of images, the ids of a caption each, and labels, for `contrastive_model`.

    Training has another order and another caption of each image in every epoch, which depend on the
    seed and the number of the epoch alone, and continues where it stopped with `ResumeTraining`.
    Inside `strategy.scope()` every worker reads its own part.

    Args:
        pairs: Images with captions.
        towers: The towers, which know the size of images and have the tokenizer.
        batch_size: Pairs per step, of all workers together.
        seed: Random seed.
        training: Whether to shuffle, to augment, and to drop an incomplete last batch. Otherwise
            each image has its first caption.
        augmentation: Random transforms of training, without mixing; `None` crops at least 90 % of
            the area, as open_clip does. Flips are off, because captions say left and right.
        features: Features of `image_features`, in the order of the pairs, which take the place of
            images.
        worker: Index and number of workers, if `tf.distribute` is not used.

    Returns:
        A `tf.data.Dataset` of `((images, ids), labels)`: float32 of shape `(B, H, W, C)` (or
        features `(B, P)`), int32 of shape `(B, L)`, and int64 of shape `(B,)`; or under a strategy
        of several replicas a distributed dataset.

    Raises:
        ValueError: If there are fewer pairs than a batch, not one row of features for each, ids
            that the text tower does not take, or an augmentation that mixes images.
    """
    transform = dataclasses.replace(transform_of(towers.image), classes=None)
    chosen = augmentation or CROP
    if chosen.mixes:
        raise ValueError(
            "Mixed images have no caption. Received: an augmentation with mixup or CutMix. Pass "
            "one without."
        )
    ids, starts, counts = _tokenize(pairs, towers)
    items = pairs.rows[0] if features is None else _check_features(features, pairs)
    rows = (items, pairs.labels, starts, counts)
    table = dataclasses.replace(pairs, rows=rows)

    def prepare(row: tuple[Any, ...], own: Any) -> tuple[Any, Any]:
        item, label, start, count = row
        of_image, of_text = tf.unstack(tf.random.split(own, 2))
        if training:
            start += tf.random.stateless_uniform((), of_text, maxval=count, dtype=tf.int64)
        if features is None and training:
            item = train_transform(pairs.load(item), chosen, transform, of_image, pairs.max_pixels)
            item = in_range(transform, item)
        elif features is None:
            item = model_input(transform, pairs.load(item), pairs.max_pixels)
        return (item, tf.gather(ids, start)), label

    return make_batches(
        *(table, prepare, None, batch_size, seed),
        training=training,
        drop_remainder=training,
        worker=worker,
    )


def _tokenize(pairs: PairSet, towers: Towers) -> tuple[Any, np.ndarray, np.ndarray]:
    """Ids of all captions, and for each image the first of its own and their number."""
    used, positions = np.unique(pairs.rows[2], return_inverse=True)
    captions = [pairs.captions[position] for position in used]
    counts = np.array([len(each) for each in captions], "int64")
    ids = np.asarray(towers.tokenizer([text for each in captions for text in each]), "int32")
    check_ids(ids, towers.text_config)
    with tf.init_scope():
        table = tf.constant(ids)
    starts = np.cumsum(counts) - counts
    return table, starts[positions], counts[positions]


def _check_features(features: Features | np.ndarray, pairs: PairSet) -> np.ndarray:
    values = np.asarray(getattr(features, "values", features), "float32")
    if values.ndim != 2 or len(values) != pairs.num_images:
        raise ValueError(
            f"`features` must have the shape ({pairs.num_images}, P), a row for each image of "
            f"{pairs.name} in its order. Received: shape {values.shape}. "
            "`image_features(towers, pairs.images, folder)` computes them."
        )
    return values
