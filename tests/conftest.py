"""Settings for all tests."""

from __future__ import annotations

import gc
import itertools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

# oneDNN is on by default on most processors in use. `scripts/test-processors` sets it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Compiling by XLA would take most of the time of the tests: those about it turn it on.
os.environ.setdefault("KERAS_VIT_XLA", "0")
_FINISHED = itertools.count(1)  # tests of this process


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Puts tests that share a module's fixture into one worker, so that it is made once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Seeds what a test leaves to chance, its fixtures' too: Keras draws its seeds with `random`.

    TensorFlow's own seed is left alone: setting it empties the caches of its operations.
    """
    random.seed(0)
    np.random.seed(0)


def pytest_collection_finish(session):
    """Refuses versions that ignore groups: each worker would make every fixture."""
    gc.freeze()  # what is imported stays
    if getattr(session.config.option, "loadgroup", False):  # in a worker of pytest-xdist
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(
                    f"pytest-xdist does not group tests under pytest {pytest.__version__}."
                )


def pytest_runtest_logfinish(nodeid):
    """Frees garbage after every 20 tests, and searches what is left no more.

    What tests leave in memory grows to 4 GB, and each search of it took more than a second: all
    together 8% of the tests' time. Objects of a fixture that become garbage later are kept; the
    memory of a process at its end is that of before.
    """
    if next(_FINISHED) % 20 == 0:
        gc.collect()
        gc.freeze()


def shares_a_fixture(item) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(
        each[-1].scope in ("module", "package") and each[-1].func.__module__.startswith("tests.")
        for each in fixtures
    )


def without_missing_packages(report):
    """Makes a skip for a missing package an error of `scripts/test --slow`, which installs all."""
    if os.environ.get("KERAS_VIT_ALL_PACKAGES") and isinstance(report.longrepr, tuple):
        *_, reason = report.longrepr  # of a skip; an error has another form
        if re.search("could not import|not installed", reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}. Add the package to `test-all` in setup.cfg."
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return without_missing_packages((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return without_missing_packages((yield))


class SmallDisk:
    """A disk of a few MB, which `fill` makes full."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self._filler = path, path / "filler"

    def fill(self, leave: int = 0) -> None:
        """Leaves so many bytes, which the disk counts in pages of 4,096."""
        with open(self._filler, "ab") as file:
            file.write(bytes(shutil.disk_usage(self.path).free - leave))

    def make_room(self) -> None:
        self._filler.unlink()


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 3 MB in memory, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="session")
def real_network(tmp_path_factory):
    """Folder of a trained ViT-S/14 of others, where a package index has it (132 MB)."""
    ready = os.environ.get("KERAS_VIT_REAL_NETWORK")  # a folder that scripts/real-network wrote
    if ready:
        return pathlib.Path(ready)
    folder = tmp_path_factory.mktemp("real_network")
    script = pathlib.Path(__file__).parents[1] / "scripts/real-network"
    done = subprocess.run([sys.executable, script, folder], text=True, capture_output=True)
    if "pip could not download" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return folder
