"""Reads images with captions from tars of WebDataset, TFRecords, TFDS and Parquet files.

Opening a set reads every file once, for the captions and for where the images stand. Training then
reads the bytes of an image at its place, so that all images are shuffled as a whole, as files are.
Images of Parquet files, which have no such place, are kept in memory.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.parquet import read_column, read_parquet
from keras_vit.data.shards import find_records
from keras_vit.data.tars import find_files, load_item, make_item, read_tar
from keras_vit.data.tfds import record_shards
from keras_vit.errors import listed, printable, raise_problems
from keras_vit.image_text.caption_files import CAPTION_NAMES, captions_of
from keras_vit.image_text.pairs import PairSet, make_pairs
from keras_vit.reading import open_regular, parse_json, refusing

_MAX_RECORD = 1 << 30  # bytes
_INCOMPLETE = "incomplete pairs"


class _Pair(NamedTuple):
    """Name, first byte and length of an image or of its record in a file, and its captions."""

    name: str
    start: int
    length: int
    captions: list[str]


def read_caption_shards(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    image_name: str = "image",
    caption_name: str = "caption",
    max_pixels: int = MAX_PIXELS,
) -> PairSet:
    """Reads images with captions from tars of WebDataset, TFRecords or Parquet files, all local.

    In a tar, members that differ only after the first dot of their names are a pair:
    `0001.jpg` and `0001.txt`, or `0001.json` with `caption` or `text`. Pairs without an image or
    without a caption are an error. Compressed files cannot be read at a place: unpack them first.
    The images of Parquet files are read into memory, in their encoded form.

    Args:
        files: A pattern such as `"shards/*.tar"`, whose files are sorted by name, or paths. Names
            that end in `.tar` are tars, in `.parquet` Parquet files, others TFRecords.
        image_name: Feature of the encoded image in TFRecords; column of Parquet files, which may be
            any that is an image by the schema if there is no `"image"`.
        caption_name: Feature of the captions in TFRecords, one or several, in UTF-8; column of
            Parquet files, else the first of `title`, `caption`, `text` and `captions`.
        max_pixels: Height times width above which an image is refused when it is read.

    Returns:
        A `PairSet` in the order of the files, each image with a label of its own.

    Raises:
        FileNotFoundError: If there are no such files.
        ValueError: If a file is damaged or compressed, or pairs are incomplete; it lists them.
    """
    found = find_files(files)
    endings = {os.path.splitext(file)[1].lower() for file in found}
    if len(endings) > 1 and endings & {".tar", ".parquet"}:
        raise ValueError(
            "The files must be all tars, all Parquet files, or all TFRecords. Received: "
            f"{printable(found[0])} and others."
        )
    if endings == {".parquet"}:
        return _parquet_pairs(found, image_name, caption_name, max_pixels)
    read: Callable[[str], Iterator[_Pair]] = _tar_pairs
    load = functools.partial(load_item, max_pixels=max_pixels)
    if endings != {".tar"}:
        read = functools.partial(_record_pairs, image=image_name, caption=caption_name)
        load = _image_of(image_name)
    name = f"{os.path.dirname(found[0]) or '.'} ({len(found)} files)"
    return _collect(name, ((file, read(file)) for file in found), load, max_pixels)


def read_tfds_captions(
    name: str,
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    image_name: str = "image",
    caption_name: str = "captions/text",
    max_pixels: int = MAX_PIXELS,
) -> PairSet:
    """Reads images with captions from a data set of TensorFlow Datasets.

    Args:
        name: As for `keras_vit.read_tfds`, such as `"coco_captions"`; stored as TFRecords.
        split: See there.
        data_dir: See there.
        download: See there.
        image_name: Feature of the image.
        caption_name: Feature of the captions, one or several; `"captions/text"` is the part `text`
            of `captions`.
        max_pixels: Height times width above which an image is refused when it is read.

    Returns:
        A `PairSet` in the order of the files, each image with a label of its own.

    Raises:
        ImportError: If TFDS is not installed.
        FileNotFoundError: If the data set is not in `data_dir` and `download` is false.
        ValueError: If there is no such split, it is not stored as TFRecords, or pairs are
            incomplete; it lists them, with the features that there are.
    """
    title, shards = record_shards(name, split, data_dir, download)
    chosen = (
        (file, itertools.islice(
            _record_pairs(file, image_name, caption_name), skip, skip + count
        ))
        for file, skip, count in zip(shards.files, shards.skips, shards.counts, strict=True)
    )  # fmt: skip
    return _collect(title, chosen, _image_of(image_name), max_pixels)


def _collect(
    name: str, files: Iterable[tuple[str, Iterator[_Pair]]], load: Any, max_pixels: int
) -> PairSet:
    """The pairs of files, whose images are read at their place."""
    items: list[str] = []
    captions: list[list[str]] = []
    for file, pairs in files:
        changed = os.stat(file).st_mtime_ns  # stored features are of these bytes
        for pair in pairs:
            items.append(make_item(file, *pair[:3], changed))
            captions.append(pair.captions)
    if not items:
        raise ValueError(f"There are no pairs in {printable(name)}.")
    return make_pairs(name, np.array(items, object), load, captions, max_pixels)


def _parquet_pairs(files: list[str], image: str, caption: str, max_pixels: int) -> PairSet:
    """The pairs of the rows of Parquet files, with their images in memory."""
    captions = list(map(captions_of, read_column(files, (caption, *CAPTION_NAMES))))
    without = [f"row {number} has no caption" for number, each in enumerate(captions) if not each]
    raise_problems(files[0], without, _INCOMPLETE)
    column = None if image == "image" else image
    options: dict[str, Any] = {"check": "none", "max_pixels": max_pixels, "labelled": False}
    images = read_parquet(files, None, column, **options).in_memory()
    return make_pairs(images.name, images.rows[0], images.load, captions, max_pixels)


def _tar_pairs(path: str) -> Iterator[_Pair]:
    samples, problems = read_tar(path, (".txt", ".json"))
    pairs = []
    for sample in samples:
        captions: list[str] = []
        reasons = []
        for ending, content in sample.texts.items():
            try:
                captions += _captions_of(content, ending)
            except ValueError as error:  # also of UTF-8
                reasons.append(f"the {ending} of {sample.name} cannot be read: {error}")
        if not captions and not reasons:
            reasons = [f"{sample.name} has no caption in .txt or .json of up to 1 MiB"]
        problems += reasons
        pairs.append(_Pair(sample.name, sample.start, sample.length, captions))
    raise_problems(path, problems, _INCOMPLETE)
    yield from pairs


def _captions_of(content: bytes, ending: str) -> list[str]:
    """The captions in a member, or none."""
    text = content.decode("utf-8-sig")
    if ending == ".txt":
        return captions_of(text)
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise ValueError("it is no object")
    return captions_of(next((fields[name] for name in CAPTION_NAMES if name in fields), None))


def _record_pairs(path: str, image: str, caption: str) -> Iterator[_Pair]:
    problems = []
    with open_regular(path) as file:
        for number, (start, length) in enumerate(find_records(path)):
            if length > _MAX_RECORD:
                problems.append(f"record {number} has {length:,} bytes, more than {_MAX_RECORD:,}")
                continue
            file.seek(start)
            with refusing(
                f"{path}: record {number}", "is no `tf.train.Example`", "Write it again."
            ):
                features = tf.train.Example.FromString(file.read(length)).features.feature
            try:
                texts = captions_of([value.decode() for value in _values(features, caption)])
            except UnicodeDecodeError as error:
                problems.append(f"record {number} has a {caption} that is not UTF-8: {error}")
                continue
            if not texts or len(_values(features, image)) != 1:
                problems.append(
                    f"record {number} has no {caption if not texts else image}; features: "
                    f"{listed(sorted(features))}"
                )
            else:
                yield _Pair(f"record {number}", start, length, texts)
    raise_problems(path, problems, _INCOMPLETE)


def _values(features: Any, name: str) -> Sequence[bytes]:
    return features[name].bytes_list.value if name in features else ()


def _image_of(name: str) -> Any:
    def load(item: Any) -> Any:
        description = {name: tf.io.FixedLenFeature((), tf.string)}
        return tf.io.parse_single_example(load_item(item), description)[name]

    return load
