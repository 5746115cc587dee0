"""Reads images with captions of a table, of lines of JSON, or of COCO."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_vit.checks import check_choice, is_broken
from keras_vit.data.csv_file import check_exist, read_table
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.folder import find_problems, report_problems
from keras_vit.data.pixel_range import warn_of_small_range
from keras_vit.data.tiff import file_loader
from keras_vit.errors import listed, printable, raise_problems
from keras_vit.image_text.pairs import PairSet, make_pairs
from keras_vit.reading import locate, open_text, parse_json, read_json, refusing

# Names of columns in use: open_clip's, transformers' and TFDS's.
IMAGE_NAMES = ("filepath", "file_name", "filename", "image", "file", "path")
CAPTION_NAMES = ("title", "caption", "text", "captions")
_MAX_JSON = 1 << 30  # bytes; the captions of COCO have 90 MB
Row = tuple[str, str, str]  # where it stands, name of the image, caption


def read_captions(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    image_name: str | None = None,
    caption_name: str | None = None,
    unreadable: str = "error",
    check: str = "headers",
    max_pixels: int = MAX_PIXELS,
) -> PairSet:
    """Reads images with captions that a file names.

    The file is a table (`.csv`, `.tsv`) with a line of names of columns, as open_clip reads it;
    lines of JSON (`.jsonl`), as `metadata.jsonl` of Hugging Face's image folders; or COCO's
    `captions_*.json`. An image that occurs several times has several captions.

    Args:
        path: The file, UTF-8.
        folder: Folder of the images; `None` takes that of the file.
        image_name: Column or key of the image's path; `None` takes the first of `filepath`,
            `file_name`, `filename`, `image`, `file` and `path` that is there.
        caption_name: Column or key of the caption, in JSON also of a list of them; `None` takes the
            first of `title`, `caption`, `text` and `captions`.
        unreadable: As for `read_folder`: images that do not exist count as unreadable.
        check: As for `read_folder`.
        max_pixels: As for `read_folder`.

    Returns:
        A `PairSet` in the order of the file, each image with a label of its own.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If the file is of another format, lacks a column, has no caption for an image,
            or images cannot be read. The message lists them.
    """
    check_choice("unreadable", unreadable, ("error", "skip"))
    check_choice("check", check, ("headers", "pixels"))
    path = pathlib.Path(path)
    root = path.parent if folder is None else pathlib.Path(folder)
    check_exist(path, root)
    captions = _by_image(path, _rows(path, image_name, caption_name))
    files = [locate(root, name) for name in captions]
    bad = find_problems(files, check, max_pixels)
    problems = [f"{file} {problem}" for file, problem in bad.items()]
    advice = f"Their folder is {printable(root)}: pass another as `folder`."
    report_problems(problems, unreadable, path, len(files), advice)
    kept = {f: each for f, each in zip(files, captions.values(), strict=True) if f not in bad}
    warn_of_small_range([pathlib.Path(file) for file in kept], path)
    items = np.array(list(kept), object)
    load = file_loader(items, max_pixels)
    return make_pairs(os.fspath(path), items, load, kept.values(), max_pixels)


def _rows(path: pathlib.Path, image: str | None, caption: str | None) -> Iterator[Row]:
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return _table_rows(path, image, caption)
    if ending == ".jsonl":
        return _json_lines(path, image, caption)
    if ending == ".json":
        return _coco_rows(path)
    raise ValueError(
        f"Captions are read from .csv, .tsv, .jsonl and COCO's .json. Received: {printable(path)}. "
        "`read_caption_shards` reads tars and TFRecords."
    )


def _table_rows(path: pathlib.Path, image: str | None, caption: str | None) -> Iterator[Row]:
    rows = read_table(path)
    _, columns = next(rows, (0, []))
    first = columns.index(_choose(path, image, IMAGE_NAMES, columns))
    second = columns.index(_choose(path, caption, CAPTION_NAMES, columns))
    for line, row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"{printable(path)}, line {line} has {len(row)} cells, and {len(columns)} columns. "
                "Put captions with a separator in quotes."
            )
        yield f"line {line}", row[first], row[second]


def _json_lines(path: pathlib.Path, image: str | None, caption: str | None) -> Iterator[Row]:
    with refusing(path, "is no text", "Save it as UTF-8."), open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            with refusing(f"{path}, line {number}", "is no object of JSON", "Write it again."):
                content = parse_json(line)
                if not isinstance(content, dict):
                    raise TypeError(f"a {type(content).__name__}")
            name = content[_choose(path, image, IMAGE_NAMES, list(content))]
            texts = content[_choose(path, caption, CAPTION_NAMES, list(content))]
            for text in texts if isinstance(texts, list) else [texts]:
                yield f"line {number}", name, text


def _coco_rows(path: pathlib.Path) -> Iterator[Row]:
    content = read_json(path, _MAX_JSON)
    needs = "It needs `images` with `id` and `file_name`, `annotations` with `image_id`, `caption`."
    with refusing(path, "is no file of COCO's captions", needs):
        files = {each["id"]: each["file_name"] for each in content["images"]}
        for number, each in enumerate(content["annotations"]):
            yield f"annotation {number}", files[each["image_id"]], each["caption"]


def _choose(path: pathlib.Path, given: str | None, usual: Iterable[str], columns: list[str]) -> str:
    names = tuple(usual) if given is None else (given,)
    found = next((name for name in names if name in columns), None)
    if found is None:
        raise ValueError(
            f"{printable(path)} has no column {' or '.join(map(printable, names))}. Received: "
            f"{listed(columns) or 'none'}. Pass `image_name` and `caption_name`."
        )
    return found


def _by_image(path: pathlib.Path, rows: Iterable[Row]) -> dict[str, list[str]]:
    """The captions of every image, in the order of the file."""
    captions: dict[str, list[str]] = {}
    problems: list[str] = []
    for place, name, text in rows:
        if not isinstance(name, str) or not name or "\0" in name:
            problems.append(f"{place}: no image is named")
        elif not is_caption(text):
            problems.append(f"{place}: no caption for {name}")
        elif is_broken(text):
            problems.append(f"{place}: half of a surrogate pair in the caption of {name}")
        else:
            captions.setdefault(name, []).append(text.strip())
    raise_problems(path, problems if problems or captions else ["no rows"])
    return captions


def is_caption(text: Any) -> bool:
    """Whether something is a text that is not blank."""
    return isinstance(text, str) and bool(text.strip())


def captions_of(value: Any) -> list[str]:
    """The texts in a value, or in a list of them, that are not blank.

    Raises:
        ValueError: If one has half of a surrogate pair.
    """
    values = value if isinstance(value, list) else [value]
    texts = [text.strip() for text in values if is_caption(text)]
    if any(map(is_broken, texts)):
        raise ValueError("half of a surrogate pair in a caption")
    return texts
