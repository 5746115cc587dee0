"""Images with boxes, for detection: all checked when read, in batches as keras-hub takes them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_vit.data.array_checks import check_values
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.folder import find_problems
from keras_vit.data.headers import read_displayed_size
from keras_vit.data.input_transform import InputTransform, transform_of
from keras_vit.data.labelled_set import LabelledSet, make_batches
from keras_vit.data.pixel_range import warn_of_small_range
from keras_vit.data.tiff import file_loader
from keras_vit.data.transforms import decode_for, in_range, resize
from keras_vit.errors import raise_problems

if TYPE_CHECKING:
    import keras

NO_BOX = -1  # coordinates and label of the rows that fill up an image with fewer boxes


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BoxSet(LabelledSet):
    """Images with boxes, made by `read_boxes`.

    Args:
        name: Name of the source, for error messages.
        class_names: Names of the classes, in the order of the labels.
        rows: Pixels of shape `(B, H, W, C)` or paths of files, `sizes`, `boxes` and `labels`.
        load: Maps the first element of a row to an encoded image, or pixels `(h, w, C)`.
        max_pixels: Height times width above which an encoded image is refused.
    """

    @property
    def sizes(self) -> np.ndarray:
        """int64 array of shape `(B, 2)`: height and width of every image in pixels."""
        return self.rows[1]

    @property
    def boxes(self) -> np.ndarray:
        """float32 array of shape `(B, M, 4)`: left, top, right and bottom in pixels.

        The rows that fill up an image of fewer than `M` boxes are -1.
        """
        return self.rows[2]

    @property
    def labels(self) -> np.ndarray:
        """int32 array of shape `(B, M)`: classes from 0, and -1 where there is no box."""
        return self.rows[3]

    @property
    def strata(self) -> tuple[str | None, np.ndarray]:
        """As of `LabelledSet`: which classes an image has."""
        has = np.zeros((self.num_images, self.num_classes + 1), "float32")
        has[np.arange(self.num_images)[:, None], self.labels] = 1  # no box is the last column
        return "multi_label", has[:, :-1]


def read_boxes(
    images: Any,
    boxes: Sequence[Any],
    labels: Sequence[Any],
    class_names: Sequence[str],
    name: str = "the images",
) -> BoxSet:
    """Reads images with boxes, and checks every box.

    Args:
        images: Array of shape `(B, H, W, C)` with values in [0, 255], or paths of image files.
            Files are turned as their EXIF says, and boxes are those of the turned image.
        boxes: For every image an array of shape `(n, 4)`: left, top, right and bottom in pixels
            from the upper left corner of the image. `n` may be 0.
        labels: For every image `n` integers, the indices of the classes.
        class_names: Names of the classes.
        name: Name of the source, for error messages.

    Returns:
        A `BoxSet`.

    Raises:
        ValueError: If there is not one entry for every image, a file cannot be read, or a box
            has no area, lies partly outside its image, or has no class. One error lists all.
    """
    pixels, sizes, problems = _read_images(images)
    names = tuple(class_names)
    counts = {"images": len(pixels), "boxes": len(boxes), "labels": len(labels)}
    if isinstance(class_names, str) or not names or len(set(counts.values())) > 1 or not len(boxes):
        raise ValueError(
            "`images`, `boxes` and `labels` must have one entry for every image, and `class_names` "
            f"at least one name. Received: {counts}, class_names={class_names!r}."
        )
    rows = []
    for index, (image_boxes, classes) in enumerate(zip(boxes, labels, strict=True)):
        where = f"image {index}" if pixels.dtype != object else str(pixels[index])
        row, ids = _to_array(image_boxes), _to_array(classes).reshape(-1)
        row = row if row.size else np.zeros((0, 4))
        fits = row.ndim == 2 and row.shape[1] == 4 and len(row) == len(ids)
        if not fits or row.dtype.kind not in "iuf" or (len(ids) and ids.dtype.kind not in "iu"):
            problems.append(
                f"{where}: boxes of shape {row.shape} in {row.dtype} and {ids.dtype} labels of "
                f"shape {ids.shape}, expected (n, 4) and n integers"
            )
            continue
        row = row.astype("float32")
        rows.append((row, ids))
        if not sizes[index].any():  # of a file that cannot be read
            continue
        for number, (box, label) in enumerate(zip(row, ids, strict=True)):
            problem = _box_problem(sizes[index], len(names), box, label)
            problems += [f"{where}, box {number}: {problem}"] if problem else []
    raise_problems(name, problems, "problems with boxes")
    most = max([1, *(len(ids) for _, ids in rows)])
    filled = np.full((len(rows), most, 4), NO_BOX, "float32")
    filled_labels = np.full((len(rows), most), NO_BOX, "int32")
    for index, (row, ids) in enumerate(rows):
        filled[index, : len(row)], filled_labels[index, : len(ids)] = row, ids
    load = file_loader(pixels, MAX_PIXELS) if pixels.dtype == object else tf.identity
    return BoxSet(name, names, (pixels, sizes, filled, filled_labels), load)


def _to_array(values: Any) -> np.ndarray:
    """An array of any type: that of lists of different lengths is an array of objects."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.array([None])


