"""Pictures with lines of text, on the pages of this package."""

from __future__ import annotations

import html
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from keras_vit.files import write_csv, write_text
from keras_vit.report.page import Section, render_card, render_page

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_SIDE = 240  # pixels of a thumbnail along the longer side


def paths_of(images: ImageSet) -> list[str]:
    """Absolute paths of images that are files, else the names that the set gives them."""
    names = images.file_names()
    return [os.path.abspath(name) if os.path.exists(name) else name for name in names]


def render_grid(images: ImageSet, chosen: Iterable[tuple[int, Sequence[str]]]) -> str:
    """Thumbnails in HTML, each with lines (plain text; the first one is bold) and its file.

    Args:
        images: Images.
        chosen: Positions of some of them, each with its lines.
    """
    from keras_vit.data.preview import encode_thumbnail, read_one

    files, cards = paths_of(images), []
    for position, (first, *lines) in chosen:
        rest = [html.escape(line) for line in (*lines, files[position])]
        jpeg = encode_thumbnail(read_one(images, position), _SIDE)
        caption = "<br>".join([f"<b>{html.escape(first)}</b>", *rest])
        cards.append(render_card(jpeg, caption, files[position]))
    return f'<div class="grid small">{"".join(cards)}</div>'


def write_pair(
    folder: str | os.PathLike[str],
    name: str,
    rows: Sequence[Sequence[str]],
    title: str,
    sections: Mapping[str, str],
    note: str,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes a table as `name.csv` and a page as `name.html`, and returns their paths."""
    table, page = (pathlib.Path(folder) / f"{name}.{ending}" for ending in ("csv", "html"))
    write_csv(table, rows)
    parts = [Section(*each) for each in (sections or {"Nothing": ""}).items()]
    write_text(page, render_page(title, parts, note), errors="backslashreplace")
    return table, page
