"""Makes links to files outside of docs/ work in the site.

Links in docs/ are written for the repository: `../examples/digits.py`, and in the README
`docs/data.md`. The site gets README.md as its front page, CHANGELOG.md and CONTRIBUTING.md as
pages, and each other file that a page links to as a page under `repository/`.
"""

from __future__ import annotations

import pathlib
import posixpath
import re

ROOT = pathlib.Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```\n?|`[^`\n]+`(?!\]))", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def page_of(path: str) -> str | None:
    """Returns the page or file of the site that shows a path of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    if (ROOT / path / "README.md").is_file():
        return page_of(f"{path}/README.md")
    if (ROOT / path).is_file():
        return f"repository/{path.removesuffix('.md')}.md"
    return None


def source_of(page: str) -> str:
    """Returns the path in the repository of a page of the site."""
    for source, target in PAGES.items():
        if page == target:
            return source
    if page.startswith("repository/"):
        path = page.removeprefix("repository/")
        return path if (ROOT / path).exists() else path.removesuffix(".md")
    return f"docs/{page}"


def rewrite(text: str, page: str, linked: set[str]) -> str:
    """Replaces the links of a page, and adds the paths that they lead to."""
    source = source_of(page)

    def replace(match: re.Match) -> str:
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = page_of(path)
        if found is None:
            # A folder has no page; a file that is missing stays as it is, for MkDocs to report.
            return label if (ROOT / path).is_dir() else match[0]
        linked.add(path if (ROOT / path).is_file() else f"{path}/README.md")
        link = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"{image}[{label}]({link}{'#' + anchor if anchor else ''})"

    parts = FENCED.split(text)
    return "".join(part if part.startswith("`") else LINK.sub(replace, part) for part in parts)


def shown(path: str) -> str:
    """Returns the Markdown that shows a file of the repository."""
    file = ROOT / path
    if file.suffix == ".md":
        return file.read_text()
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{file.read_text().rstrip()}\n````\n"


def link_pages(pages: dict[str, str]) -> dict[str, str]:
    """Rewrites the links of pages, and adds the pages that they lead to."""
    finished: dict[str, str] = {}
    while pages:
        linked: set[str] = set()
        finished.update({page: rewrite(text, page, linked) for page, text in pages.items()})
        pages = {}
        for path in sorted(linked):
            page = page_of(path)
            if page and page.startswith("repository/") and page not in finished:
                pages[page] = shown(path)
    return finished
