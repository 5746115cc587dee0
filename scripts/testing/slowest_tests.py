#!/usr/bin/env python3
"""Writes docs/slowest-tests.md from what `pytest --durations=0` printed.

scripts/test --durations-table          runs the tests and calls this script
scripts/testing/slowest_tests.py LOG    reads a saved output
"""

from __future__ import annotations

import collections
import os
import pathlib
import platform
import re
import sys

ROWS = 40
TARGET = pathlib.Path(__file__).parents[2] / "docs/slowest-tests.md"
LINE = re.compile(r"^([\d.]+)s (call|setup|teardown) +(tests/\S+?::.+?)(?:@\S+)?$", re.MULTILINE)
SUMMARY = re.compile(r"^=*\s*((?:\d+ failed, )?\d+ passed.*?) in ([\d.]+)s", re.MULTILINE)
PAGE = """# Slowest tests

Written by `scripts/test --durations-table`. {summary}
The {rows} slowest of them take {seconds:.0f} seconds together, two processes side by side. \
The time of a test includes its
fixtures; a fixture that several tests share counts for the first of them.

| seconds | test |
|---:|---|
"""


def main() -> None:
    log = pathlib.Path(sys.argv[1]).read_text()
    tests: collections.Counter[str] = collections.Counter()
    for seconds, _, name in LINE.findall(log):
        tests[name] += float(seconds)
    if not tests:
        sys.exit(f"{sys.argv[1]} has no durations. Run pytest with --durations=0.")
    found = SUMMARY.findall(log)
    machine = f"{os.cpu_count()} cores of {platform.machine()}"
    outcome, total = found[-1] if found else ("The tests", "0")
    summary = f"Last run: {outcome} in {float(total) / 60:.1f} minutes on {machine}."
    slowest = tests.most_common(ROWS)
    page = PAGE.format(
        summary=summary, rows=len(slowest), seconds=sum(seconds for _, seconds in slowest)
    )
    rows = (f"| {seconds:.1f} | `{name}` |\n" for name, seconds in slowest)
    TARGET.write_text(page + "".join(rows).replace("|(", "\\|("))


if __name__ == "__main__":
    main()
