"""The counts of benchmarks/counts.py, for tests that export a model anyway."""

from __future__ import annotations

import functools
import pathlib
import runpy
import sys
from unittest import mock

SCRIPT = pathlib.Path(__file__).parents[1] / "benchmarks/counts.py"


@functools.cache
def script():
    """What the script defines."""
    with mock.patch.object(sys, "path", [str(SCRIPT.parent), *sys.path]):  # as when it is run
        return runpy.run_path(str(SCRIPT))


def check_counts(group, found):
    """Nothing has changed in a group of counts."""
    lines = script()["changes"](group, found)
    assert not lines, "\n".join(["See benchmarks/counts.py. Changed:", *lines])
