"""Writes build/docs, from which the site is built: docs/ and everything that is generated.

    python scripts/site/pages.py

Generated are the API reference, the tutorials' pages and notebooks, the front page, and pages for
files outside of docs/ that some page links to. Exits with 1 when a public name has no docstring or
a page is missing in the navigation. `scripts/docs` runs it.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import sys

from links import PAGES, link_pages
from reference import reference_pages
from tutorials import tutorial_pages

ROOT = pathlib.Path(__file__).parents[2]
TARGET = ROOT / "build" / "docs"


def front_page(readme: str) -> str:
    """The README, whose command of installation comes before the list of features."""
    opening, _, rest = readme.partition("\n- **")
    install = re.search(r"```console\n.*?```\n", rest, re.DOTALL)
    if install is None:
        raise ValueError("README.md has no block of ```console that installs the package.")
    return f"{opening}\n{install[0]}\n- **{rest}"


def main() -> int:
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(ROOT / "docs", TARGET)
    reference, names, problems = reference_pages()
    generated = {**reference, **tutorial_pages()}
    pages = {page: (ROOT / source).read_text() for source, page in PAGES.items()}
    pages["index.md"] = front_page(pages["index.md"])
    pages |= {
        path.relative_to(TARGET).as_posix(): path.read_text() for path in TARGET.rglob("*.md")
    }
    pages |= {path: text for path, text in generated.items() if path.endswith(".md")}
    navigation = (ROOT / "mkdocs.yml").read_text()
    problems += [
        f"{page} is not in mkdocs.yml." for page in sorted(pages) if page not in navigation
    ]
    for path, text in {**generated, **link_pages(pages)}.items():
        file = TARGET / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (TARGET.parent / "public_names.txt").write_text("\n".join(names) + "\n")
    print("\n".join([*problems, f"{len(names)} public names in {len(reference)} pages"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
