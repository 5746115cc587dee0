"""Checks the site: links, anchors, public names, and that no other server is asked for a file.

    python scripts/site/check.py

Prints each problem and exits with 1 when there is one. `scripts/docs` runs it.
"""

from __future__ import annotations

import functools
import html.parser
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).parents[2]
SITE = ROOT / "site"
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
ELSEWHERE = re.compile(r"(https?:)?//")


class Page(html.parser.HTMLParser):
    """Collects the anchors, the links and the loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(LOADED.get(tag, "")) and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])


@functools.cache
def read(path: pathlib.Path) -> Page:
    return Page(path.read_text())


def problems_of(path: pathlib.Path) -> list[str]:
    """Lists the dead links of a page, and what it loads from other servers."""
    page, where = read(path), path.relative_to(SITE)
    problems = [f"{where} loads {file}" for file in page.loaded if ELSEWHERE.match(file)]
    for link in [*page.links, *page.loaded]:
        if re.match(r"[a-z]+:|//", link):
            continue
        name, _, anchor = urllib.parse.unquote(link).partition("#")
        target = path if not name else (path.parent / name.partition("?")[0]).resolve()
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            problems.append(f"{where} links to {link}, which is not there")
        elif anchor and target.suffix == ".html" and anchor not in read(target).anchors:
            problems.append(f"{where} links to {link}, which has no such anchor")
    return problems


def main() -> int:
    pages = [path for path in sorted(SITE.rglob("*.html")) if path.name != "404.html"]
    problems = [problem for path in pages for problem in problems_of(path)]
    for style in SITE.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text())
        problems += [f"{style.relative_to(SITE)} loads {file}" for file in loaded]
    described = set().union(*(read(path).anchors for path in (SITE / "reference").glob("*.html")))
    names = (ROOT / "build" / "public_names.txt").read_text().split()
    problems += [f"{name} is not in the reference" for name in names if name not in described]
    print("\n".join([*problems, f"{len(pages)} pages, {len(problems)} problems: site/index.html"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
