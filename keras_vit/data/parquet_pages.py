"""Reads a column of a row group of a Parquet file in little memory.

pyarrow decompresses a page, and a dictionary for all pages, as a whole, so a file of some kilobytes
could take gigabytes. The headers of the pages say how large they are, and are read before.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import IO, Any

from keras_vit.errors import printable
from keras_vit.reading import open_regular

MAX_GROUP_BYTES = 1 << 26  # that a row group may unpack to; reading five at once takes 490 MB
_RATIO = 2  # ... or so many times its bytes in the file: encoded images hardly compress
_AT_ONCE = 1 << 25  # bytes of the values that pyarrow makes at once
_STRUCT, _SIZES = 12, {1: 1, 2: 1, 3: 1, 7: 8, 8: 0}  # bytes of values; 0 is that they say it
_ENCRYPTION = (4, 1, 8)  # `row_groups`, `columns` and `crypto_metadata`


def check_size(path: str, group: int, unpacked: int, stored: int, limit: int) -> None:
    """Checks what a column of a row group unpacks to.

    Args:
        path: The file.
        group: Number of the row group.
        unpacked: Bytes of the column in memory.
        stored: Bytes of it in the file.
        limit: Most bytes in memory, unless `stored` are half of them.

    Raises:
        ValueError: If it unpacks to more.
    """
    if unpacked > max(limit, _RATIO * stored):
        raise ValueError(
            f"{printable(path)} may be made to fill the memory: {stored:,} bytes of row group "
            f"{group} unpack to {unpacked:,} or more, and at most {limit:,} are read. If you trust "
            "it, pass a larger `max_group_bytes`, or write it with smaller row groups: "
            "`pyarrow.parquet.write_table(..., row_group_size=100)`."
        )


def read_values(
    path: str, file: Any, group: int, name: str, most: int, limit: int
) -> Iterator[list[Any]]:
    """Reads a column of a row group in parts, after the sizes of its pages are checked.

    Args:
        path: The file.
        file: It as a `pyarrow.parquet.ParquetFile`.
        group: Number of the row group.
        name: The column; `a.b` is the field `b` of the structs in `a`.
        most: Values at once, of long ones fewer.
        limit: As for `check_size`.

    Yields:
        Lists of values; `None` where there is none.

    Raises:
        ValueError: If the column unpacks to more than `limit` allows, or does not have a value for
            each row.
    """
    from pyarrow.types import is_struct

    facts = file.metadata.row_group(group)
    stored = longest = 0
    for column in map(facts.column, find_leaves(file.schema, name)):
        size, largest = _measure_pages(path, group, column, limit)
        stored += size
        if column.physical_type == "BYTE_ARRAY":  # each may be as long as a page, or a dictionary
            longest = max(longest, largest)
    most = max(1, min(most, _AT_ONCE // max(longest, 1)))
    count = unpacked = 0
    for batch in file.iter_batches(most, [group], [name]):
        part = batch.column(0)
        count, unpacked = count + len(part), unpacked + batch.nbytes
        check_size(path, group, unpacked, stored, limit)
        yield (part.flatten()[0] if is_struct(part.type) else part).to_pylist()
    if count != facts.num_rows:
        raise ValueError(f"row group {group} has {count:,} values in {facts.num_rows:,} rows")


def find_leaves(schema: Any, name: str) -> list[int]:
    """Positions of a column, or of the fields in it, among those that hold values."""
    paths = [schema.column(index).path for index in range(len(schema))]
    return [index for index, path in enumerate(paths) if f"{path}.".startswith(f"{name}.")]


def _measure_pages(path: str, group: int, column: Any, limit: int) -> tuple[int, int]:
    """Bytes of all pages in the file, and of the largest in memory."""
    starts = [column.data_page_offset]
    if column.has_dictionary_page and column.dictionary_page_offset > 0:
        starts.append(column.dictionary_page_offset)
    end = min(starts) + column.total_compressed_size
    stored = unpacked = largest = 0
    with open_regular(path) as stream:
        end = min(end, os.fstat(stream.fileno()).st_size)
        stream.seek(min(starts))
        while stream.tell() < end:
            page = {
                path[0]: x for path, x in _read_fields(stream) if len(path) == 1 and x is not None
            }
            if page[2] < 0 or not 0 <= page[3] <= end - stream.tell():
                raise ValueError(f"a page of row group {group} claims {page[3]:,} bytes")
            stream.seek(page[3], os.SEEK_CUR)
            stored, unpacked, largest = stored + page[3], unpacked + page[2], max(largest, page[2])
            check_size(path, group, unpacked, stored, limit)
    return stored, largest


def check_open(path: str) -> None:
    """Raises ValueError if columns are encrypted, at whose sizes pyarrow ends the process."""
    with open_regular(path) as stream:
        stream.seek(-8, os.SEEK_END)
        size = int.from_bytes(stream.read(4), "little")
        stream.seek(-8 - size, os.SEEK_END)
        footer = io.BytesIO(stream.read(size))
    if any(field == _ENCRYPTION for field, _ in _read_fields(footer)):
        raise ValueError("its columns are encrypted")


def _read_fields(
    stream: IO[bytes], kind: int = _STRUCT, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Reads a value in Thrift's compact protocol, a header or a footer.

    Yields:
        The numbers of every field and of those that it is in, outermost first, and its value, if it
        is an integer of 32 bits.
    """
    if kind == _STRUCT:
        field = 0
        while inner := (byte := stream.read(1)[0]) & 15:
            field = field + (byte >> 4) if byte >> 4 else _signed(_read_number(stream))
            if inner == 5:
                yield (*path, field), _signed(_read_number(stream) & 0xFFFFFFFF)
                continue
            yield (*path, field), None
            if inner not in (1, 2):  # true and false
                yield from _read_fields(stream, inner, (*path, field))
    elif kind in (9, 10):  # list and set
        byte = stream.read(1)[0]
        for _ in range(_read_number(stream) if byte >> 4 == 15 else byte >> 4):
            yield from _read_fields(stream, byte & 15, path)
    elif kind in (4, 5, 6):
        _read_number(stream)
    elif kind in _SIZES:
        stream.seek(_SIZES[kind] or _read_number(stream), os.SEEK_CUR)
    else:
        raise ValueError(f"a header has a field of type {kind}")


def _read_number(stream: IO[bytes]) -> int:
    """Seven bits of each byte, the lowest first, until a byte without the eighth."""
    number = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)[0]
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("a number in a header is too long")


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)
