"""Images with labels of any kind (classes, masks, boxes), and the batches that are made of them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive, short_repr
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.epochs import EpochPlan, distribute, number_for, read_epochs
from keras_vit.data.shards import Shards, read_part
from keras_vit.data.strata import hold_out
from keras_vit.errors import listed, printable

# Reads a part of some of the records. Arguments: positions of the first of these records and after
# the last, the part of them, number of the epoch or `None`, shuffle buffer.
Reader = Callable[[tuple[int, int], tuple[int, int], Any, int], tf.data.Dataset]
ITEM_SEPARATOR = "\0"  # of path and name of an image in a file of several; no path holds it
_Set = TypeVar("_Set", bound="LabelledSet")
_LISTED = 12  # classes that a text names one by one
SHUFFLE_BUFFER = 50_000  # as in the official code; encoded images, or pixels as they are stored


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledSet:
    """Images with labels: the base of `ImageSet`, `MaskSet` and `BoxSet`.

    Args:
        name: Name of the source, for error messages.
        class_names: Names of the classes, in the order of the labels.
        rows: Arrays with a row for every image, such as its path and its label; of records their
            positions, one after the other.
        load: Makes an image of its row; see the classes.
        max_pixels: Height times width above which an encoded image is refused.
        records: Reads records one after the other.
    """

    name: str
    class_names: tuple[str, ...]
    rows: tuple[np.ndarray, ...]
    load: Callable[..., Any]
    max_pixels: int = MAX_PIXELS
    records: Reader | None = None

    __repr__ = short_repr

    @property
    def num_images(self) -> int:
        """Number of images."""
        return len(self.rows[0])

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def among(self) -> tuple[int, int]:
        """Positions, among all records, of the first of these images and after the last."""
        return int(self.rows[0][0]), int(self.rows[0][-1]) + 1

    @functools.cached_property
    def tensors(self) -> tuple[Any, ...]:
        """The rows as tensors."""
        with tf.init_scope():
            return tuple(map(to_tensor, self.rows))

    def order(self, number: Any) -> Any:
        """Positions of the images in the epoch of this number; `None` is the stored order."""
        order = tf.range(self.num_images, dtype=tf.int64)
        if number is None:
            return order
        return tf.random.experimental.stateless_shuffle(order, seed=[number, 0])

    def read(self, part: tuple[int, int], number: Any, shuffle_buffer: int) -> tf.data.Dataset:
        """Reads rows of a part of the images.

        Args:
            part: Index of the first image, and of the one after the last.
            number: Number of the epoch, which decides the order; `None` is the stored order.
            shuffle_buffer: Size of the shuffle buffer of records; 0 takes the default.

        Returns:
            A dataset of tuples.
        """
        if self.records is not None:
            return self.records(self.among, part, number, shuffle_buffer)
        positions = tf.data.Dataset.from_tensor_slices(self.order(number)[part[0] : part[1]])
        tensors = self.tensors
        return positions.map(lambda position: tuple(each[position] for each in tensors))

    def subset(self: _Set, positions: np.ndarray) -> _Set:
        """The images at some positions; those of records follow one another."""
        return dataclasses.replace(self, rows=tuple(each[positions] for each in self.rows))

    @property
    def strata(self) -> tuple[str | None, np.ndarray]:
        """What `split` spreads evenly: a task as of `ImageSet` or `None`, and labels for it."""
        return None, self.rows[0]

    def split(self: _Set, share: float, seed: int = 0) -> tuple[_Set, _Set]:
        """Splits off held-out images, for example to choose hyperparameters.

        Every class has its share among them, to the nearest image: at least one image, and not all,
        of a class of two or more, and none of a class of one. Several labels, and the classes of
        boxes, have theirs as nearly as their combinations allow, and numbers are taken from ranges
        of equally many images. Images with masks or captions of their own are drawn at random.

        Args:
            share: Share of the images to hold out, in (0, 1), or their number. Of a share, the
                number follows from those of the classes; a number is exact.
            seed: Random seed of the choice, which is the same on every platform.

        Returns:
            The images to train on, and the held-out images; they do not overlap. For TFRecords and
            TFDS, the last images are held out, as by slices such as `"train[98%:]"`: shuffle the
            images before you write them.

        Raises:
            ValueError: If one of the two parts would be empty.
        """
        count, every = self.num_images, np.arange(self.num_images)
        if not 0 < share < count:
            held_out = every[: max(0, int(share))]
        elif self.records is None:
            held_out = hold_out(*self.strata, share, seed)
        else:
            held_out = every[count - (round(share * count) if share < 1 else int(share)) :]
        if not 0 < len(held_out) < count:
            raise ValueError(
                f"{self.name} has {count} images, of which some must be held out and some left. "
                f"Received: share={share}, which is {len(held_out)} of them."
            )
        return self.subset(np.setdiff1d(every, held_out)), self.subset(held_out)

    def check_classes(self, count: int | None, advice: str = "") -> None:
        """Raises ValueError if a model has another number of classes, unless it is not known.

        Args:
            count: Classes of the model.
            advice: What else to do than to build the model for these classes.
        """
        if count not in (None, self.num_classes):
            raise ValueError(
                f"{self.name} has {self.num_classes} classes, the model {count}. Build it with "
                f"classes={self.num_classes}{advice}."
            )

    def check_class_weights(self, class_weights: Sequence[float]) -> np.ndarray:
        """Returns weights of the classes as float32, or raises ValueError if they do not fit."""
        weights = np.asarray(class_weights, "float32")
        if weights.shape != (self.num_classes,) or not (weights >= 0).all():
            raise ValueError(
                f"`class_weights` must be {self.num_classes} numbers of 0 or more, one for every "
                f"class of {self.name}. Received: shape {weights.shape}, {class_weights}."
            )
        return weights

    def name_of(self, index: int) -> str:
        """The image at `index` for a message: its file, or its number."""
        is_file = self.rows[0].dtype == object
        return item_name(str(self.rows[0][index])) if is_file else f"image {index} of {self.name}"


def describe_held_out(training: LabelledSet, held_out: LabelledSet) -> str:
    """Says how many images of each class `split` held out, or how it chose them."""
    total = training.num_images + held_out.num_images
    chosen = f"{held_out.num_images:,} of {total:,} images"
    if training.records is not None:
        return f"{chosen}, the last ones in the stored order"
    task, labels = training.strata
    if task in (None, "regression"):
        how = "drawn at random" if task is None else "from all ranges of the numbers"
        return f"{chosen}, {how}"
    left, out = (
        np.bincount(labels, minlength=training.num_classes) if labels.ndim == 1 else labels.sum(0)
        for labels in (labels, held_out.strata[1])
    )
    rows = list(zip(map(printable, training.class_names), out, out + left, strict=True))
    if len(rows) <= _LISTED:
        return ", ".join(f"{name} {count:,.0f} of {size:,.0f}" for name, count, size in rows)
    none = [f"{name} ({size:,.0f})" for name, count, size in rows if not count]
    text = f"{chosen}, {out.min():,.0f} to {out.max():,.0f} of each of {len(rows):,} classes"
    return f"{text}; none of {listed(none, _LISTED)}" if none else text


def item_name(item: str) -> str:
    """The path of an image for messages, or of one of several in a file `"path:name"`."""
    return ":".join(item.split(ITEM_SEPARATOR)[:2])


def make_batches(
    images: LabelledSet,
    prepare: Callable[..., Any],
    finish: Callable[..., Any] | None,
    batch_size: int,
    seed: int = 0,
    *,
    training: bool = True,
    drop_remainder: bool = True,
    repeats: int = 1,
    steps: int | None = None,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    worker: tuple[int, int] | None = None,
    seeds_order: bool = True,
    advice: str = "",
) -> Any:
    """Makes batches in which every image has a random seed of its own in every epoch.

    Args:
        images: The images.
        prepare: Maps a row and its seed, two int64, to the elements of a batch.
        finish: As for `read_epochs`.
        batch_size: Images per step, of all workers together.
        seed: Random seed.
        training: Whether every epoch has its own order.
        drop_remainder: As for `EpochPlan`, like the next two.
        repeats: See there.
        steps: See there.
        shuffle_buffer: Size of the shuffle buffer of records.
        worker: As for `distribute`.
        seeds_order: Whether the order of an epoch depends on `seed` besides its number, which does.
        advice: What else to do where there are fewer images than a batch.

    Returns:
        As of `distribute`.

    Raises:
        ValueError: If there are fewer images than a batch, and an incomplete one is dropped.
    """
    check_positive("batch_size", batch_size)
    check_positive("shuffle_buffer", shuffle_buffer)
    if drop_remainder and images.num_images * repeats < batch_size:
        raise ValueError(
            f"{images.name} has {images.num_images} images, fewer than a batch of {batch_size}. "
            f"Take batch_size={images.num_images} or less{advice}."
        )

    def read_rows(part: tuple[int, int], number: Any) -> tf.data.Dataset:
        # The seed of an image follows from the call's seed, the epoch and the position in it.
        epoch_seed = number_for(number, seed)
        epoch = epoch_seed if seeds_order else number
        rows = images.read(part, epoch if training else None, shuffle_buffer)
        return rows.enumerate(part[0]).map(lambda index, row: (row, tf.stack((epoch_seed, index))))

    plan = functools.partial(
        EpochPlan,
        *(images.num_images, batch_size),
        drop_remainder=drop_remainder,
        repeats=repeats,
        max_steps=steps,
    )
    return distribute(plan, lambda own: read_epochs(own, read_rows, prepare, seed, finish), worker)


def record_reader(shards: Shards, parse: Callable[..., Any]) -> Reader:
    """A function that reads records of files, for `LabelledSet.records`.

    Args:
        shards: The files.
        parse: Maps a record, or its parts, to what `LabelledSet.load` takes.
    """

    def read(
        among: tuple[int, int], part: tuple[int, int], number: Any, shuffle_buffer: int
    ) -> tf.data.Dataset:
        selected = shards.slice(*among)
        return read_part(selected, part, number, shuffle_buffer or SHUFFLE_BUFFER).map(parse)

    return read


def to_tensor(value: Any) -> Any:
    """`tf.constant` of an array or an item of one, also of file names that are no UTF-8."""
    if isinstance(value, str):
        return tf.constant(os.fsencode(value))
    is_objects = isinstance(value, np.ndarray) and value.dtype == object
    return tf.constant([os.fsencode(item) for item in value] if is_objects else value)
