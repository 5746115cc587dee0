"""Labelled images from any source, for `train_batches` and `eval_batches`.

Images with random access (files of a folder, arrays) are shuffled as a whole; images that are read
sequentially (TFRecords, TFDS) are shuffled through a buffer.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice, check_positive
from keras_vit.config import TASKS
from keras_vit.data.array_checks import check_labels, check_values, check_vectors
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.labelled_set import LabelledSet, item_name, record_reader, to_tensor
from keras_vit.data.shards import Shards
from keras_vit.data.tiff import file_loader, load_tiff
from keras_vit.errors import listed

_MAX_COUNTED = 50_000  # records whose labels are read before training


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ImageSet(LabelledSet):
    """Labelled images, made by `read_folder`, `read_csv`, `read_arrays`, `read_tfds` and others.

    Args:
        name: Name of the source, for error messages.
        class_names: Names of the classes, in the order of the labels; of a regression, of the
            targets.
        rows: Inputs of `load`, and labels; of records their positions.
        load: Maps the first element of a row to an encoded image, or pixels `(h, w, C)`.
        max_pixels: Height times width above which an encoded image is refused.
        records: Reads records one after the other: pairs of an input of `load` and an integer.
        skipped: Files that were skipped, each with the reason.
        task: `"single_label"` (one class for each image), `"multi_label"` (any number of them, a
            vector of 0 and 1) or `"regression"` (a vector of numbers).
        weights: Weights with which training draws images with replacement, one for each; `None`
            reads each once.
        shards: The files of `read_records`, which stored features and batches know them by.
        whole: Name of all records, where these are a part of them.
        record_name: Names a record by its position among all, for `file_names`.
        counts: Images of each class among all records, where an index has them.
    """

    skipped: tuple[str, ...] = ()
    task: str = "single_label"
    weights: np.ndarray | None = None
    shards: Shards | None = None
    whole: str | None = None
    record_name: Callable[[int], str] | None = None
    counts: tuple[int, ...] | None = None

    @property
    def items(self) -> np.ndarray | None:
        """Inputs of `load` in the stored order, where they are known before they are read."""
        return None if self.records is not None else self.rows[0]

    @property
    def labels(self) -> np.ndarray | None:
        """Labels in the stored order, where they are known before the images are read."""
        return None if self.records is not None else self.rows[1]

    @property
    def strata(self) -> tuple[str | None, np.ndarray]:
        """As of `LabelledSet`: the labels."""
        return self.task, np.asarray(self.rows[1])

    @functools.cached_property
    def all_labels(self) -> np.ndarray:
        """Labels in the stored order; those of records are read, which reads their files once."""
        if self.labels is not None:
            return self.labels
        pairs = self.read((0, self.num_images), None, 0)
        return np.stack(list(pairs.map(lambda _, label: label).as_numpy_iterator()))

    @functools.cached_property
    def class_counts(self) -> np.ndarray | None:
        """Images of each class; `None` where labels are others, or of too many records to read.

        Of records with an index they are those of all records, also of a part.
        """
        is_few = self.labels is not None or self.num_images <= _MAX_COUNTED
        if self.task != "single_label" or not (self.counts or is_few):
            return None
        if self.counts:
            return np.asarray(self.counts)
        check_labels(self.all_labels, self.num_classes, self.name)
        return np.bincount(self.all_labels, minlength=self.num_classes)

    @functools.cached_property
    def tensors(self) -> tuple[Any, ...]:
        """The rows as tensors; labels are int64, of other tasks than classes float32."""
        kind = tf.int64 if self.task == "single_label" else tf.float32
        with tf.init_scope():
            return to_tensor(self.rows[0]), tf.constant(self.rows[1], kind)

    def order(self, number: Any) -> Any:
        """As of `LabelledSet`; with weights, images are drawn with replacement."""
        if number is None or self.weights is None:
            return super().order(number)
        chances = tf.math.log(tf.constant(self.weights / self.weights.sum(), tf.float32))[None]
        return tf.random.stateless_categorical(chances, self.num_images, [number, 0])[0]

    def subset(self, positions: np.ndarray) -> ImageSet:
        """The images at some positions; those of records follow one another."""
        part = super().subset(positions)
        if self.records is None:
            weights = None if self.weights is None else self.weights[positions]
            return dataclasses.replace(part, weights=weights)
        # A feature store knows the images by their name: a part of them needs one of its own.
        whole, (first, end) = self.whole or self.name, part.among
        name = f"{whole}, records {first} to {end - 1}"
        return dataclasses.replace(part, name=name, whole=whole)

    def split(self, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """As of `LabelledSet`; the images to train on keep the list of skipped files."""
        rest, held_out = super().split(share, seed)
        return rest, dataclasses.replace(held_out, skipped=())

    @property
    def are_files(self) -> bool:
        """Whether the images are files, whose paths are the first part of `rows`."""
        return getattr(self.load, "func", self.load) in (tf.io.read_file, load_tiff)

    def file_names(self) -> tuple[str, ...]:
        """Lists the images in their order by their paths, or else as `"image 0"`, ...

        Of images in tars, the path of the tar and the name of the image, `"0.tar:cat.jpg"`.
        """
        if self.records is None and isinstance(self.rows[0][0], str):
            return tuple(map(item_name, self.rows[0]))
        if self.records is not None and self.record_name is not None:
            return tuple(map(self.record_name, self.rows[0].tolist()))
        return tuple(f"image {index}" for index in range(self.num_images))

    def spread(self, count: int) -> tf.data.Dataset:
        """Pairs as of `read`: at most `count`, spread evenly over the stored order."""
        if count >= self.num_images:
            return self.read((0, self.num_images), None, 0)
        positions = np.arange(count) * self.num_images // count
        indices = tf.data.Dataset.from_tensor_slices(positions)
        return indices.flat_map(lambda index: self.read((index, index + 1), None, 0))

    def class_weights(self) -> np.ndarray:
        """Weights that make all classes count alike: `images / (classes * images of the class)`.

        Returns:
            float64 array of shape `(K,)`, 0 for a class without images.

        Raises:
            ValueError: If images do not have one class each, or are more than 50,000 records
                without an index.
        """
        if self.task != "single_label":
            raise ValueError(
                f"Class weights and balanced sampling need one class for each image. {self.name} "
                f"has task={self.task!r}."
            )
        counts = self.class_counts
        if counts is None:
            raise ValueError(
                f"The images of {self.name} are read one after the other, and are too many to "
                "count their classes. Read them into memory first: `images.in_memory()`."
            )
        return np.where(counts, counts.sum() / (self.num_classes * np.maximum(counts, 1)), 0.0)

    def balanced(self) -> ImageSet:
        """The same images, drawn in training so that all classes are equally frequent.

        An epoch has as many images as before, drawn with replacement, as PyTorch's
        `WeightedRandomSampler` does: images of rare classes several times, others not at all.
        Evaluation reads every image once, as before.

        Raises:
            ValueError: If the images are read sequentially, as those of TFRecords and TFDS.
        """
        if self.labels is None:
            raise ValueError(f"{self.name} is read in its order. Draw from `images.in_memory()`.")
        return dataclasses.replace(self, weights=self.class_weights()[self.labels])

    def in_memory(self, count: int | None = None, seed: int = 0) -> ImageSet:
        """Reads images into memory, in their stored form: JPEGs stay JPEGs.

        Args:
            count: How many, drawn at random, of records from the buffer that training shuffles;
                `None` takes all in the stored order.
            seed: Seed of the choice.

        Raises:
            ValueError: If the images are stored as pixels and differ in size, unless they have 8
                bits and one or three channels, which are kept as PNG; or labels are out of range,
                or `count` is not a positive integer.
        """
        if count is not None:
            check_positive("count", count)
        images, labels, drawn = [], [], self
        pairs = self.read((0, self.num_images), None, 0)
        if count is not None and count < self.num_images:
            drawn = dataclasses.replace(self, weights=None)
            pairs = drawn.read((0, self.num_images), seed, 0).take(count)  # as in training
        pairs = pairs.map(lambda item, label: (self.load(item), label), tf.data.AUTOTUNE)
        for image, label in pairs.as_numpy_iterator():
            images.append(image)
            labels.append(label)
        if not isinstance(images[0], bytes) and len({image.shape for image in images}) > 1:
            if any(not _is_png(image) for image in images):
                raise ValueError(
                    f"The images of {self.name} are stored as pixels and differ in size, so they "
                    "make no array. Store them encoded, or let `tf.data` cache them."
                )
            images = [tf.io.encode_png(image).numpy() for image in images]
        kept = np.asarray(images, object if isinstance(images[0], bytes) else None)
        rows = kept, np.asarray(labels)
        if self.task == "single_label":
            check_labels(rows[1], self.num_classes, self.name)
        changes: dict[str, Any] = {"rows": rows, "records": None, "shards": None, "counts": None}
        return dataclasses.replace(drawn, load=tf.identity, **changes)


def file_set(
    name: str | os.PathLike[str],
    class_names: Sequence[str],
    paths: Iterable[str | os.PathLike[str]],
    labels: np.ndarray,
    max_pixels: int = MAX_PIXELS,
    **options: Any,
) -> ImageSet:
    """Makes an `ImageSet` of image files that can be read.

    Args:
        name: As for `ImageSet`, like the others.
        class_names: See there.
        paths: The files.
        labels: See there.
        max_pixels: See there.
        options: Further arguments of `ImageSet`.
    """
    items = np.array([os.fspath(path) for path in paths], object)
    rows, load = (items, labels), file_loader(items, max_pixels)
    return ImageSet(os.fspath(name), tuple(class_names), rows, load, max_pixels, **options)


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
        return ImageSet(name, names, (x, y), tf.identity, task=task)
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be one integer for each of the {len(x)} images. Received: {y.dtype} of "
            f"shape {y.shape}."
        )
    names = tuple(map(str, range(int(y.max()) + 1)) if class_names is None else class_names)
    check_labels(y, len(names), name)
    return ImageSet(name, names, (x, y), tf.identity)


def read_records(
    shards: Shards,
    parse: Callable[..., tuple[Any, Any]],
    class_names: Sequence[str],
    name: str = "the records",
    task: str = "single_label",
) -> ImageSet:
    """Makes an `ImageSet` of files of records, such as TFRecords.

    Args:
        shards: Files of records, as from `find_shards`.
        parse: Maps a record, or its parts, to an encoded image or its pixels, and an integer label;
            for other tasks a vector of numbers.
        class_names: Names of the classes, in the order of the labels.
        name: Name of the source, for error messages. Stored features and cached batches tell sets
            apart by their name and files: the same files with another `parse` need another name.
        task: What the labels are, see `ImageSet`.

    Returns:
        An `ImageSet`.
    """

    def parse_typed(*record: Any) -> tuple[Any, Any]:
        image, label = parse(*record)
        return image, tf.cast(label, tf.int64 if task == "single_label" else tf.float32)

    names, rows = tuple(class_names), (np.arange(shards.num_records),)
    read = record_reader(shards, parse_typed)
    return ImageSet(name, names, rows, tf.identity, records=read, task=task, shards=shards)


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
    problems = [f"without {listed(missing)}"] if missing else []
    problems += [f"with {listed(unknown)}"] if unknown else []
    raise ValueError(
        f"{images.name} has other classes than the training images: "
        f"{'; '.join(problems) or 'the same names in another order'}. Labels would mean other "
        "classes. Read the images with the class names of the training images: "
        "`read_folder(folder, class_names=training.class_names)`."
    )


def _is_png(pixels: np.ndarray) -> bool:
    """Whether a PNG holds these pixels as they are."""
    return pixels.dtype == "uint8" and pixels.ndim == 3 and pixels.shape[-1] in (1, 3)
