"""benchmarks/data.py: what the readers of others give, and what is counted."""

from __future__ import annotations

import itertools

import numpy as np

from tests.data.pictures import encoded, pixels


def test_batches_of_pillow_and_images_a_second(load, tmp_path, monkeypatch):
    data = load("data")
    path = tmp_path / "1.jpg"
    path.write_bytes(encoded(pixels(30, 40), "jpeg"))
    batch = next(data.pillow([str(path)]))
    assert batch.shape == (data.BATCH, data.SIZE, data.SIZE, 3)
    assert np.abs(batch).max() <= 1

    monkeypatch.setattr(data.time, "process_time", itertools.count(0, 2.0).__next__)
    monkeypatch.setattr(data.time, "perf_counter", itertools.count(0, 4.0).__next__)
    row = data.measure(itertools.repeat(batch), 3)
    assert row["images_per_core_second"] == 3 * data.BATCH / 2
    assert row["images_per_second"] == 3 * data.BATCH / 4
