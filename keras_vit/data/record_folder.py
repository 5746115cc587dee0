"""Writes labelled images as TFRecord files with an index, and reads such a folder.

Every record is a `tf.train.Example` with the encoded image and its class, in the features "image"
and "label", as of TensorFlow Datasets. `index.json` has the names of the classes, how many images
each has, and the records and bytes of every file.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive
from keras_vit.data.digests import digest_images
from keras_vit.data.image_set import ImageSet, read_records
from keras_vit.data.shard_files import INDEX
from keras_vit.data.shards import Shards
from keras_vit.errors import printable
from keras_vit.files import remove_unfinished, write_atomically
from keras_vit.progress import Progress
from keras_vit.reading import read_json

_PLAN = "unfinished.json"  # until all files are written
_FORMAT = "keras_vit records 1"
_IMAGE, _LABEL = "image", "label"
_MAX_LISTED = 10
_FEATURES = {
    _IMAGE: tf.io.FixedLenFeature((), tf.string),
    _LABEL: tf.io.FixedLenFeature((), tf.int64),
}


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
        images: Images with one class each, from any reader.
        folder: Local folder to write to; new, or of an interrupted call with the same arguments.
        per_file: Images in a file, of the last fewer.
        seed: Random seed of the order.
        threads: Files to write at once; `None` takes as many as there are processors.

    Returns:
        A `WrittenRecords`.

    Raises:
        FileExistsError: If the folder holds other files, or records of other images or arguments.
        ValueError: If images do not have one class each, or are floats.
    """
    check_positive("per_file", per_file)
    if images.task != "single_label":
        raise ValueError(
            f"Records hold one class for each image. {images.name} has task={images.task!r}. Read "
            "such images from the files of the table."
        )
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
    }
    is_done = _check_folder(folder, plan)
    if not is_done:
        with write_atomically(folder / _PLAN, replace=True) as unfinished:
            unfinished.write_text(json.dumps(plan, indent=1))
        remove_unfinished(folder, ["*"])
    kept = sum(file.exists() for file in files)
    if not is_done:
        counts = _write_all(images, files, per_file, threads)
        rows = [
            {"file": file.name, "records": int(count.sum()), "bytes": file.stat().st_size}
            for file, count in zip(files, counts, strict=True)
        ]
        facts = {**plan, "images_of_classes": np.sum(counts, 0).tolist(), "files": rows}
        with write_atomically(folder / INDEX) as unfinished:
            unfinished.write_text(json.dumps({**facts, "skipped": list(images.skipped)}, indent=1))
        (folder / _PLAN).unlink()
    size = sum(file.stat().st_size for file in files)
    return WrittenRecords(folder, images.num_images, len(files), kept, size)


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
    index = read_json(folder / INDEX)
    try:
        is_known = index["format"] == _FORMAT
        names, counts = tuple(map(str, index["class_names"])), list(index["images_of_classes"])
        rows = [(row["file"], int(row["records"]), int(row["bytes"])) for row in index["files"]]
        files = {str(name): (count, size) for name, count, size in rows}
        fits = is_known and len(names) == len(counts) and not any(map(os.path.dirname, files))
    except (KeyError, TypeError, ValueError, IndexError):
        fits = False
    if not fits:
        raise ValueError(
            f"{printable(folder / INDEX)} is no index of records in the format {_FORMAT!r}. Read "
            "other TFRecords with `read_records`, or write these again with `keras-vit records`."
        )
    found = {name: _size(folder / name) for name in files}
    wrong = [
        f"{name} has {'no file' if found[name] is None else f'{found[name]:,} bytes'}, not {size:,}"
        for name, (_, size) in files.items()
        if found[name] != size
    ]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of {len(files)} files of {printable(folder)} are not as written: "
            f"{printable('; '.join(wrong[:_MAX_LISTED]))}. Copy or write them again."
        )
    known = tuple(class_names or names)
    position = {name: label for label, name in enumerate(known)}
    table = list(range(len(names))) if known == names else [position.get(n, -1) for n in names]
    unknown = [n for n, label, count in zip(names, table, counts, strict=True) if label < 0 < count]
    if unknown:
        listed = ", ".join(map(printable, unknown[:_MAX_LISTED]))
        raise ValueError(
            f"{printable(folder)} has images of {len(unknown)} other classes: {listed}. The "
            f"classes are {', '.join(map(printable, known[:_MAX_LISTED]))}."
        )
    shards = Shards(
        tuple(os.fspath(folder / name) for name in files), tuple(n for n, _ in files.values())
    )

    def parse(record: Any) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(record, _FEATURES)
        return features[_IMAGE], tf.gather(tf.constant(table, tf.int64), features[_LABEL])

    return read_records(shards, parse, known, f"{folder} ({len(files)} files of records)")


def make_example(image: bytes, label: int) -> bytes:
    """The record of an encoded image and its class."""
    features = {
        _IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        _LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
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
        return _count_classes(files[index], images.num_classes)

    counts = []
    with (
        Progress(f"records of {images.name}", len(files)) as progress,
        concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool,
    ):
        try:
            for count in pool.map(write, range(len(files))):
                counts.append(count)
                progress.update(len(counts))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return counts


def _write_file(images: ImageSet, part: tuple[int, int], path: pathlib.Path) -> None:
    pairs = images.read(part, None, 0).map(lambda item, label: (_encode(images.load(item)), label))
    with write_atomically(path) as unfinished, tf.io.TFRecordWriter(os.fspath(unfinished)) as file:
        for image, label in pairs.as_numpy_iterator():
            file.write(make_example(image, int(label)))


def _encode(image: Any) -> Any:
    if image.dtype == tf.string:
        return image
    if image.dtype != tf.uint8:
        raise ValueError(
            f"Records hold encoded images or pixels of uint8. Received: {image.dtype.name}. Round "
            "the pixels, and convert them."
        )
    return tf.io.encode_png(image)


def _count_classes(path: pathlib.Path, classes: int) -> np.ndarray:
    """Images of each class in a file, by reading it again, which also checks every record."""
    counts = np.zeros(classes, "int64")
    only = {_LABEL: _FEATURES[_LABEL]}
    records = tf.data.TFRecordDataset(os.fspath(path)).batch(256)
    for labels in records.map(lambda batch: tf.io.parse_example(batch, only)[_LABEL]):
        counts += np.bincount(labels.numpy(), minlength=classes)
    return counts


def _size(path: pathlib.Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return None
