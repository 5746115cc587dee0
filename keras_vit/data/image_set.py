"""Labelled images from any source, for `train_batches` and `eval_batches`.

Images with random access (files of a folder, arrays) are shuffled as a whole; images that are read
sequentially (TFRecords, TFDS) are shuffled through a buffer.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice, short_repr
from keras_vit.config import TASKS
from keras_vit.data.array_checks import check_labels, check_values, check_vectors
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.shards import Shards, read_part
from keras_vit.errors import printable

# Reads a part of some of the records. Arguments: positions of the first of these records and after
# the last, the part of them, number of the epoch or `None`, shuffle buffer.
Reader = Callable[[tuple[int, int], tuple[int, int], Any, int], tf.data.Dataset]
SHUFFLE_BUFFER = 50_000  # as in the official code; encoded images, or pixels as they are stored


@dataclasses.dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images, made by `read_folder`, `read_csv`, `read_arrays`, `read_tfds` and others.

    Args:
        name: Name of the source, for error messages.
        num_images: Number of images.
        class_names: Names of the classes, in the order of the labels; of a regression, of the
            targets.
        read: Reads a part of the images as a `tf.data.Dataset` of pairs: an input of `load`, and an
            integer label. Arguments: the part (index of the first image, and of the one after the
            last), the number of the epoch or `None` for the stored order, and the size of the
            shuffle buffer. Labels of other tasks than `"single_label"` are float32 vectors.
        load: Maps the first element of a pair to an encoded image, or pixels `(h, w, C)`.
        hold_out: Splits off images. Arguments: their number, and a seed. Returns the remaining
            images and those held out.
        skipped: Files that were skipped, each with the reason.
        max_pixels: Height times width above which an encoded image is refused.
        labels: Labels in the stored order, where they are known before the images are read.
        draw: Makes images that training draws with replacement, with a probability that is
            proportional to the given weight of every image.
        task: `"single_label"` (one class for each image), `"multi_label"` (any number of them, a
            vector of 0 and 1) or `"regression"` (a vector of numbers).
        weights: Weights with which training draws images, one for each; `None` reads each once.
        shards: The files of `read_records`, which stored features and batches know them by.
        items: Inputs of `load` in the stored order, where they are known before they are read.
    """

    name: str
    num_images: int
    class_names: tuple[str, ...]
    read: Callable[[tuple[int, int], Any, int], tf.data.Dataset]
    load: Callable[[Any], Any]
    hold_out: Callable[[int, int], tuple[ImageSet, ImageSet]]
    skipped: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    labels: np.ndarray | None = None
    draw: Callable[[np.ndarray], ImageSet] | None = None
    task: str = "single_label"
    weights: np.ndarray | None = None
    shards: Shards | None = None
    items: np.ndarray | None = dataclasses.field(default=None, repr=False)

    __repr__ = short_repr

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def file_names(self) -> tuple[str, ...]:
        """Lists the paths of the image files in their order, `"image 0"`, ... without files."""
        if self.load is not tf.io.read_file:
            return tuple(f"image {index}" for index in range(self.num_images))
        assert self.items is not None  # files are always known
        return tuple(map(os.fsdecode, self.items))

    def spread(self, count: int) -> tf.data.Dataset:
        """Pairs as of `read`: at most `count`, spread evenly over the stored order."""
        if count >= self.num_images:
            return self.read((0, self.num_images), None, 0)
        positions = np.arange(count) * self.num_images // count
        places = tf.data.Dataset.from_tensor_slices(positions)
        return places.flat_map(lambda place: self.read((place, place + 1), None, 0))

    def split(self, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """Splits off held-out images, for example to choose hyperparameters.

        Args:
            share: Share of the images to hold out, in (0, 1), or their number.
            seed: Random seed of the choice.

        Returns:
            The images to train on, and the held-out images; they do not overlap. For TFRecords and
            TFDS, the last images are held out, as by slices such as `"train[98%:]"`.

        Raises:
            ValueError: If one of the two parts would be empty.
        """
        count = round(share * self.num_images) if 0 < share < 1 else int(share)
        if not 0 < count < self.num_images:
            raise ValueError(
                f"{self.name} has {self.num_images} images, of which some must be held out and "
                f"some left. Received: share={share}, which is {count} of them."
            )
        rest, held_out = self.hold_out(count, seed)
        rest = dataclasses.replace(rest, max_pixels=self.max_pixels, skipped=self.skipped)
        return rest, dataclasses.replace(held_out, max_pixels=self.max_pixels)

    def class_weights(self) -> np.ndarray:
        """Weights that make all classes count alike: `images / (classes * images of the class)`.

        Returns:
            float64 array of shape `(K,)`, 0 for a class without images.

        Raises:
            ValueError: If labels are not known before the images are read, or images do not have
                one class each.
        """
        if self.task != "single_label":
            raise ValueError(
                f"Class weights and balanced sampling need one class for each image. {self.name} "
                f"has task={self.task!r}."
            )
        if self.labels is None:
            raise ValueError(
                f"The images of {self.name} are read one after the other, so their classes are not "
                "known. Read them into memory first: `images.in_memory()`."
            )
        counts = np.bincount(self.labels, minlength=self.num_classes)
        return np.where(counts, self.num_images / (self.num_classes * np.maximum(counts, 1)), 0.0)

    def balanced(self) -> ImageSet:
        """The same images, drawn in training so that all classes are equally frequent.

        An epoch has as many images as before, drawn with replacement, as PyTorch's
        `WeightedRandomSampler` does: images of rare classes several times, others not at all.
        Evaluation reads every image once, as before.

        Raises:
            ValueError: If the images are read sequentially, as those of TFRecords and TFDS.
        """
        weights = self.class_weights()
        assert self.labels is not None and self.draw is not None
        drawn = self.draw(weights[self.labels])
        return dataclasses.replace(drawn, max_pixels=self.max_pixels)

    def in_memory(self) -> ImageSet:
        """Reads all images into memory, in their stored form: JPEGs stay JPEGs."""
        images, labels = [], []
        pairs = self.read((0, self.num_images), None, 0)
        pairs = pairs.map(lambda item, label: (self.load(item), label), tf.data.AUTOTUNE)
        for image, label in pairs.as_numpy_iterator():
            images.append(image)
            labels.append(label)
        if not isinstance(images[0], bytes) and len({image.shape for image in images}) > 1:
            raise ValueError(
                f"The images of {self.name} are stored as pixels and differ in size, so they make "
                "no array. Store them encoded, or let `tf.data` cache them."
            )
        kept = np.asarray(images, object if isinstance(images[0], bytes) else None)
        y = np.asarray(labels)
        own = (self.class_names, _as_it_is, self.skipped, self.weights, self.task)
        return dataclasses.replace(indexed(self.name, kept, y, *own), max_pixels=self.max_pixels)


def read_arrays(
    images: Any,
    labels: Any,
    class_names: Sequence[str] | None = None,
    name: str = "the arrays",
    task: str = "single_label",
) -> ImageSet:
    """Makes an `ImageSet` of arrays.

    Args:
        images: Array of shape `(B, H, W, C)` with values in [0, 255].
        labels: Integers of shape `(B,)`, from 0 to the number of classes - 1; for other tasks
            numbers of shape `(B, K)`.
        class_names: Names of the classes or targets; `None` takes numbers from 0.
        name: Name of the source, for error messages.
        task: `"single_label"`, `"multi_label"` (labels of 0 and 1) or `"regression"`.

    Returns:
        An `ImageSet`.

    Raises:
        ValueError: If there are no images, shapes or lengths do not fit, values are not in
            [0, 255], or labels are out of range.

    Example:

    >>> import keras, keras_vit
    >>> (x, y), _ = keras.datasets.cifar10.load_data()  # doctest: +SKIP
    >>> train = keras_vit.read_arrays(x, y[:, 0])  # doctest: +SKIP
    """
    x, y = np.asarray(images), np.asarray(labels)
    if x.ndim != 4 or not len(x):
        raise ValueError(
            "`images` must be an array of shape (images, height, width, channels) with at least "
            f"one image. Received: shape {x.shape}."
        )
    check_values(x)
    x = x if x.dtype == "uint8" else x.astype("float32")
    check_choice("task", task, TASKS)
    if task != "single_label":
        check_vectors(y, len(x), task, class_names)
        names = tuple(map(str, range(y.shape[1])) if class_names is None else class_names)
        return indexed(name, x, y, names, _as_it_is, task=task)
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be one integer for each of the {len(x)} images. Received: {y.dtype} of "
            f"shape {y.shape}."
        )
    names = tuple(map(str, range(int(y.max()) + 1)) if class_names is None else class_names)
    check_labels(y, len(names), name)
    return indexed(name, x, y, names, _as_it_is)


