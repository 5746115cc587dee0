"""Parts of HTML pages: style, sections, tiles, tables and embedded images.

A page is one file that needs no other file, no network and no script: its policy forbids them.
"""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Iterable, Sequence

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #20242b; --soft: #5b6770; --line: #dfe3e8;
  --panel: #f5f6f8; --first: #2a6fbb; --second: #c8374a; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e6e9ec; --soft: #a3adb6;
  --line: #323940; --panel: #1e2329; --first: #6cabee; --second: #ff8593; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 68rem; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  background: var(--paper); }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .4rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
p { margin: .3rem 0 .9rem; max-width: 46rem; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); }
nav a { margin-right: 1.1rem; display: inline-block; }
a { color: var(--first); text-decoration: none; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0; }
.tile { border: 1px solid var(--line); border-radius: .6rem; padding: .7rem 1rem; min-width: 9rem;
  flex: 0 1 auto; max-width: 100%; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } .long { overflow: auto; max-height: 34rem; }
.long .scroll { overflow: visible; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { padding: .28rem .9rem .28rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: break-word; } td.n { white-space: nowrap; }
td.bar { width: 12rem; min-width: 6rem; vertical-align: middle; }
td.bar i { display: block; height: .65rem; border-radius: .2rem; background: var(--first);
  min-width: 1px; }
pre { background: var(--panel); padding: .8rem 1rem; border-radius: .5rem; overflow-x: auto;
  white-space: pre-wrap; } figure { margin: 1rem 0 1.6rem; }
figure > img { max-width: 100%; height: auto; display: block; background: #fff; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr));
  gap: 1.2rem 1.6rem; margin: 1rem 0; }
.mistake { margin: 0; font-size: .92rem; overflow-wrap: anywhere; }
.pair { display: flex; gap: 4px; margin-bottom: .4rem; }
.view { flex: 1; position: relative; isolation: isolate; } .view img { display: block; width: 100%;
  height: auto; } .view .mask { position: absolute; inset: 0; height: 100%;
  mix-blend-mode: multiply; }
.grid svg { width: 100%; }
svg { display: block; max-width: 100%; height: auto; }
td svg { margin-top: .35rem; max-width: none; } th { white-space: nowrap; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .title { font-size: 13px;
  font-weight: 600; fill: var(--ink); } svg .grid-line { stroke: var(--line); }
svg .first { stroke: var(--first); fill: none; } svg .second { stroke: var(--second); fill: none; }
svg .first-fill { fill: var(--first); } svg .second-fill { fill: var(--second); }
svg .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .mark { stroke: var(--soft); stroke-dasharray: 3 3; fill: none; }
svg .on-light { fill: var(--ink); } svg .on-dark { fill: #fff; font-weight: 600; }
"""


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
        """The identifier that links lead to."""
        return self.title.lower().replace(" ", "-")


def render_page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """Returns the HTML of a page; `title` and `subtitle` are plain text."""
    links = "".join(f'<a href="#{s.anchor}">{html.escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{s.anchor}"><h2>{html.escape(s.title)}</h2>{s.body}</section>'
        for s in sections
    )
    title, subtitle = html.escape(title), html.escape(subtitle)
    below = f'<p class="soft">{subtitle}</p>' if subtitle else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{title}</h1>{below}<nav>{links}</nav>{body}</body></html>\n"
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
