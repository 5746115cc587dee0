"""Reads images with the labels or numbers of a CSV file as an `ImageSet`.

The first column names the images. The others are classes, labels of several classes, or numbers.
"""

from __future__ import annotations

import collections
import csv
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.checks import check_choice
from keras_vit.config import TASKS
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.folder import check_distinct, check_is_folder, find_problems, report_problems
from keras_vit.data.image_files import IMAGE_ENDINGS
from keras_vit.data.image_set import ImageSet, file_set
from keras_vit.data.pixel_range import warn_of_small_range
from keras_vit.errors import listed, printable, raise_problems
from keras_vit.files import read_cell
from keras_vit.reading import locate, open_text, refusing

SEPARATORS = "|;"  # of several labels in a cell
_DELIMITERS = "\t,;"
_MAX_SHOWN = 80  # letters of a name in a message, of which there can be one for each line
_MAX_CLASSES = 100_000  # ImageNet-21k has 21,843
_MAX_LABELS = 1 << 28  # images times classes: 1 GB of float32
_FEW = 20  # one in so many cells must hold a separator for labels to be parted by it


def read_csv(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    task: str | None = None,
    class_names: Sequence[str] | None = None,
    unreadable: str = "error",
    check: str = "headers",
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """Reads images that a CSV file names, with their labels or numbers.

    The file has a header line. The first column is the path of an image in `folder`, with or
    without its ending, with slashes or backslashes. One more column of names is one class for each
    image, or several that `|` or `;` separates; several columns of 0 and 1 are one class each;
    other numbers are regression targets. Columns whose name begins with `#` are not read.

    Args:
        path: The CSV file, UTF-8, with commas, semicolons or tabs. An apostrophe before a name that
            begins like a formula, as `predictions.csv` has it, is no part of the name.
        folder: Folder of the images; `None` takes that of the file.
        task: `"single_label"`, `"multi_label"` or `"regression"`; `None` decides by the columns. A
            single column of whole numbers can be classes or targets, so it needs `task`.
        class_names: Names of the classes or targets in order, such as those of the training images.
        unreadable: `"error"` lists images that cannot be read with the other problems; `"skip"`
            leaves them out with a warning. Images that do not exist count as unreadable.
        check: As for `read_folder`.
        max_pixels: As for `read_folder`.

    Returns:
        An `ImageSet` in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If the file is no such table. The message lists all problems with their lines.

    Example:

    >>> images = keras_vit.data.read_csv("photos/labels.csv")  # doctest: +SKIP
    >>> images.task, images.class_names  # doctest: +SKIP
    ('multi_label', ('dog', 'indoors', 'person'))
    """
    check_choice("unreadable", unreadable, ("error", "skip"))
    check_choice("check", check, ("headers", "pixels"))
    if task is not None:
        check_choice("task", task, TASKS)
    if class_names is not None:
        check_distinct(class_names)
    path = pathlib.Path(path)
    root = path.parent if folder is None else pathlib.Path(folder)
    check_exist(path, root)
    problems: list[tuple[int, str]] = []
    columns, rows = _read_rows(path, problems)
    files = _find_images(rows, root, problems)
    if task in (None, "multi_label") and class_names is None and len(columns) == 2:
        _check_separator(path, [row.cells[0] for row in rows])
    task = task or _guess_task(path, rows, len(columns) - 1)
    names, labels = _read_labels(path, columns[1:], rows, task, class_names, problems)
    bad = find_problems(files, check, max_pixels)
    if unreadable == "error" or problems:  # one list of all, also where some could be left out
        lines = [row.line for row in rows]
        problems += [(n, f"{f} {bad[f]}") for n, f in zip(lines, files, strict=True) if f in bad]
    raise_problems(path, [f"line {line}: {text}" for line, text in sorted(problems)])
    skipped = tuple(f"{file} {problem}" for file, problem in bad.items())
    advice = f"Their folder is {root}: pass another, with --data-dir on the command line."
    report_problems(skipped, unreadable, path, len(files), advice)
    kept = [index for index, file in enumerate(files) if file not in bad]
    paths, labels = [files[index] for index in kept], labels[kept]
    if labels.dtype == bool:  # several classes
        labels = labels.astype("float32")
    warn_of_small_range(paths, path)
    return file_set(path, names, paths, labels, max_pixels, skipped=skipped, task=task)


def check_exist(table: pathlib.Path, folder: pathlib.Path) -> None:
    """Raises a `FileNotFoundError` if there is no such table, or no folder of its images."""
    if not table.is_file():
        raise FileNotFoundError(f"There is no file {printable(table)}.")
    check_is_folder(folder)


def read_table(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Reads a table with commas, semicolons or tabs: numbers and cells of lines that are not blank.

    Raises:
        ValueError: If it is not UTF-8, or no such table.
    """
    advice = "Save it as CSV in UTF-8."
    with refusing(path, "is not UTF-8", advice), open_text(path) as file:
        delimiter = max(_DELIMITERS, key=file.readline().count)
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                cells = [read_cell(cell.strip()) for cell in row]
                if any(cells):
                    yield reader.line_num, cells
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num} is not CSV: {error}.") from error


class _Row(NamedTuple):
    line: int
    image: str
    cells: list[str]


def _read_rows(path: pathlib.Path, problems: list[tuple[int, str]]) -> tuple[list[str], list[_Row]]:
    """The names of the columns, and the lines with an image and a cell for every column."""
    table = list(read_table(path))
    if len(table) < 2:
        raise ValueError(f"{path} needs a line with the names of its columns, and one per image.")
    columns = table[0][1]
    twice = sorted(name for name, count in collections.Counter(columns).items() if count > 1)
    if len(columns) < 2 or "" in columns or twice:
        problem = f"the column {', '.join(twice)} twice" if twice else f"the columns {columns}"
        raise ValueError(
            f"The first line of {path} must name every column: the image, then labels or numbers, "
            f"such as `file,label`. Received: {problem}. A table that pandas wrote needs "
            "index=False."
        )
    rows = []
    kept = [i for i in range(1, len(columns)) if not columns[i].startswith("#")]
    for line, cells in table[1:]:
        if len(cells) != len(columns):
            problems.append((line, f"{len(cells)} cells, and {len(columns)} columns"))
        elif "\0" in "".join(cells):
            problems.append((line, "a NUL character: save the table as UTF-8"))
        elif not cells[0]:
            problems.append((line, "no image is named"))
        else:
            rows.append(_Row(line, cells[0], [cells[i] for i in kept]))
    return [columns[0], *(columns[i] for i in kept)], rows


def _find_images(
    rows: list[_Row], root: pathlib.Path, problems: list[tuple[int, str]]
) -> list[pathlib.Path]:
    """The file of every row; a name without an ending gets that of the file that exists."""
    endings = ("", *IMAGE_ENDINGS, *map(str.upper, IMAGE_ENDINGS))
    found = []
    lines: dict[pathlib.Path, int] = {}
    for row in rows:
        has_ending = row.image.lower().endswith(IMAGE_ENDINGS)
        file = pathlib.Path(locate(root, row.image, ("",) if has_ending else endings))
        if file in lines:
            advice = f"; separate several labels by {SEPARATORS[0]}"
            problems.append((row.line, f"{file} is in line {lines[file]} already{advice}"))
        lines.setdefault(file, row.line)
        found.append(file)
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _are_indicators(rows: list[_Row]) -> bool:
    """Whether all numbers are 0 or 1."""
    numbers = {_number(cell) for row in rows for cell in row.cells} - {None}
    return bool(numbers) and numbers <= {0.0, 1.0}


def _have_separator(cells: list[str]) -> bool:
    return any(separator in cell for cell in cells for separator in SEPARATORS)


def _check_separator(path: pathlib.Path, cells: list[str]) -> None:
    """Raises ValueError if commas or spaces seem to part several labels in a cell.

    That is where no cell has a separator that is read, most parts occur in several combinations,
    and some part both first and last: not the words of names such as "golden retriever".
    """
    if _have_separator(cells):
        return
    for separator, pattern in (("commas", r"\s*,\s*"), ("spaces", r"\s+")):
        parts = {cell: re.split(pattern, cell) for cell in sorted(set(cells))}
        several = [cell for cell in cells if len(parts[cell]) > 1]
        seen = collections.Counter(part for each in parts.values() for part in set(each))
        words = {part for cell in several for part in parts[cell]}
        again = sum(seen[word] > 1 for word in words)
        ends = ({each[end] for each in parts.values()} & words for end in (0, -1))
        is_frequent = _FEW * len(several) >= len(cells)
        if 3 * again > 2 * len(words) and set.intersection(*ends) and is_frequent:
            example = min(several)
            raise ValueError(
                f"{path} seems to have several labels in a cell, {separator} between them, and "
                f"{_short(example)!r} would be one class. Write "
                f"{_short(SEPARATORS[0].join(parts[example]))!r}. If it is one class, say so: "
                'task="single_label", --task single_label on the command line.'
            )


def _guess_task(path: pathlib.Path, rows: list[_Row], columns: int) -> str:
    if columns > 1:
        return "multi_label" if _are_indicators(rows) else "regression"
    cells = [row.cells[0] for row in rows if row.cells[0]]
    numbers = [number for number in map(_number, cells) if number is not None]
    if 2 * len(numbers) <= len(cells):
        return "multi_label" if _have_separator(cells) else "single_label"
    if all(number == round(number) for number in numbers if math.isfinite(number)):
        raise ValueError(
            f"The column of {path} holds whole numbers, which are classes or regression targets. "
            'Say which: task="single_label" or task="regression", --task on the command line.'
        )
    return "regression"


def _read_labels(
    path: pathlib.Path,
    columns: list[str],
    rows: list[_Row],
    task: str,
    class_names: Sequence[str] | None,
    problems: list[tuple[int, str]],
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes or targets, and the label of every row, of lists of classes booleans."""
    is_list = task == "multi_label" and len(columns) == 1 and not _are_indicators(rows)
    if task == "single_label" and len(columns) > 1:
        raise ValueError(
            f"One class for each image is one column. {path} has {len(columns)}: "
            f"{_listed(columns)}. Remove the others, or pass another task."
        )
    if task == "single_label" or is_list:
        return _read_names(path, rows, is_list, class_names, problems)
    names = tuple(columns if class_names is None else class_names)
    if set(names) != set(columns):
        raise ValueError(
            f"{path} has the columns {_listed(columns)}, and the training images "
            f"{_listed(names)}. Rename, add or remove columns."
        )
    positions = {name: position for position, name in enumerate(columns)}
    values = []
    for row in rows:
        numbers = []
        for name in names:
            cell = row.cells[positions[name]]
            number, column = _number(cell), _short(name)
            if not cell:
                problems.append((row.line, f"no value for {column}"))
            elif number is None or not math.isfinite(number):
                problems.append((row.line, f"{column} is no number: {_short(cell)!r}"))
            elif task == "multi_label" and number not in (0, 1):
                problems.append((row.line, f"{column} must be 0 or 1: {_short(cell)}"))
            numbers.append(number or 0.0)
        values.append(numbers)
    return names, np.array(values)


def _short(name: str) -> str:
    return printable(name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}...")


def _listed(names: Iterable[str]) -> str:
    return listed(list(map(_short, names)))


def _read_names(
    path: pathlib.Path,
    rows: list[_Row],
    several: bool,
    class_names: Sequence[str] | None,
    problems: list[tuple[int, str]],
) -> tuple[tuple[str, ...], np.ndarray]:
    """Labels of a column with names of classes, one or several in a cell."""
    found = []
    for row in rows:
        parts = re.split(f"[{SEPARATORS}]", row.cells[0]) if several else [row.cells[0]]
        found.append([part.strip() for part in parts if part.strip()])
        if not found[-1]:
            advice = " (for images without any, write a column of 0 and 1 for each class)"
            problems.append((row.line, f"no label{advice if several else ''}"))
    names = tuple(sorted({part for parts in found for part in parts}))
    if class_names is not None:
        names = tuple(class_names)
    elif len(names) < 2:
        problems.append((1, f"one class, {_listed(names)}: telling apart needs two"))
    if len(names) > _MAX_CLASSES or (several and len(names) * len(rows) > _MAX_LABELS):
        raise ValueError(
            f"{path} names {len(names):,} classes for {len(rows):,} images: {_listed(names)}. "
            f"At most {_MAX_CLASSES:,} classes are read, and {_MAX_LABELS:,} labels (images times "
            "classes) where images have several. Is this the column of the labels? Otherwise "
            "leave out rare labels, or split the file."
        )
    position = {name: index for index, name in enumerate(names)}
    known = _listed(names)
    labels = np.zeros((len(rows), len(names)), bool) if several else np.zeros(len(rows), "int64")
    for index, (row, parts) in enumerate(zip(rows, found, strict=True)):
        unknown = [part for part in parts if part not in position]
        if unknown:
            problems.append((row.line, f"{_listed(unknown)} is none of the classes {known}"))
        chosen = [position[part] for part in parts if part in position]
        if several:
            labels[index, chosen] = True
        elif chosen:
            labels[index] = chosen[0]
    return names, labels
