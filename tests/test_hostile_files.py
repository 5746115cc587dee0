"""Small files that ask for much are read or refused in little memory and time."""

from __future__ import annotations

import functools
import gc
import pathlib
import time

import pytest

from keras_vit.errors import CheckpointError
from tests.checks import quick
from tests.hostile_files import FILES, LONG_LIST, ZEROS

MEGABYTES, SECONDS = 400, 8  # at most; most of the seconds are the tracing of `decode`
REFUSALS = {
    "CSV": ValueError,
    "config.json": CheckpointError,
    "zeros": CheckpointError,
    ".": CheckpointError,
}
SMALLER = {LONG_LIST: {"megabytes": 1}, ZEROS: {"side": 6_000}}  # quicker to write
CASES = FILES | {
    name: (functools.partial(FILES[name][0], **options), FILES[name][1])
    for name, options in SMALLER.items()
}


def memory(key):
    """Megabytes of this process: VmRSS, or VmHWM, the largest since it was reset."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


QUICK = [name for name in CASES if not name.endswith("decoded")]


@pytest.mark.parametrize("name", quick([*CASES], *QUICK))
def test_small_files_take_little_memory_and_time(name, tmp_path):
    make, read = CASES[name]
    path = make(tmp_path)
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = memory("VmRSS"), time.process_time()
    refusal = next((kind for start, kind in REFUSALS.items() if name.startswith(start)), None)
    if refusal is None:
        read(path)
    else:
        with pytest.raises(refusal) as error:
            read(path)
        assert type(error.value) is refusal and len(str(error.value)) < 20_000
    assert time.process_time() - start < SECONDS
    assert memory("VmHWM") - before < MEGABYTES
