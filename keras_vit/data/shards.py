"""Reads files of records as batches for several workers: every record once per epoch.

Workers that read whole files finish at different times. Here the records of all files form one
sequence, and each worker reads an equal part of it. A worker opens only the files of its part. At
most the first and the last of them are also read by other workers.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.checks import check_positive, short_repr
from keras_vit.data.epochs import EpochPlan, distribute, read_epochs
from keras_vit.errors import printable
from keras_vit.files import local_or_remote
from keras_vit.reading import open_regular

_LENGTH = struct.Struct("<Q")  # then checksum of the length (4 bytes), data, checksum of the data
_CHECKSUM_BYTES = 4
_FILES_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Shards:
    """Files of records, and the number of records in each.

    Args:
        files: Paths, in the same order in every worker.
        counts: Records in each file.
        read: Makes a `tf.data.Dataset` of records from the path of a file, a string tensor.
        skips: Records to skip at the start of each file; none if empty.

    Raises:
        ValueError: If there are no records, or not one count per file.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...]
    read: Callable[[Any], tf.data.Dataset] = tf.data.TFRecordDataset
    skips: tuple[int, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        object.__setattr__(self, "skips", self.skips or (0,) * len(self.files))
        if len(self.files) != len(self.counts):
            raise ValueError(
                f"There must be one count for each of the {len(self.files)} files. Received: "
                f"{len(self.counts)} counts."
            )
        if min(self.counts, default=0) < 0 or not sum(self.counts):
            raise ValueError(
                "The files must hold at least one record. Received: "
                f"{len(self.files)} files with counts {list(self.counts[:5])}."
            )

    @property
    def num_records(self) -> int:
        """Records in all files."""
        return sum(self.counts)

    def slice(self, first: int, end: int) -> Shards:
        """Chooses records by their positions in the order of the files, such as those to hold out.

        Args:
            first: Position of the first record, from 0.
            end: The position after the last record.

        Returns:
            `Shards` of these records alone. What shuffles them sees no others.

        Raises:
            ValueError: If there is no record between the two.
        """
        if not 0 <= first < end <= self.num_records:
            raise ValueError(
                f"There are {self.num_records} records. Received: first={first} and end={end}."
            )
        pieces, start = [], 0
        for path, count, skip in zip(self.files, self.counts, self.skips, strict=True):
            low, high = (min(max(place - start, 0), count) for place in (first, end))
            if high > low:
                pieces.append((path, high - low, skip + low))
            start += count
        files, counts, skips = zip(*pieces, strict=True)
        return dataclasses.replace(self, files=files, counts=counts, skips=skips)


def find_shards(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    counts: Sequence[int] | None = None,
    read: Callable[[Any], tf.data.Dataset] | None = None,
) -> Shards:
    """Finds the files of a data set, and counts their records.

    Args:
        files: A pattern such as `"gs://bucket/train-*.tfrecord"`, whose files are sorted by name,
            or paths, in the same order on all workers.
        counts: Records in each file, such as `info.splits["train"].shard_lengths` of TFDS. By
            default they are counted: TFRecords by one short read per record, others by reading
            everything.
        read: Makes a `tf.data.Dataset` of records from the path of a file, a string tensor, such
            as `lambda path: tf.data.TFRecordDataset(path, "GZIP")`; `None` reads TFRecords.

    Returns:
        `Shards`, for `read_shards`.

    Raises:
        ValueError: If there are no files, no records, or a file is no TFRecord.
    """
    if isinstance(files, str | os.PathLike):
        found = sorted(tf.io.gfile.glob(os.fspath(files)))  # glob has no fixed order
    else:
        found = [os.fspath(path) for path in files]
    if not found:
        raise ValueError(f"There are no files to read. Received: {files!r}.")
    if counts is None and read is None:
        counts = [sum(1 for _ in find_records(path)) for path in found]
    read = read or tf.data.TFRecordDataset
    if counts is None:
        counts = [int(read(tf.constant(path)).reduce(0, lambda n, _: n + 1)) for path in found]
    return Shards(tuple(found), tuple(map(int, counts)), read)


def read_shards(
    shards: Shards,
    parse: Callable[[Any], Any],
    batch_size: int,
    shuffle_buffer: int = 0,
    seed: int = 0,
    drop_remainder: bool = False,
    worker: tuple[int, int] | None = None,
) -> Any:
    """Reads records as batches for `model.fit`; each worker reads its own part.

    Inside `strategy.scope()`, every worker of the strategy reads an equal part of the records. In
    an epoch, exactly one worker reads each record. All workers have the same number of steps: the
    last batches may be smaller or empty, and `keras_vit.Model` weights them by their number of
    images. Outside of a scope the dataset is for one worker. If it is used under a strategy later,
    every worker reads all records and keeps its share of each batch.

    With a `shuffle_buffer`, every epoch has its own order of the files and of the records in the
    buffer of each worker. The order depends only on the seed and the number of the epoch, so runs
    are reproducible.

        with strategy.scope():
            model = keras_vit.ViTB16()
            train = keras_vit.data.read_shards(
                keras_vit.data.find_shards("train-*.tfrecord"), parse, 1024, shuffle_buffer=10_000
            )
        model.fit(train, epochs=90)

    Args:
        shards: As from `find_shards`.
        parse: Maps a record to the inputs of `fit`, such as an image and a label; the shapes are
            the same for all records.
        batch_size: Images per step, of all workers together.
        shuffle_buffer: Records in the shuffle buffer of each worker; 0 reads in the order of the
            files, as for evaluation.
        seed: Random seed, the same on all workers.
        drop_remainder: Whether to drop an incomplete last batch; the dropped records differ from
            epoch to epoch. TPUs need it, because they compile for fixed shapes.
        worker: Index and number of workers, if `tf.distribute` is not used; then the dataset holds
            the part of this worker, in batches of `batch_size / number`.

    Returns:
        A `tf.data.Dataset`, or under a strategy of several replicas a distributed dataset.

    Raises:
        ValueError: If the batch cannot be divided evenly among the replicas, or the index of the
            worker is out of range.
    """
    check_positive("batch_size", batch_size)
    count = shards.num_records
    plan = functools.partial(EpochPlan, count, batch_size, drop_remainder=drop_remainder)

    def read(part: tuple[int, int], number: Any) -> tf.data.Dataset:
        return read_part(shards, part, number if shuffle_buffer else None, shuffle_buffer)

    return distribute(plan, lambda own: read_epochs(own, read, parse, seed), worker)


def read_part(
    shards: Shards, part: tuple[int, int], number: Any, shuffle_buffer: int
) -> tf.data.Dataset:
    """Reads a part of the records.

    Args:
        shards: The files.
        part: The first record, and the one after the last.
        number: Number of the epoch, an int64 tensor, which decides the order; `None` keeps the
            order of the files.
        shuffle_buffer: Records in the shuffle buffer; not used if `number` is `None`.

    Returns:
        A `tf.data.Dataset` of the records of `shards.read`.
    """
    records = tf.data.Dataset.from_tensor_slices(_pieces(shards, part, number)).interleave(
        lambda path, skipped, taken: shards.read(path).skip(skipped).take(taken),
        cycle_length=1 if number is None else _FILES_AT_ONCE,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return shuffled(records, number, shuffle_buffer)


def shuffled(records: tf.data.Dataset, number: Any, buffer: int) -> tf.data.Dataset:
    """Records in the order of the epoch of a number; `None` keeps them in theirs."""
    if number is None:
        return records
    tf.compat.v1.set_random_seed(1)  # of this graph, so that only the number decides
    return records.shuffle(buffer, number, reshuffle_each_iteration=False)


def _pieces(shards: Shards, part: tuple[int, int], number: Any) -> tuple[Any, Any, Any]:
    """Files that hold a part of the records, with the records to skip and to take in each."""
    files = tf.constant(shards.files)
    counts = tf.constant(shards.counts, tf.int64)
    skips = tf.constant(shards.skips, tf.int64)
    if number is not None:
        order = tf.range(len(shards.files))
        order = tf.random.experimental.stateless_shuffle(order, seed=[number, 0])
        files, counts, skips = (tf.gather(each, order) for each in (files, counts, skips))
    starts = tf.cumsum(counts, exclusive=True)
    first, end = (tf.clip_by_value(place - starts, 0, counts) for place in part)
    used = end > first
    return tf.boolean_mask(files, used), (skips + first)[used], (end - first)[used]


def find_records(path: str) -> Iterator[tuple[int, int]]:
    """First byte and length of every record of a TFRecord file, of which only the lengths are read.

    Raises:
        ValueError: If it is no TFRecord file, is compressed or cut off.
    """
    number = position = 0
    # Files of tf.io.gfile read far ahead after every seek, so local files do without.
    is_remote = isinstance(local_or_remote(path), str)
    with tf.io.gfile.GFile(path, "rb") if is_remote else open_regular(path) as file:
        size = tf.io.gfile.stat(path).length if is_remote else os.fstat(file.fileno()).st_size
        while position < size:
            file.seek(position)
            header = file.read(_LENGTH.size)
            length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else size
            start = position + _LENGTH.size + _CHECKSUM_BYTES
            position = start + length + _CHECKSUM_BYTES
            if position > size:
                raise ValueError(
                    f"{printable(path)} is no TFRecord file, is compressed, or is cut off: record "
                    f"{number} would extend beyond the end of the file. Unpack compressed files; "
                    "for `find_shards` of other formats, pass `read=`."
                )
            yield start, length
            number += 1