def read_records(
    shards: Shards,
    parse: Callable[[Any], tuple[Any, Any]],
    class_names: Sequence[str],
    name: str = "the records",
) -> ImageSet:
    """Makes an `ImageSet` of files of records, such as TFRecords.

    Args:
        shards: Files of records, as from `find_shards`.
        parse: Maps a record to an encoded image or its pixels, and an integer label.
        class_names: Names of the classes, in the order of the labels.
        name: Name of the source, for error messages. Stored features and cached batches tell sets
            apart by their name and files: the same files with another `parse` need another name.

    Returns:
        An `ImageSet`.
    """

    def read(
        among: tuple[int, int], part: tuple[int, int], number: Any, shuffle_buffer: int
    ) -> tf.data.Dataset:
        own = shards.slice(*among)
        records = read_part(own, part, number, shuffle_buffer or SHUFFLE_BUFFER)
        return records.map(lambda record: _int_label(*parse(record)))

    return sequential(name, shards.num_records, tuple(class_names), read, shards=shards)


def indexed(
    name: str,
    items: np.ndarray,
    labels: np.ndarray,
    class_names: tuple[str, ...],
    load: Callable[[Any], Any],
    skipped: tuple[str, ...] = (),
    weights: np.ndarray | None = None,
    task: str = "single_label",
) -> ImageSet:
    """Makes an `ImageSet` with random access: `items` are paths, bytes or pixels.

    With `weights`, training draws images with replacement, by these probabilities.
    """
    held = to_tensor(items)
    held_labels = tf.constant(labels, tf.int64 if task == "single_label" else tf.float32)

    def read(part: tuple[int, int], number: Any, shuffle_buffer: int) -> tf.data.Dataset:
        order = tf.range(len(labels), dtype=tf.int64)
        if number is not None and weights is not None:
            chances = tf.math.log(tf.constant(weights / weights.sum(), tf.float32))[None]
            order = tf.random.stateless_categorical(chances, len(labels), [number, 0])[0]
        elif number is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed=[number, 0])
        positions = tf.data.Dataset.from_tensor_slices(order[part[0] : part[1]])
        return positions.map(lambda i: (held[i], held_labels[i]))

    def hold_out(count: int, seed: int) -> tuple[ImageSet, ImageSet]:
        order = np.random.default_rng(seed).permutation(len(labels))
        rest, held_out = np.sort(order[count:]), np.sort(order[:count])
        return choose(rest), choose(held_out)

    def choose(positions: np.ndarray) -> ImageSet:
        own = None if weights is None else weights[positions]
        chosen = (items[positions], labels[positions])
        return indexed(name, *chosen, class_names, load, weights=own, task=task)

    def draw(weights: np.ndarray) -> ImageSet:
        return indexed(name, items, labels, class_names, load, skipped, weights)

    found = ImageSet(name, len(labels), class_names, read, load, hold_out, skipped)
    return dataclasses.replace(
        found, labels=labels, draw=draw, task=task, weights=weights, items=items
    )


