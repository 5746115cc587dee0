"""Writes labelled images as TFRecord files with an index, and reads such a folder.

Every record is a `tf.train.Example` with the encoded image and its class, in the features "image"
and "label", as of TensorFlow Datasets; several labels, and numbers, are floats. `index.json` has
the names of the classes, how many images each has, and the records and bytes of every file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice, check_positive
from keras_vit.config import TASKS
from keras_vit.data.digests import digest_images
from keras_vit.data.image_set import ImageSet, read_records
from keras_vit.data.shard_files import INDEX
from keras_vit.data.shards import Shards
from keras_vit.errors import listed, printable
from keras_vit.files import remove_unfinished, write_atomically, write_text
from keras_vit.progress import map_threads
from keras_vit.reading import is_regular, read_json, refusing

_PLAN = "unfinished.json"  # until all files are written
_FORMAT = "keras_vit records 1"
_IMAGE, _LABEL = "image", "label"
_END = b""  # no record is empty


class WrittenRecords(NamedTuple):
    """What `write_records` has done.

    Args:
        folder: The folder.
        images: Images in it.
        files: TFRecord files.
        kept: Files of them that an earlier call had written.
        bytes: Their size.
    """

    folder: pathlib.Path
    images: int
    files: int
    kept: int
    bytes: int


def write_records(
    images: ImageSet,
    folder: str | os.PathLike[str],
    per_file: int = 1_000,
    seed: int = 0,
    threads: int | None = None,
) -> WrittenRecords:
    """Writes labelled images as TFRecord files with an index.

    Encoded images are copied as they are, pixels become PNG files. Images that can be read in any
    order are shuffled once, because records are shuffled in training through a buffer alone. The
    same call after an interruption continues: files that are complete are kept.

    Args:
        images: Images from any reader.
        folder: Local folder to write to; new, or of an interrupted call with the same arguments.
        per_file: Images in a file, of the last fewer.
        seed: Random seed of the order.
        threads: Files to write at once; `None` takes as many as there are processors.

    Returns:
        A `WrittenRecords`.

    Raises:
        FileExistsError: If the folder holds other files, or records of other images or arguments.
        ValueError: If images are floats.
    """
    check_positive("per_file", per_file)
    folder = pathlib.Path(folder)
    if images.records is None:
        images = images.subset(np.random.default_rng(seed).permutation(images.num_images))
    count = -(-images.num_images // per_file)
    files = [folder / f"images-{index:05}-of-{count:05}.tfrecord" for index in range(count)]
    plan = {
        "format": _FORMAT,
        "source": images.name,
        "sha256": digest_images(images),
        "class_names": list(images.class_names),
        "images": images.num_images,
        "per_file": per_file,
        **({} if images.task == "single_label" else {"task": images.task}),
    }
    kept = count
    if not _check_folder(folder, plan):
        write_text(folder / _PLAN, json.dumps(plan, indent=1))
        remove_unfinished(folder, ["*"])
        kept = sum(file.exists() for file in files)
        counts = _write_all(images, files, per_file, threads)
        rows = [
            {"file": file.name, "records": min(per_file, left), "bytes": file.stat().st_size}
            for file, left in zip(files, range(images.num_images, 0, -per_file), strict=True)
        ]
        facts = {**plan, "images_of_classes": np.sum(counts, 0).tolist(), "files": rows}
        with write_atomically(folder / INDEX) as unfinished:
            unfinished.write_text(json.dumps({**facts, "skipped": list(images.skipped)}, indent=1))
        (folder / _PLAN).unlink()
    size = sum(file.stat().st_size for file in files)
    return WrittenRecords(folder, images.num_images, count, kept, size)


def read_record_folder(
    folder: str | os.PathLike[str], class_names: Sequence[str] | None = None
) -> ImageSet:
    """Reads a folder of `write_records`.

    Args:
        folder: The folder.
        class_names: Names of the classes in the order of the labels that are wanted, such as those
            of the training images; `None` takes those of the folder.

    Returns:
        An `ImageSet`, as from `read_records`.

    Raises:
        FileNotFoundError: If there is no index.
        ValueError: If the records are incomplete or of another format, or there are images of
            classes that are not in `class_names`.
    """
    folder = pathlib.Path(folder)
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(
            f"{printable(folder)} has no {INDEX}. `keras-vit records` writes it when all records "
            f"are written{': run it again' if (folder / _PLAN).exists() else ''}."
        )
    with refusing(
        folder / INDEX,
        f"is no index of records in the format {_FORMAT!r}",
        "Read other TFRecords with `read_records`, or write these again with `keras-vit records`.",
    ):
        index = read_json(folder / INDEX)
        names, counts, files = _read_index(index)
        task = index.get("task", "single_label")
        check_choice("task", task, TASKS)
        found = {name: _size(folder / name) for name in files}
    wrong = [
        f"{name} has {'no file' if found[name] is None else f'{found[name]:,} bytes'}, not {size:,}"
        for name, (_, size) in files.items()
        if found[name] != size
    ]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of {len(files)} files of {printable(folder)} are not as written: "
            f"{listed(wrong, separator='; ')}. Copy or write them again."
        )
    known = tuple(class_names or names)
    position = {name: label for label, name in enumerate(known)}
    table = [position.get(name, -1) for name in names]
    is_single = task == "single_label"
    of_names = dict(zip(names, counts, strict=True))
    if is_single:
        unknown = [name for name, count in of_names.items() if name not in position and count]
    else:
        unknown = sorted(set(known) ^ set(names))
    if unknown:
        raise ValueError(
            f"{printable(folder)} has images of {len(unknown)} other classes: {listed(unknown)}. "
            f"The classes are {listed(known)}."
        )
    paths = tuple(os.fspath(folder / name) for name in files)
    records = tuple(count for count, _ in files.values())

    def read(path: Any) -> tf.data.Dataset:
        found = tf.where(tf.equal(tf.constant(paths), path), tf.constant(records, tf.int64), 0)
        return _read_counted(path, tf.reduce_sum(found))

    def parse(record: Any) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(record, _features(task, len(names)))
        label, order = features[_LABEL], tf.constant(table if is_single else np.argsort(table))
        return features[_IMAGE], tf.gather(order, label) if is_single else tf.gather(label, order)

    shards = Shards(paths, records, read)
    images = read_records(shards, parse, known, f"{folder} ({len(files)} files of records)", task)
    return dataclasses.replace(images, counts=tuple(of_names.get(name, 0) for name in known))


def _read_index(
    index: dict[str, Any],
) -> tuple[tuple[str, ...], list[int], dict[str, tuple[int, int]]]:
    """Classes, images of each, and records and bytes of the files by their names."""
    if index["format"] != _FORMAT:
        raise ValueError(f"its format is {index['format']!r:.40}")
    names, counts = tuple(map(str, index["class_names"])), list(index["images_of_classes"])
    files = {str(row["file"]): (row["records"], row["bytes"]) for row in index["files"]}
    numbers = [index["images"], *counts, *(number for row in files.values() for number in row)]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("it has counts that are no whole numbers from 0")
    total = sum(count for count, _ in files.values())
    if not index["images"] == total or (sum(counts) != total and "task" not in index):
        raise ValueError(
            f"it promises {index['images']:,} images, {sum(counts):,} in its classes and {total:,} "
            "in its files"
        )
    empty = [name for name, (count, size) in files.items() if not count and size]
    if empty:
        raise ValueError(f"it promises 0 images in {empty[0]}, which has some")
    if not len(set(names)) == len(names) == len(counts) or any(map(os.path.dirname, files)):
        raise ValueError("it has no count for each class, one twice, or files of other folders")
    return names, counts, files


def _read_counted(path: Any, count: Any) -> tf.data.Dataset:
    """Reads the records of a file; an error if it holds more or fewer than the index says."""

    def check(before: Any, row: tuple[Any, Any]) -> tuple[Any, Any]:
        number, record = row
        tf.debugging.Assert(
            tf.equal(number == count, record == _END),
            [INDEX, "promises", count, "images in", path, "which holds more or fewer. Copy or "
             "write the records again."],
        )  # fmt: skip
        return record, before  # one later, so that the last is read with the end of the file

    records = tf.data.TFRecordDataset(path).concatenate(tf.data.Dataset.from_tensors(_END))
    return records.enumerate().scan(_END, check).skip(1)


def make_example(image: bytes, label: Any) -> bytes:
    """The record of an encoded image and its class, or a vector of its labels or numbers."""
    if np.ndim(label):
        stored = tf.train.Feature(float_list=tf.train.FloatList(value=label))
    else:
        stored = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    encoded = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))
    features = tf.train.Features(feature={_IMAGE: encoded, _LABEL: stored})
    example = tf.train.Example(features=features)
    return example.SerializeToString(deterministic=True)


def _check_folder(folder: pathlib.Path, plan: dict[str, Any]) -> bool:
    """Whether these records are complete; raises if the folder holds something else."""
    is_done = (folder / INDEX).exists()
    found = folder / (INDEX if is_done else _PLAN)
    if not found.exists():
        if folder.exists() and any(path.name[0] != "." for path in folder.iterdir()):
            raise FileExistsError(
                f"{printable(folder)} holds other files. Choose a new folder for the records."
            )
        return False
    before = read_json(found)
    other = [key for key in plan if not isinstance(before, dict) or before.get(key) != plan[key]]
    if other:
        raise FileExistsError(
            f"{printable(folder)} holds records that differ in {', '.join(other)}. Pass the same "
            "images and settings as before, or choose a new folder."
        )
    return is_done


def _write_all(
    images: ImageSet, files: Sequence[pathlib.Path], per_file: int, threads: int | None
) -> list[np.ndarray]:
    """Writes the files that are missing, and counts the images of each class in every file."""

    def write(index: int) -> np.ndarray:
        first = index * per_file
        if not files[index].exists():
            _write_file(images, (first, min(first + per_file, images.num_images)), files[index])
        return _count_classes(files[index], images)

    return map_threads(write, range(len(files)), f"records of {images.name}", threads=threads)


def _write_file(images: ImageSet, part: tuple[int, int], path: pathlib.Path) -> None:
    pairs = images.read(part, None, 0).map(lambda item, label: (_encode(images.load(item)), label))
    with write_atomically(path) as unfinished, tf.io.TFRecordWriter(os.fspath(unfinished)) as file:
        for image, label in pairs.as_numpy_iterator():
            file.write(make_example(image, label))


def _encode(image: Any) -> Any:
    if image.dtype == tf.string:
        return image
    if image.dtype != tf.uint8:
        raise ValueError(
            f"Records hold encoded images or pixels of uint8. Received: {image.dtype.name}. Round "
            "the pixels, and convert them."
        )
    return tf.io.encode_png(image)


def _count_classes(path: pathlib.Path, images: ImageSet) -> np.ndarray:
    """Images of each class in a file, by reading it again, which also checks every record.

    Of several labels and numbers, the images where each is not 0.
    """
    classes = images.num_classes
    counts = np.zeros(classes, "int64")
    only = {_LABEL: _features(images.task, classes)[_LABEL]}
    records = tf.data.TFRecordDataset(os.fspath(path)).batch(256)
    for labels in records.map(lambda batch: tf.io.parse_example(batch, only)[_LABEL]):
        y = labels.numpy()
        counts += np.count_nonzero(y, 0) if y.ndim > 1 else np.bincount(y, minlength=classes)
    return counts


def _features(task: str, classes: int) -> dict[str, Any]:
    label = ((), tf.int64) if task == "single_label" else ((classes,), tf.float32)
    return {_IMAGE: tf.io.FixedLenFeature((), tf.string), _LABEL: tf.io.FixedLenFeature(*label)}


def _size(path: pathlib.Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_size if is_regular(path) else None
    return None
