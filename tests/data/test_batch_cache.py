"""Decoded batches in a cache file."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import tempfile

import numpy as np
import pytest

from keras_vit.data.batches import eval_batches
from keras_vit.data.image_set import read_arrays
from tests.data.test_batches import TRANSFORM, arrays, read


@pytest.fixture(scope="module")
def images():
    return read_arrays(*arrays())


def test_cached_files_are_of_these_batches(images, tmp_path):
    def kept(seed=0, batch_size=4, **changes):
        transform = dataclasses.replace(TRANSFORM, **changes)
        return eval_batches(parts[seed], transform, batch_size, cache=tmp_path / "new/val")

    parts = [images.split(5, seed)[1] for seed in (0, 1)]
    labels = [read(eval_batches(part, TRANSFORM, 4)) for part in parts]
    assert labels[0] != labels[1] and [read(kept(seed)) for seed in (0, 1)] == labels
    assert [len(x) for x, _ in kept(batch_size=3)] == [3, 2]
    assert np.max(next(iter(kept(normalize=True)))[0]) <= 1
    files = set(tmp_path.rglob("*"))
    assert read(kept()) == labels[0] and set(tmp_path.rglob("*")) == files


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_cache_that_cannot_be_written_fails_no_run(code, images, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    labels = read(eval_batches(images, TRANSFORM, 4))
    for name in ("TemporaryFile", "mkdtemp"):
        monkeypatch.setattr(tempfile, name, refuse)
    with pytest.warns(UserWarning, match=f"Batches are not cached in .*{os.strerror(code)}"):
        assert read(eval_batches(images, TRANSFORM, 4, cache=tmp_path / "new" / "val")) == labels


def test_too_small_a_disk_for_a_cache_fails_no_run(images, small_disk):
    small_disk.fill(leave=16_384)
    with pytest.warns(UserWarning, match=r"they need 34,\d+ bytes, and [\d,]+ are free"):
        batches = eval_batches(images, TRANSFORM, 4, cache=small_disk.path / "val")
    assert read(batches) == arrays()[1].tolist()


@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001"])
def test_a_damaged_cache_is_made_again(ending, images, tmp_path):
    labels = read(eval_batches(images, TRANSFORM, 4, cache=tmp_path / "val"))
    gc.collect()
    (path,) = tmp_path.glob(f"val*{ending}")
    size = path.stat().st_size
    os.truncate(path, size // 2)
    assert read(eval_batches(images, TRANSFORM, 4, cache=tmp_path / "val")) == labels
    assert path.stat().st_size == size


def test_a_kill_while_batches_are_cached_leaves_nothing_in_the_way(images, tmp_path):
    batches = eval_batches(images, TRANSFORM, 4, cache=tmp_path / "val")
    labels = read(batches)
    (index,) = tmp_path.glob("*.index")
    left = [index.with_name(f"{index.stem}_0.{name}") for name in ("lockfile", "index")]
    index.unlink()
    for file in left:
        file.touch()
    eval_batches(images, TRANSFORM, 4, cache=tmp_path / "val")
    assert all(file.exists() for file in left)  # the first batches may still be written
    del batches
    gc.collect()
    assert read(eval_batches(images, TRANSFORM, 4, cache=tmp_path / "val")) == labels
