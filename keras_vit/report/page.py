"""Parts of HTML pages: style, sections, tiles, tables and embedded images.

A page is one file that needs no other file, no network and no script: its policy forbids them.
`page.html` and `page.css` are the frame of every page.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import string
from collections.abc import Iterable, Sequence

from keras_vit.reading import read_package_file

_TALL_TABLE = 15  # rows, from which a table scrolls


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page.

    Args:
        title: Heading, plain text.
        body: HTML.
    """

    title: str
    body: str

    @property
    def anchor(self) -> str:
        """The identifier that links lead to, HTML."""
        return html.escape("-".join(self.title.lower().split()))


def render_page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """Returns the HTML of a page; `title` and `subtitle` are plain text."""
    links = "".join(f'<a href="#{s.anchor}">{html.escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{s.anchor}"><h2>{html.escape(s.title)}</h2>{s.body}</section>'
        for s in sections
    )
    below = f'<p class="soft">{html.escape(subtitle)}</p>' if subtitle else ""
    return string.Template(read_package_file("report/page.html")).substitute(
        title=html.escape(title),
        style=read_package_file("report/page.css"),
        subtitle=below,
        links=links,
        body=body,
    )


def render_tiles(tiles: Iterable[tuple[str, str]]) -> str:
    """Returns boxes with a value in large letters and what it is: `(what, value)`, plain text."""
    boxes = (
        f'<div class="tile"><b>{html.escape(value)}</b>{html.escape(what)}</div>'
        for what, value in tiles
    )
    return f'<div class="tiles">{"".join(boxes)}</div>'


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: str = "") -> str:
    """Returns a table that scrolls where it is too wide or too long.

    Args:
        head: Headings, plain text; empty for none.
        rows: Cells, HTML.
        numbers: One character a column: `"n"` aligns it to the right, `"b"` is for bars.
    """
    kinds = {"n": " class='n'", "b": " class='bar'"}
    styles = [kinds.get(letter, "") for letter in numbers.ljust(99)]
    titles = "".join(f"<th{s}>{html.escape(h)}</th>" for s, h in zip(styles, head, strict=False))
    lines = (
        "<tr>" + "".join(f"<td{s}>{c}</td>" for s, c in zip(styles, row, strict=False)) + "</tr>"
        for row in rows
    )
    first = f"<tr>{titles}</tr>" if head else ""
    return f"<div class='scroll'><table>{first}{''.join(lines)}</table></div>"


def render_long_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: str) -> str:
    """Returns a table as `render_table` does, of which the page shows some rows at a time."""
    table = render_table(head, rows, numbers)
    return f"<div class='long'>{table}</div>" if len(rows) > _TALL_TABLE else table


def render_bar(share: float) -> str:
    """Returns a bar for a cell of a table; `share` is in [0, 1]."""
    return f"<i style='width:{100 * share:.1f}%'></i>" if share else ""


def render_figure(caption: str, png: bytes) -> str:
    """Returns a picture with its caption, plain text."""
    text = html.escape(caption)
    return (
        f"<figure><figcaption>{text}</figcaption>"
        f'<img alt="{text}" src="{data_address(png, "png")}"></figure>'
    )


def render_card(jpeg: bytes, caption: str, name: str) -> str:
    """Returns a thumbnail with a caption in HTML; `name` is its description in plain text."""
    return (
        f'<figure class="mistake"><div class="view"><img alt="{html.escape(name)}" '
        f'src="{data_address(jpeg, "jpeg")}"></div>{caption}</figure>'
    )


def data_address(image: bytes, kind: str) -> str:
    """Returns the address of an image that stands in the page itself; `kind` is its format."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}"


def human(number: float) -> str:
    """Formats a count with three digits: 86567656 gives `"86.6 M"`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def human_bytes(number: float) -> str:
    """Formats a size in bytes with three digits: 1610612736 gives `"1.5 GiB"`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**power:
            return f"{number / 2**power:.3g} {unit}"
    return f"{number} B"


def human_seconds(seconds: float) -> str:
    """Formats a duration: 10000 gives `"2 h 47 min"`."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
