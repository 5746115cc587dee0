"""Writes an HTML page of the answers of a search, with thumbnails."""

from __future__ import annotations

import html
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from keras_vit.errors import listed, needing_tensorflow, printable
from keras_vit.files import write_text
from keras_vit.image_text.image_index import Answer, ImageIndex
from keras_vit.report.page import Section, render_card, render_page

_SIDE = 320  # pixels of a thumbnail along the longer side
_LISTED = 5  # near-duplicates whose names are shown


def write_search_page(
    path: str | os.PathLike[str],
    index: ImageIndex,
    answers: Mapping[str | pathlib.Path, Sequence[Answer]],
    title: str = "Search",
) -> pathlib.Path:
    """Writes one HTML page of answers with thumbnails, which needs no other file.

    Args:
        path: The file to write, `.html`. A file that exists is replaced.
        index: The index that gave the answers, of `index_images`.
        answers: Answers by query: a text, or the `pathlib.Path` of an image, which is shown too.
        title: Heading of the page.

    Returns:
        The path.

    Raises:
        OSError: If an image does not exist any more, or cannot be read. Nothing is written then.

    Example:

    >>> found = index.search("a photo of a red bird")  # doctest: +SKIP
    >>> keras_vit.image_text.write_search_page(
    ...     "birds.html", index, {"a photo of a red bird": found}
    ... )  # doctest: +SKIP
    """
    folder = _common_folder(index.files)
    sections = [
        Section(_short(query, folder), "".join(_parts(index, query, found, folder)))
        for query, found in answers.items()
    ]
    where = f" in {printable(folder)}" if folder else ""
    subtitle = f"{len(index.files):,} images{where}. Numbers are cosine similarities to the query."
    write_text(path, render_page(title, sections, subtitle), errors="backslashreplace")
    return pathlib.Path(path)


def _common_folder(files: Sequence[str]) -> str:
    """The folder of all files, or "" if there is none."""
    try:
        return os.path.commonpath([os.path.dirname(file) for file in files])
    except ValueError:  # absolute and relative names, or none
        return ""


def _short(name: str | pathlib.Path, folder: str) -> str:
    """A name that can be printed, without the folder of all images."""
    text = os.fspath(name)
    return printable(text.removeprefix(f"{folder}{os.sep}") if folder else text)


def _parts(
    index: ImageIndex, query: str | pathlib.Path, found: Sequence[Answer], folder: str
) -> Iterator[str]:
    if isinstance(query, pathlib.Path):
        with needing_tensorflow("A page with images"):
            from keras_vit.data.preview import encode_thumbnail, read_one

        shown = render_card(encode_thumbnail(read_one(query, 0), _SIDE), "the query", "query")
        yield f'<div class="grid">{shown}</div>'
    cards = (
        render_card(index.thumbnail(each.position, _SIDE), _caption(each, folder), str(rank))
        for rank, each in enumerate(found, 1)
    )
    yield f'<div class="grid">{"".join(cards)}</div>'


def _caption(answer: Answer, folder: str) -> str:
    lines = [f"<b>{answer.similarity:.3f}</b> {html.escape(_short(answer.file, folder))}"]
    if answer.duplicates:
        count = len(answer.duplicates)
        names = listed([_short(each, folder) for each in answer.duplicates], _LISTED)
        lines.append(
            f"<span class='soft'>{count} near-duplicate{'s' if count > 1 else ''}: "
            f"{html.escape(names)}</span>"
        )
    return "<br>".join(lines)