def _read_images(images: Any) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Pixels or paths, the size of every image as it is displayed, and files that are none."""
    if len(images) and isinstance(images[0], str | os.PathLike):
        paths = [pathlib.Path(path) for path in images]
        problems = find_problems(paths, "headers")
        sizes = [(0, 0) if path in problems else read_displayed_size(path) for path in paths]
        warn_of_small_range([path for path in paths if path not in problems], "the boxes")
        listed = [f"{path} {reason}" for path, reason in problems.items()]
        return np.array(list(map(str, paths)), object), np.array(sizes, "int64"), listed
    pixels = np.asarray(images)
    if pixels.ndim != 4:
        raise ValueError(
            "`images` must be an array of shape (B, H, W, C), or paths of files. Received: "
            f"{pixels.dtype} of shape {pixels.shape}."
        )
    check_values(pixels)
    return pixels, np.tile(np.array(pixels.shape[1:3], "int64"), (len(pixels), 1)), []


def _box_problem(size: np.ndarray, classes: int, box: np.ndarray, label: Any) -> str | None:
    """What is wrong with a box and its label."""
    height, width = size.tolist()
    left, top, right, bottom = given = box.tolist()
    if not 0 <= label < classes:
        return f"label {label}, and the classes are 0 to {classes - 1}. Name more classes"
    if not (left < right and top < bottom):
        return f"{given} has no area. Boxes are (left, top, right, bottom); remove empty ones"
    if not (left >= 0 and top >= 0 and right <= width and bottom <= height):
        return (
            f"{given} lies partly outside the image of {width} pixels in width and {height} in "
            "height. Clip it, and give pixels, not shares of the image"
        )
    return None


def box_batches(
    boxes: BoxSet,
    model: keras.Model | InputTransform,
    batch_size: int,
    training: bool = False,
    flip: bool = True,
    seed: int = 0,
    *,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Makes batches of images and boxes for a detector of keras-hub.

    Images are resized to the model, without keeping their proportions, and boxes with them.

    Args:
        boxes: Images with boxes.
        model: The model, see `transform_of`.
        batch_size: Images per step, of all workers together.
        training: Whether to shuffle, to mirror, and to drop an incomplete last batch.
        flip: Whether half of the training images are mirrored left to right.
        seed: Random seed; every epoch has its own order, which depends on it and its number alone.
        worker: Index and number of workers, if `tf.distribute` is not used.

    Returns:
        A `tf.data.Dataset` of float32 images `(B, H, W, C)` and a dict of `"boxes"`, float32 of
        shape `(B, M, 4)`, as left, top, right and bottom in pixels of the batch (`"xyxy"`), and
        `"labels"`, float32 of shape `(B, M)`; both are -1 where an image has fewer than `M` boxes.

    Raises:
        ValueError: If the classes do not fit the model, or there are fewer images than a batch.
    """
    boxes.check_classes(getattr(model, "num_classes", None))
    transform = transform_of(model)
    size = np.array(transform.image_size)

    @tf.autograph.experimental.do_not_convert
    def prepare(row: tuple[Any, ...], seed: Any) -> tuple[Any, Any, Any]:
        image, shape, corners, labels = row
        # Turned as its EXIF says: boxes are those of the turned image.
        pixels = decode_for(transform, boxes.load(image), boxes.max_pixels, always_turn=True)
        pixels = resize(pixels, transform.image_size, "bilinear")
        no_box = labels[:, None] == NO_BOX
        scale = tf.cast(tf.gather(size / shape, [1, 0, 1, 0]), tf.float32)
        found = tf.where(no_box, tf.cast(NO_BOX, tf.float32), corners * scale)
        if training and flip:
            left, top, right, bottom = tf.unstack(found, axis=-1)
            flipped = tf.stack((size[1] - right, top, size[1] - left, bottom), -1)
            flipped = tf.where(no_box, found, flipped)
            mirrored = tf.random.stateless_uniform((), seed) < 0.5
            pixels = tf.where(mirrored, tf.reverse(pixels, [1]), pixels)
            found = tf.where(mirrored, flipped, found)
        pixels = tf.ensure_shape(pixels, (*transform.image_size, transform.channels))
        return in_range(transform, pixels), found, tf.cast(labels, tf.float32)

    def finish(pixels: Any, found: Any, classes: Any) -> tuple[Any, dict[str, Any]]:
        return pixels, {"boxes": found, "labels": classes}

    options: dict[str, Any] = {"training": training, "drop_remainder": training, "worker": worker}
    return make_batches(boxes, prepare, finish, batch_size, seed, **options)
