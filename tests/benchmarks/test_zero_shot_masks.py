"""benchmarks/zero_shot_masks.py: pictures, patches and the table."""

from __future__ import annotations

import numpy as np


def test_four_photographs_make_a_mosaic_and_its_map(load):
    masks = load("zero_shot_masks")
    labels = np.repeat(np.arange(8), masks.CELL**2).reshape(8, masks.CELL, masks.CELL)
    joined = masks.join(labels)
    assert joined.shape == (2, masks.SIZE, masks.SIZE)
    corners = joined[:, :: masks.SIZE - 1, :: masks.SIZE - 1]
    np.testing.assert_array_equal(corners.reshape(2, 4), np.arange(8).reshape(2, 4))
    patches = masks.majority(joined, 16, 8)
    assert patches.shape == (2, 16, 16)
    np.testing.assert_array_equal(
        masks.majority(joined, 2, 8), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    )


def test_logits_of_patches_have_a_mean_iou_and_chance_is_low(load):
    masks = load("zero_shot_masks")
    maps = np.repeat(np.arange(4), 16).reshape(1, 8, 8).astype("uint8")  # two rows of each
    logits = np.eye(4)[maps[:, ::2, ::2]]
    assert masks.score(logits, maps, "abcd").mean_iou == 1.0
    assert 0.05 < masks.chance(np.tile(maps, (8, 1, 1)), "abcd").mean_iou < 0.25


def test_the_table_has_means_and_ranges(load):
    masks = load("zero_shot_masks")
    rows = [
        {"set": "digits", "who": who, "seed": seed, "mean_iou": 0.2 + 0.1 * seed, "linear": 0.5,
         "chance": 0.05}
        for who in masks.VARIANTS for seed in (0, 1)
    ]  # fmt: skip
    lines = masks.table(rows)
    assert len(lines) == 2 + len(masks.VARIANTS)
    assert lines[-1] == "| digits | mean of the patches | 5.0 | 25.0 (20.0 to 30.0) | 50.0 |"