def to_tensor(value: Any) -> Any:
    """`tf.constant` of an array or an item of one, also of file names that are no UTF-8."""
    if isinstance(value, str):
        return tf.constant(os.fsencode(value))
    is_objects = isinstance(value, np.ndarray) and value.dtype == object
    return tf.constant([os.fsencode(item) for item in value] if is_objects else value)


def sequential(
    name: str,
    num_images: int,
    class_names: tuple[str, ...],
    read: Reader,
    first: int | None = None,
    load: Callable[[Any], Any] | None = None,
    shards: Shards | None = None,
) -> ImageSet:
    """Makes an `ImageSet` that is read sequentially; its last images are held out."""
    begin = first or 0

    def read_own(part: tuple[int, int], number: Any, shuffle_buffer: int) -> tf.data.Dataset:
        return read((begin, begin + num_images), part, number, shuffle_buffer)

    def hold_out(count: int, seed: int) -> tuple[ImageSet, ImageSet]:
        rest = num_images - count
        return (
            sequential(name, rest, class_names, read, begin, load, shards),
            sequential(name, count, class_names, read, begin + rest, load, shards),
        )

    # A feature store knows the images by their name: a part of them needs one of its own.
    title = name if first is None else f"{name}, records {begin} to {begin + num_images - 1}"
    found = ImageSet(title, num_images, class_names, read_own, load or _as_it_is, hold_out)
    return dataclasses.replace(found, shards=shards)


def check_same_classes(
    class_names: Sequence[str], images: ImageSet, task: str = "single_label"
) -> None:
    """Checks that images have the classes that a model was trained on, in the same order.

    Classes without names are numbers: of these only the count can be checked.

    Args:
        class_names: Class names of the training images.
        images: Images to validate or test on.
        task: What the labels of the training images are.

    Raises:
        ValueError: If names, their order or the task differ. The message lists the differences.
    """
    if images.task != task:
        raise ValueError(
            f"{images.name} has task={images.task!r}, and the training images {task!r}. Labels "
            "would mean other things. Read both with the same `task`."
        )
    expected, found = tuple(class_names), images.class_names
    numbers = tuple(map(str, range(len(expected))))
    if found == expected or (len(found) == len(expected) and numbers in (expected, found)):
        return
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    problems = [f"without {', '.join(map(printable, missing[:10]))}"] if missing else []
    problems += [f"with {', '.join(map(printable, unknown[:10]))}"] if unknown else []
    raise ValueError(
        f"{images.name} has other classes than the training images: "
        f"{'; '.join(problems) or 'the same names in another order'}. Labels would mean other "
        "classes. Read the images with the class names of the training images: "
        "`read_folder(folder, class_names=training.class_names)`."
    )


def _int_label(image: Any, label: Any) -> tuple[Any, Any]:
    return image, tf.cast(label, tf.int64)


def _as_it_is(image: Any) -> Any:
    return image
