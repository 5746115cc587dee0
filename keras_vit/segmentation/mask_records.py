"""Images with a mask each from records: TFRecords and TensorFlow Datasets, read in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.labelled_set import Reader, record_reader
from keras_vit.data.shards import Shards
from keras_vit.data.tfds import examples_of
from keras_vit.segmentation.masks import GREY, IGNORED, INVALID, MaskSet, check_names, value_table

_HEADER = 26  # bytes of a PNG: signature, length and name of IHDR, width, height, depth, kind
_BIG_ENDIAN = [1 << 24, 1 << 16, 1 << 8, 1]


def read_mask_records(
    shards: Shards,
    parse: Callable[[Any], tuple[Any, Any]],
    class_names: Sequence[str],
    *,
    first_value: int = 0,
    ignored: Sequence[int] = (IGNORED,),
    name: str = "the records",
) -> MaskSet:
    """Makes a `MaskSet` of files of records, such as TFRecords.

    Every worker opens the files of its own part alone. Training shuffles the files, and records
    within a buffer.

    Args:
        shards: Files of records, as from `find_shards`.
        parse: Maps a record to an encoded image or its pixels `(h, w, C)`, and to its mask:
            integers of shape `(h, w)` or `(h, w, 1)`, or the bytes of a grey PNG of 8 bits. A mask
            belongs to the image as it is displayed, turned as its EXIF says; where it does not,
            the model needs `Preprocessing(exif_orientation=False)`.
        class_names: Names of the classes, at most 255.
        first_value: Value of the first class in the masks; 1 for ADE20K.
        ignored: Values of pixels without a label.
        name: Name of the source, for error messages.

    Returns:
        A `MaskSet`. Values that are no class, masks of other sizes than their images, and PNGs
        with a palette or colours are errors when they are read. `split` holds out the last images.

    Raises:
        ValueError: If `class_names`, `first_value` or `ignored` do not fit, or when the batches
            are made, if `parse` gives masks of another type or rank.
    """
    names = check_names(class_names, None)
    table = value_table(len(names), first_value, ignored)
    return _sequential(name, names, table, shards.num_records, record_reader(shards, parse))


def read_tfds_masks(
    name: str,
    split: str,
    class_names: Sequence[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    image: str = "image",
    mask: str = "segmentation_mask",
    first_value: int = 0,
    ignored: Sequence[int] = (IGNORED,),
    download: bool = False,
) -> MaskSet:
    """Reads images and masks of a data set of TensorFlow Datasets.

    Args:
        name: As for `tfds.builder`, such as `"oxford_iiit_pet"`.
        split: Such as `"train"` or `"train[:98%]"`.
        class_names: Names of the classes; TFDS has none for masks.
        data_dir: Folder of the prepared data sets; `None` takes the default of TFDS.
        image: Feature of the image.
        mask: Feature of the mask, an image of one channel, stored as a grey PNG of 8 bits.
        first_value: Value of the first class; 1 for `"oxford_iiit_pet"`.
        ignored: Values of pixels without a label.
        download: Whether to download and prepare the data set if it is missing.

    Returns:
        A `MaskSet`, as from `read_mask_records`.

    Raises:
        ImportError: If TFDS is not installed.
        ValueError: If the data set lacks the split or one of the two features, or the mask has
            several channels.
        FileNotFoundError: If the data set is not in `data_dir` and `download` is false.
    """
    names = check_names(class_names, None)
    table = value_table(len(names), first_value, ignored)
    title, count, read = examples_of(name, split, data_dir, download, image, mask)
    return _sequential(title, names, table, count, read)


def _sequential(
    name: str, class_names: tuple[str, ...], table: Any, count: int, read: Reader
) -> MaskSet:
    def load(image: Any, mask: Any) -> tuple[Any, Any]:
        fits = mask.shape.rank == 2 or (mask.shape.rank == 3 and mask.shape[-1] in (1, None))
        if mask.dtype != tf.string and not (mask.dtype.is_integer and fits):
            raise ValueError(
                f"Masks of {name} must be integers of shape (h, w) or (h, w, 1), or bytes of a "
                f"grey PNG. Received from `parse`: {mask.dtype.name} of shape {mask.shape}."
            )
        values = _decode_grey(mask, name) if mask.dtype == tf.string else tf.cast(mask, tf.int32)
        if values.shape.rank == 3:
            values = tf.squeeze(tf.ensure_shape(values, (None, None, 1)), -1)
        known = (values >= 0) & (values < 256)
        return image, tf.where(known, tf.gather(table, tf.where(known, values, 0)), INVALID)

    return MaskSet(name, class_names, (np.arange(count),), load, records=read)


def _decode_grey(data: Any, name: str) -> Any:
    """Values of a grey PNG; TensorFlow would turn a palette or colours into shades of grey."""
    header = tf.io.decode_raw(data, tf.uint8, fixed_length=_HEADER)  # zeros after fewer bytes
    sides = tf.cast(tf.reshape(header[16:24], (2, 4)), tf.int64) * _BIG_ENDIAN
    width, height = tf.unstack(tf.reduce_sum(sides, -1))
    is_png = tf.reduce_all(header[:4] == list(b"\x89PNG"))
    is_grey = is_png & tf.reduce_all(header[24:] == (8, GREY))
    problem = (
        f"A mask of {name} is no grey PNG of 8 bits. Decode it in `parse`, to integers (h, w)."
    )
    large = f"A mask of {name} has more than {MAX_PIXELS} pixels. Height and width:"
    fits = height <= MAX_PIXELS // tf.maximum(width, 1)
    checks = [
        tf.debugging.Assert(is_grey, [problem]),
        tf.debugging.Assert(fits, [large, height, width]),
    ]
    with tf.control_dependencies(checks):
        return tf.cast(tf.io.decode_png(data, 1), tf.int32)
