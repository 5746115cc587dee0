#!/usr/bin/env python3
"""Writes docs/nightly.md: tests that end otherwise with nightly builds of Keras and TensorFlow.

    scripts/testing/nightly_changes.py RELEASED NIGHTLY [ARGUMENTS OF PYTEST]

reads RELEASED.log, RELEASED.versions and so on, which `scripts/test-matrix "3.11 nightly"` writes.
The logs are of `pytest -q -rA`. Exits with 1 if a test passed before and does not now.
"""

from __future__ import annotations

import datetime
import pathlib
import re
import sys

TARGET = pathlib.Path(__file__).parents[2] / "docs/nightly.md"
LINE = re.compile(r"^(PASSED|FAILED|ERROR) (tests/\S+?::.+?)(?: - (.*))?$", re.MULTILINE)
SUMMARY = re.compile(r"^=*\s*((?:\d+ failed, )?\d+ passed.*?) in [\d.]+s", re.MULTILINE)
PAGE = """# Nightly builds of Keras and TensorFlow

Written by `scripts/test-matrix "3.11 nightly"`: the quick tests ({tests}) \
with released versions and with nightly builds, {date}.

| | versions | tests |
|---|---|---|
| released | {released} | {released_summary} |
| nightly | {nightly} | {nightly_summary} |

keras-hub and its detectors are not tested here: tensorflow-text holds TensorFlow back.

{changes}
"""


def read(stem: str) -> tuple[str, str, dict[str, tuple[str, str]]]:
    log = pathlib.Path(stem + ".log").read_text()
    outcomes = {name: (outcome, reason or "") for outcome, name, reason in LINE.findall(log)}
    summary = SUMMARY.findall(log)
    if not summary:
        sys.exit(f"{stem}.log has no summary. Run pytest with -q -rA.")
    versions = pathlib.Path(stem + ".versions").read_text().strip()
    return versions, summary[-1], outcomes


def main() -> int:
    (released, before, old), (nightly, after, new) = map(read, sys.argv[1:3])
    rows = []
    for name in sorted({*old, *new}):
        was, (now, reason) = old.get(name, ("SKIPPED", ""))[0], new.get(name, ("SKIPPED", ""))
        if was != now:
            rows.append(f"| `{name}` | {was.lower()} | {now.lower()} | {reason[:90]} |")
    changes = "Nothing changed."
    if rows:
        head = ["Changed:", "", "| test | released | nightly | why |", "|---|---|---|---|"]
        changes = "\n".join([*head, *(row.replace("|(", "\\|(") for row in rows)])
    tests = " ".join(argument for argument in sys.argv[3:] if argument[0] != "-") or "all of them"
    page = PAGE.format(
        tests=tests,
        date=f"{datetime.date.today():%-d %B %Y}",
        released=released,
        released_summary=before,
        nightly=nightly,
        nightly_summary=after,
        changes=changes,
    )
    TARGET.write_text(page)
    print(page)
    return int(any("| passed |" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
