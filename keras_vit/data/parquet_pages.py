"""Reads a column of a row group of a Parquet file in little memory.

pyarrow decompresses a page, and a dictionary for all pages, as a whole, so a file of some kilobytes
could take gigabytes. The headers of the pages say how large they are, and are read before.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from keras_vit.errors import printable
from keras_vit.reading import open_regular

MAX_GROUP_BYTES = 1 << 26  # that a row group may unpack to; reading five at once takes 490 MB
_RATIO = 2  # ... or so many times its bytes in the file: encoded images hardly compress
_AT_ONCE = 1 << 25  # bytes of the values that pyarrow makes at once
_STRUCT, _SIZES = 12, {1: 1, 2: 1, 3: 1, 7: 8, 8: 0}  # bytes of values; 0 is that they say it
_INTEGERS = {5: 2**32 - 1, 6: 2**64 - 1}
_BYTE_ARRAY = 6  # the type of values of any length


class Chunk(NamedTuple):
    """A column of a row group: the type of its values, its bytes, and where it starts.

    `stored` are its bytes in the file, `unpacked` those in memory.
    """

    kind: int
    unpacked: int
    stored: int
    start: int


class RowGroup(NamedTuple):
    """A row group: its bytes in memory, its rows, and the columns that hold values."""

    unpacked: int
    rows: int
    chunks: tuple[Chunk, ...]


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
    path: str, file: Any, groups: list[RowGroup], group: int, name: str, most: int, limit: int
) -> Iterator[list[Any]]:
    """Reads a column of a row group in parts, after the sizes of its pages are checked.

    Args:
        path: The file.
        file: It as a `pyarrow.parquet.ParquetFile`.
        groups: What `read_row_groups` says about it.
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

    stored = longest = 0
    for leaf in find_leaves(file.schema, name):
        chunk = groups[group].chunks[leaf]
        size, largest = _measure_pages(path, group, chunk, limit)
        stored += size
        if chunk.kind == _BYTE_ARRAY:  # each may be as long as a page, or a dictionary
            longest = max(longest, largest)
    most = max(1, min(most, _AT_ONCE // max(longest, 1)))
    count = unpacked = 0
    for batch in file.iter_batches(most, [group], [name]):
        part = batch.column(0)
        count, unpacked = count + len(part), unpacked + batch.nbytes
        check_size(path, group, unpacked, stored, limit)
        yield (part.flatten()[0] if is_struct(part.type) else part).to_pylist()
    if count != (rows := groups[group].rows):
        raise ValueError(f"row group {group} has {count:,} values in {rows:,} rows")


def find_leaves(schema: Any, name: str) -> list[int]:
    """Positions of a column, or of the fields in it, among those that hold values."""
    paths = [schema.column(index).path for index in range(len(schema))]
    return [index for index, path in enumerate(paths) if f"{path}.".startswith(f"{name}.")]


def _measure_pages(path: str, group: int, chunk: Chunk, limit: int) -> tuple[int, int]:
    """Bytes of all pages in the file, and of the largest in memory."""
    end = chunk.start + chunk.stored
    stored = unpacked = largest = 0
    with open_regular(path) as stream:
        end = min(end, os.fstat(stream.fileno()).st_size)
        stream.seek(chunk.start)
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


def read_row_groups(path: str) -> list[RowGroup]:
    """Reads what the footer says about row groups.

    pyarrow ends the process where one asks it about a column that is encrypted, or whose histogram
    of levels has another size than its type says; reading such columns only raises.

    Raises:
        ValueError: If columns are encrypted.
    """
    with open_regular(path) as stream:
        stream.seek(-8, os.SEEK_END)
        size = int.from_bytes(stream.read(4), "little")
        stream.seek(-8 - size, os.SEEK_END)
        footer = io.BytesIO(stream.read(size))
    groups: dict[int, dict[int, int]] = {}
    chunks: dict[int, dict[int, dict[int, int]]] = {}
    for field, value in _read_fields(footer):
        match field:  # the numbers of fields are those of parquet.thrift
            case 4, group, (2 | 3) as number:  # `total_byte_size` and `num_rows`
                groups.setdefault(group, {})[number] = value or 0
            case 4, _, 1, _, 8:  # `crypto_metadata`
                raise ValueError("its columns are encrypted")
            case 4, group, 1, column, 3, number if value is not None:  # `meta_data`
                chunks.setdefault(group, {}).setdefault(column, {})[number] = value
    found = []
    for group in range(len(groups)):  # a number that is missing in between is an error
        facts, columns = groups[group], chunks.get(group, {})
        leaves = tuple(_as_chunk(columns[leaf]) for leaf in range(len(columns)))
        found.append(RowGroup(facts[2], facts[3], leaves))
    return found


def _as_chunk(facts: dict[int, int]) -> Chunk:
    data, dictionary = facts[9], facts.get(11, 0)
    start = min(data, dictionary) if dictionary > 0 else data
    return Chunk(kind=facts[1], unpacked=facts[6], stored=facts[7], start=start)


def _read_fields(
    stream: IO[bytes], kind: int = _STRUCT, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Reads a value in Thrift's compact protocol, a header or a footer.

    Yields:
        The numbers of every field and of those that it is in, outermost first, with the positions
        in lists between them, and its value, if it is an integer of 32 or 64 bits.
    """
    if kind == _STRUCT:
        field = 0
        while inner := (byte := stream.read(1)[0]) & 15:
            field = field + (byte >> 4) if byte >> 4 else _signed(_read_number(stream))
            if inner in _INTEGERS:
                yield (*path, field), _signed(_read_number(stream) & _INTEGERS[inner])
                continue
            yield (*path, field), None
            if inner not in (1, 2):  # true and false
                yield from _read_fields(stream, inner, (*path, field))
    elif kind in (9, 10):  # list and set
        byte = stream.read(1)[0]
        for index in range(_read_number(stream) if byte >> 4 == 15 else byte >> 4):
            yield from _read_fields(stream, byte & 15, (*path, index))
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
