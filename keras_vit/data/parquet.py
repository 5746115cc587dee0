"""Reads labelled images of Parquet files, as Hugging Face's data sets are stored, as an `ImageSet`.

A row group is what a worker reads as a whole, as a file of records.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import io
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.folder import examine_bytes, report_problems
from keras_vit.data.image_set import ImageSet
from keras_vit.data.labelled_set import record_reader
from keras_vit.data.parquet_pages import (
    MAX_GROUP_BYTES,
    RowGroup,
    check_size,
    find_leaves,
    read_row_groups,
    read_values,
)
from keras_vit.data.shards import Shards
from keras_vit.data.stored_labels import find_labels
from keras_vit.data.tars import check_unchanged, find_files
from keras_vit.data.tiff import as_png
from keras_vit.data.webdataset import CHECKS
from keras_vit.errors import listed, printable, raise_problems
from keras_vit.installation import needing
from keras_vit.progress import map_threads
from keras_vit.reading import open_regular, parse_json, refusing

_LABEL_NAMES = ("label", "labels", "class")  # the first that is there
_ROWS_AT_ONCE, _LABELS_AT_ONCE = 64, 1 << 16
_LARGE_GROUP = 1 << 28  # bytes
_MIN_ROW_BYTES, _FEW_ROWS = 32, 1 << 20  # of a file; a smaller image is not one
_METADATA = b"huggingface"  # key of the schema, with JSON about the features


class _Columns(NamedTuple):
    """The columns that are read, of structs the field, and the names of the numbers, or `None`."""

    image: str
    label: str | None
    names: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"the columns {self.image} and {self.label} ({len(self.names or ())} names)"


class _Group(NamedTuple):
    """A row group: its file and number, its first row in the file and of all, and its rows.

    `limit` is how many bytes it may unpack to.
    """

    path: str
    number: int
    start: int
    first: int
    rows: int
    limit: int


def read_parquet(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    class_names: Sequence[str] | None = None,
    image_name: str | None = None,
    label_name: str | None = None,
    unreadable: str = "error",
    check: str = "headers",
    max_pixels: int = MAX_PIXELS,
    labelled: bool = True,
    max_group_bytes: int = MAX_GROUP_BYTES,
) -> ImageSet:
    """Reads labelled images from Parquet files on a local disk, such as those of Hugging Face.

    The column of the image is a struct with the field `bytes`, or binary: encoded images. That of
    the label holds numbers, whose names `datasets` keeps in the schema (`ClassLabel`), or names.

    Opening reads all labels in every worker, and the images as far as `check` says. Training
    shuffles row groups and, through a buffer, images, as `read_records` does; every worker opens
    the row groups of its own part.

    Args:
        files: A pattern such as `"data/train-*.parquet"`, whose files are sorted by name, or paths.
        class_names: Names of the classes in the order of the labels, such as those of the training
            images. Labels with stored names are then found by their names. `None` takes the
            stored names, or numbers from 0.
        image_name: Column of the image; `None` takes the one that is an image by the schema.
        label_name: Column of the label; `None` takes the one that is a `ClassLabel`, or `label`,
            `labels` or `class`.
        unreadable: As for `read_folder`; a missing or unknown label is always an error.
        check: As for `read_folder`; either reads all images once. `"none"` reads none before
            training, where an unreadable one is an error.
        max_pixels: As for `read_folder`.
        labelled: Whether labels are read. Without, every image is of the first of `class_names`.
        max_group_bytes: Bytes that a column of a row group may unpack to, unless it has half of
            them in the file. More are refused before they are unpacked.

    Returns:
        An `ImageSet` in the order of the files and of their rows.

    Raises:
        ImportError: If pyarrow is not installed.
        FileNotFoundError: If there are no such files.
        ValueError: If a file is damaged, unpacks to too many bytes, lacks a column or differs from
            the first; or there are images that cannot be read, or labels that are missing or
            unknown. The message lists them.

    Example:

    >>> train = keras_vit.data.read_parquet("data/train-*.parquet")  # doctest: +SKIP
    >>> test = keras_vit.data.read_parquet(
    ...     "data/test-*.parquet", train.class_names
    ... )  # doctest: +SKIP
    """
    check_choice("unreadable", unreadable, ("error", "skip"))
    check_choice("check", check, CHECKS)
    found = find_files(files)
    source = f"{os.path.dirname(found[0]) or '.'} ({len(found)} Parquet files)"
    columns, groups = _open_all(found, image_name, label_name, labelled, max_group_bytes)
    if not groups:
        raise ValueError(f"There are no rows in {printable(listed(found))}.")
    starts = [group.first for group in groups]
    count = starts[-1] + groups[-1].rows

    def name_of(row: int) -> str:
        group = groups[bisect.bisect(starts, row) - 1]
        return f"{group.path}:row {group.start + row - group.first}"

    known, labels = tuple(class_names or ("image",)), np.zeros(count, "int64")
    if labelled:
        values = _read_labels(groups, columns)
        without = [row for row, value in enumerate(values) if value is None]
        raise_problems(source, [f"{name_of(row)} has no label" for row in without])
        known, labels = find_labels(values, class_names, columns.names, source, name_of)
    bad = {} if check == "none" else _find_bad(groups, columns, check, max_pixels)
    skipped = tuple(f"{name_of(row)} {problem}" for row, problem in sorted(bad.items()))
    report_problems(skipped, unreadable, source, count)
    kept = np.ones(count, bool)
    kept[list(bad)] = False
    rows = np.flatnonzero(kept).tolist()
    shards = _as_shards(groups, columns, kept, labels, max_pixels)
    return ImageSet(
        f"{source}, {columns.label}",
        known,
        (np.arange(len(rows)),),
        tf.identity,
        max_pixels,
        record_reader(shards, lambda image, label: (image, label)),
        skipped,
        shards=shards,
        record_name=lambda position: name_of(rows[position]),
        counts=tuple(np.bincount(labels[kept], minlength=len(known)).tolist()),
    )


def _open_all(
    paths: Sequence[str], image: str | None, label: str | None, labelled: bool, limit: int
) -> tuple[_Columns, list[_Group]]:
    """The columns, which are the same in all files, and the row groups with rows."""
    first: _Columns | None = None
    groups: list[_Group] = []
    total = largest = 0
    for path in paths:
        with _open(path) as (file, found):
            columns = _find_columns(path, file.schema_arrow, image, label, labelled)
            first = first or columns
            if columns != first:
                raise ValueError(
                    f"The files must have the same columns and classes. {printable(paths[0])} has "
                    f"{first}, and {printable(path)} {columns}. Read them one by one."
                )
            start, size = 0, os.stat(path).st_size
            (leaf,) = find_leaves(file.schema, columns.image)
            counts, count = [facts.rows for facts in found], file.metadata.num_rows
            if min(counts, default=0) < 0 or sum(counts) != count:
                raise ValueError(f"its row groups have {counts[:9]} rows, of {count:,} in the file")
            if count > max(_FEW_ROWS, size // _MIN_ROW_BYTES):
                raise ValueError(f"{count:,} rows in {size:,} bytes")
            for number, facts in enumerate(found):
                rows, largest, chunk = facts.rows, max(largest, facts.unpacked), facts.chunks[leaf]
                check_size(path, number, chunk.unpacked, min(size, chunk.stored), limit)
                if rows:
                    groups.append(_Group(path, number, start, total, rows, limit))
                start, total = start + rows, total + rows
    if largest > _LARGE_GROUP:
        warnings.warn(
            f"{printable(paths[0])} or a file beside it has a row group of {largest / 1e9:.1f} GB. "
            "Training has up to 16 row groups in memory, and shuffles them as a whole. Write the "
            "files with smaller ones: `pyarrow.parquet.write_table(..., row_group_size=100)`.",
            stacklevel=3,
        )
    assert first is not None
    return first, groups


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[Any, list[RowGroup]]]:
    """Opens a file with pyarrow, reads what it says of row groups, and names it in errors."""
    with needing("parquet", "Reading Parquet files needs pyarrow"):
        import pyarrow
        import pyarrow.parquet
    problem = "is no Parquet file that can be read, or it is damaged or cut off"
    with refusing(path, problem, "Copy or write it again."), open_regular(path) as file:
        opened = pyarrow.parquet.ParquetFile(file)
        yield opened, read_row_groups(path)


def _find_columns(
    path: str, schema: Any, image: str | None, label: str | None, labelled: bool
) -> _Columns:
    from pyarrow import types

    features = _read_features(schema)

    def is_image(name: str) -> bool:
        kind = schema.field(name).type
        fields = {field.name: field.type for field in kind} if types.is_struct(kind) else {}
        kind = fields.get("bytes", kind)
        return types.is_binary(kind) or types.is_large_binary(kind)

    def is_label(name: str) -> bool:
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)

    def of_type(feature: str) -> list[str]:
        return [name for name in schema.names if features.get(name, {}).get("_type") == feature]

    images = [image] if image else of_type("Image") or list(filter(is_image, schema.names))
    usual = [name for name in _LABEL_NAMES if name in schema.names][:1]
    labels = [label] if label else of_type("ClassLabel") or usual
    wanted = [("image_name", images, is_image, "an image: a struct with `bytes`, or binary")]
    if labelled:
        wanted.append(("label_name", labels, is_label, "a label: whole numbers or names"))
    for argument, names, fits, what in wanted:
        if len(names) != 1 or names[0] not in schema.names or not fits(names[0]):
            listed = ", ".join(f"{each.name} ({each.type})" for each in schema)
            raise ValueError(
                f"{printable(path)} must have one column that is {what}. Received: "
                f"{printable(', '.join(names)) or 'none'} of {printable(listed)[:500]}. Pass its "
                f"name as `{argument}`, or write the files with one such column."
            )
    leaf = images[0] if not types.is_struct(schema.field(images[0]).type) else f"{images[0]}.bytes"
    if not labelled:
        return _Columns(leaf, None, None)
    stored = features.get(labels[0], {}).get("names")
    classes = tuple(map(str, stored)) if isinstance(stored, list) else None
    return _Columns(leaf, labels[0], classes)


def _read_features(schema: Any) -> dict[str, Any]:
    """What `datasets` says about the columns; empty if something else wrote the file."""
    try:
        found = parse_json((schema.metadata or {}).get(_METADATA, b"null"))["info"]["features"]
        return {name: each for name, each in found.items() if isinstance(each, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read_labels(groups: Sequence[_Group], columns: _Columns) -> list[Any]:
    values: list[Any] = []
    known: dict[Any, Any] = {}  # equal names are one object
    assert columns.label is not None
    for _, inside in itertools.groupby(groups, lambda group: group.path):
        for labels in _read(list(inside), columns.label, _LABELS_AT_ONCE):
            values += [known.setdefault(label, label) for label in labels]
    return values


def _read_images(group: _Group, columns: _Columns) -> Iterator[list[bytes | None]]:
    """The images of a row group, some at a time; `None` where there are no bytes."""
    return _read([group], columns.image, _ROWS_AT_ONCE)


def _read(groups: Sequence[_Group], name: str, most: int) -> Iterator[list[Any]]:
    """The values of a column in row groups of one file."""
    path = groups[0].path
    with _open(path) as (file, found):
        for group in groups:
            yield from read_values(path, file, found, group.number, name, most, group.limit)


def _find_bad(
    groups: Sequence[_Group], columns: _Columns, check: str, max_pixels: int
) -> dict[int, str]:
    """What is wrong with images, by their rows of all."""

    def examine(group: _Group) -> dict[int, str]:
        images = itertools.chain.from_iterable(_read_images(group, columns))
        problems = (_examine(image, check, max_pixels) for image in images)
        return {row: each for row, each in enumerate(problems, group.first) if each}

    found = map_threads(examine, groups, "checking images", "row groups")
    return {row: problem for each in found for row, problem in each.items()}


def _examine(image: bytes | None, check: str, max_pixels: int) -> str | None:
    if image is None:
        return "has no bytes: the image is not in the file"
    return examine_bytes(io.BytesIO(image), len(image), check, max_pixels)


def _as_shards(
    groups: Sequence[_Group],
    columns: _Columns,
    kept: np.ndarray,
    labels: np.ndarray,
    max_pixels: int,
) -> Shards:
    """Reads row groups as files of records: the rows that are kept, with their labels."""
    digest = hashlib.sha256(labels.tobytes() + kept.tobytes()).hexdigest()[:16]

    def read_group(key: bytes) -> tuple[np.ndarray, np.ndarray]:
        index, changed, _ = key.split(b" ", 2)
        group = groups[int(index)]
        check_unchanged(group.path, os.stat(group.path), int(changed))
        rows = slice(group.first, group.first + group.rows)
        images = np.array(list(itertools.chain(*_read_images(group, columns))), object)[kept[rows]]
        if None in images:
            raise ValueError(f"{printable(group.path)} has a row without an image.")
        images = np.array([as_png(image, max_pixels) for image in images], object)
        return images, labels[rows][kept[rows]]

    def read(key: Any) -> tf.data.Dataset:
        types = (tf.string, tf.int64)
        images, classes = tf.numpy_function(read_group, [key], types, stateful=False)
        return tf.data.Dataset.from_tensor_slices(
            (tf.ensure_shape(images, (None,)), tf.ensure_shape(classes, (None,)))
        )

    keys = [
        f"{index} {os.stat(group.path).st_mtime_ns} {digest} {group.path}"
        for index, group in enumerate(groups)
    ]
    counts = [int(kept[group.first : group.first + group.rows].sum()) for group in groups]
    return Shards(tuple(keys), tuple(counts), read)


def read_column(paths: Sequence[str], names: Sequence[str]) -> list[Any]:
    """The values of the first of some columns that files have, one for every row."""
    values: list[Any] = []
    for path in paths:
        with _open(path) as (file, groups):
            name = next((name for name in names if name in file.schema_arrow.names), None)
            if name is None:
                raise ValueError(f"{printable(path)} has no column {' or '.join(names)}.")
            for group in range(len(groups)):
                parts = read_values(
                    path, file, groups, group, name, _LABELS_AT_ONCE, MAX_GROUP_BYTES
                )
                values += itertools.chain.from_iterable(parts)
    return values
