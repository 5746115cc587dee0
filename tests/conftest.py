"""Settings for all tests."""

from __future__ import annotations

import os

import pytest

# oneDNN is on by default on most processors in use. It also keeps the automatic choice of XLA off,
# whose compilation would take most of the time of the tests. `scripts/test-processors` sets both.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Puts tests that share a module's fixture into one worker, so that it is made once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def pytest_collection_finish(session):
    """Refuses versions that ignore groups: each worker would make every fixture."""
    if getattr(session.config.option, "loadgroup", False):  # in a worker of pytest-xdist
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(
                    f"pytest-xdist does not group tests under pytest {pytest.__version__}."
                )


def shares_a_fixture(item) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(
        each[-1].scope in ("module", "package") and each[-1].func.__module__.startswith("tests.")
        for each in fixtures
    )
