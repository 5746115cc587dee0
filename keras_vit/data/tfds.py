"""Reads a data set of TensorFlow Datasets as an `ImageSet`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.image_set import ImageSet
from keras_vit.data.labelled_set import SHUFFLE_BUFFER, Reader, record_reader
from keras_vit.data.shards import Shards, shuffled
from keras_vit.installation import needing

_IMAGE, _LABEL = "image", "label"
_TFRECORD = "tfrecord"  # one of the formats of files
_Parse = Callable[[Mapping[str, Any]], Any]  # of an example


def read_tfds(
    name: str,
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    label_of: Callable[[Mapping[str, Any]], Any] | None = None,
    class_names: Sequence[str] | None = None,
    load: Callable[[Any], Any] | None = None,
) -> ImageSet:
    """Reads a data set of TensorFlow Datasets by its name.

    Images stay encoded until they are transformed, so only the crop of a JPEG is decoded. If the
    data set is stored as TFRecords, every worker opens only the files of its own part, as in
    `read_shards`.

    Args:
        name: As for `tfds.builder`: `"cifar10"`, `"cifar10:3.0.2"`, `"imagenet_v2/topimages"`.
        split: Such as `"train"`, `"train[:98%]"` or `"train+validation"`.
        data_dir: Folder of the prepared data sets; `None` takes the default of TFDS.
        download: Whether to download and prepare the data set if it is missing.
        label_of: Computes the integer label of an example, a dictionary of tensors; `None` takes
            the feature `"label"`.
        class_names: Names of the classes; required with `label_of`.
        load: Decodes the bytes of an image to pixels; `None` decodes them as an image file.

    Returns:
        An `ImageSet`.

    Raises:
        ImportError: If TFDS is not installed.
        ValueError: If the data set has no images, no labels or no such split.
        FileNotFoundError: If the data set is not in `data_dir` and `download` is false.
    """
    builder = _builder(name, data_dir, download)
    names = _class_names(name, builder.info.features, label_of, class_names)
    wanted = (_IMAGE, _LABEL) if label_of is None else None
    find_label = label_of or (lambda example: example[_LABEL])

    def parse(example: Mapping[str, Any]) -> tuple[Any, Any]:
        return example[_IMAGE], tf.cast(find_label(example), tf.int64)

    title, count, read = _open(builder, split, (_IMAGE,), wanted, parse)
    return ImageSet(title, names, (np.arange(count),), load or tf.identity, records=read)


def examples_of(
    name: str,
    split: str,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    image: str,
    mask: str,
) -> tuple[str, int, Reader]:
    """Title, number and reader of the pairs of encoded images and masks of a data set."""
    tfds, builder = _import_tfds(), _builder(name, data_dir, download)
    features = builder.info.features
    missing = [
        f"feature {key!r} that is an image{kind}"
        for key, channels, kind in ((image, (1, 3), ""), (mask, (1,), " of one channel"))
        if key not in features
        or not isinstance(features[key], tfds.features.Image)
        or features[key].shape[-1] not in channels
    ]
    if missing:
        raise ValueError(
            f"The data set {name!r} has no {', no '.join(missing)}. It has {', '.join(features)}. "
            "Pass their names as `image` and `mask`."
        )
    # TFDS would decode a mask as it was stored, and turn a palette into shades of grey.
    keys = (image, mask)
    return _open(builder, split, keys, keys, lambda example: (example[image], example[mask]))


def record_shards(
    name: str, split: str, data_dir: str | os.PathLike[str] | None, download: bool
) -> tuple[str, Shards]:
    """Title and TFRecord files of a split of a data set.

    Args:
        name: As for `read_tfds`, like the others.
        split: See there.
        data_dir: See there.
        download: See there.

    Returns:
        The title, and `Shards` of records of `tf.train.Example`.

    Raises:
        ImportError: If TFDS is not installed.
        ValueError: If there is no such split, or it is not stored as TFRecords.
        FileNotFoundError: If the data set is not in `data_dir` and `download` is false.
    """
    builder = _builder(name, data_dir, download)
    if builder.info.splits and builder.info.file_format.value != _TFRECORD:
        raise ValueError(
            f"The data set {builder.info.full_name} must be stored as TFRecords, whose images can "
            f"be read at their place. Received: files of {builder.info.file_format.value}. Prepare "
            'it with file_format="tfrecord".'
        )
    shards = _find_shards(builder, split)
    if shards is None:
        raise FileNotFoundError(_missing(builder))
    return f"{builder.info.full_name} {split}", shards


def _builder(name: str, data_dir: str | os.PathLike[str] | None, download: bool) -> Any:
    """The builder of a data set, prepared if it is to be downloaded."""
    folder = None if data_dir is None else os.fspath(data_dir)
    builder = _import_tfds().builder(name, data_dir=folder)
    if download:
        builder.download_and_prepare()
    return builder


def _missing(builder: Any) -> str:
    return (
        f"The data set {builder.info.full_name} is not in {builder.data_dir}. Pass "
        "`download=True` (--download), or the `data_dir` where it is."
    )


def _import_tfds() -> Any:
    with needing("tfds", "Reading TensorFlow Datasets needs tensorflow-datasets"):
        import tensorflow_datasets
    if not hasattr(tensorflow_datasets, "builder"):  # it only prints what went wrong
        raise ImportError(
            "tensorflow-datasets could not be imported as a whole; it printed the reason. Where "
            "that is the version of protobuf, as with TensorFlow 2.18: "
            'pip install "tensorflow-metadata<1.21".'
        )
    return tensorflow_datasets


def _class_names(
    name: str, features: Any, label_of: _Parse | None, class_names: Sequence[str] | None
) -> tuple[str, ...]:
    tfds = _import_tfds()
    if _IMAGE not in features or not isinstance(features[_IMAGE], tfds.features.Image):
        raise ValueError(
            f"The data set {name!r} has no feature 'image'. It has {', '.join(features)}."
        )
    if label_of is not None:
        if class_names is None:
            raise ValueError("`label_of` makes labels of its own: pass their `class_names`, too.")
        return tuple(class_names)
    if _LABEL not in features or not isinstance(features[_LABEL], tfds.features.ClassLabel):
        raise ValueError(
            f"The data set {name!r} has no feature 'label' with classes. It has "
            f"{', '.join(features)}. Pass `label_of` and `class_names`."
        )
    return tuple(class_names or features[_LABEL].names)


def _find_shards(builder: Any, split: str) -> Shards | None:
    """Files of a split, or `None` if they are missing or are not TFRecords."""
    info = builder.info
    if not info.splits or getattr(info.file_format, "value", None) != _TFRECORD:
        return None
    pieces: list[Any] = []
    for part in map(str.strip, split.split("+")):
        try:
            pieces += info.splits[part].file_instructions
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"The data set {info.full_name} has no split {part!r}. It has "
                f"{', '.join(sorted(info.splits))}, and slices such as 'train[:98%]'."
            ) from error
    pieces = [piece for piece in pieces if piece.examples_in_shard]
    if not pieces or not tf.io.gfile.exists(pieces[0].filename):
        return None
    counts = tuple(
        piece.examples_in_shard - piece.skip if piece.take in (-1, None) else piece.take
        for piece in pieces
    )
    files = tuple(os.fspath(piece.filename) for piece in pieces)
    return Shards(files, counts, skips=tuple(piece.skip for piece in pieces))


def _open(
    builder: Any, split: str, encoded: Sequence[str], wanted: Sequence[str] | None, parse: _Parse
) -> tuple[str, int, Reader]:
    """Title, number and reader of the examples of a split, from its own files if TFRecords.

    Args:
        builder: The data set.
        split: As for `read_tfds`.
        encoded: Features that stay encoded.
        wanted: Features to read; `None` reads all.
        parse: Maps an example to what is read.
    """
    tfds = _import_tfds()
    title, features = f"{builder.info.full_name} {split}", builder.info.features
    decoders = {key: tfds.decode.SkipDecoding() for key in encoded}
    asked: Any = decoders
    if wanted is not None:
        asked = tfds.decode.PartialDecoding(dict.fromkeys(wanted, True), decoders)
        features = asked.extract_features(features)
    shards = _find_shards(builder, split)
    if shards is not None:

        def parse_record(record: Any) -> Any:
            return parse(features.deserialize_example(record, decoders=decoders))

        return title, shards.num_records, record_reader(shards, parse_record)
    try:
        examples = builder.as_dataset(  # in the stored order
            split=split,
            decoders=asked,
            shuffle_files=False,
            read_config=tfds.ReadConfig(try_autocache=False, add_tfds_id=False),
        )
    except AssertionError as error:  # TFDS raises it for a data set that is not prepared
        raise FileNotFoundError(_missing(builder)) from error
    examples = examples.map(parse)
    count = int(examples.cardinality())
    if count < 0:
        count = int(examples.reduce(0, lambda n, _: n + 1))

    def read(
        among: tuple[int, int], part: tuple[int, int], number: Any, buffer: int
    ) -> tf.data.Dataset:
        stretch = examples.skip(among[0] + part[0]).take(part[1] - part[0])
        return shuffled(stretch, number, buffer or SHUFFLE_BUFFER)

    return title, count, read
