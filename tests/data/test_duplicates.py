"""Near-duplicates between two sets."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.data.folder import read_folder
from tests.data.pictures import encoded, pixels, write_folder


def images(seeds):
    return np.stack([pixels(40, 60, seed) for seed in seeds])


def test_images_that_were_changed_a_little_are_found(tmp_path):
    train = keras_vit.read_arrays(images(range(10)), np.arange(10))
    original = PIL.Image.fromarray(pixels(40, 60, 3))
    changed = {
        "again": encoded(original, quality=40),
        "brighter": encoded(original.point(lambda v: min(255, int(v * 0.7 + 60)))),
        "mirrored": encoded(original.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)),
        "small": encoded(original.resize((30, 20)), "png"),
    }
    for name in ("a", "b"):
        write_folder(tmp_path, (name,), count=0)
    for name, data in changed.items():
        (tmp_path / "a" / f"{name}.jpg").write_bytes(data)
    (tmp_path / "b" / "other.png").write_bytes(
        encoded(pixels(40, 60, 77).transpose(1, 0, 2), "png")
    )
    (tmp_path / "b" / "white.png").write_bytes(encoded(np.full((40, 60, 3), 250, "uint8"), "png"))
    found = keras_vit.data.find_near_duplicates(train, read_folder(tmp_path))
    assert sorted((pair.first, pair.second) for pair in found) == [(3, n) for n in range(4)]
    assert all(0.98 <= pair.similarity <= 1 for pair in found)
    assert [pair.similarity for pair in found] == sorted(p.similarity for p in found)[::-1]
    straight = keras_vit.data.find_near_duplicates(train, read_folder(tmp_path), mirrored=False)
    names = sorted(changed)
    assert {names[pair.second] for pair in straight} == set(names) - {"mirrored"}


def test_no_pairs_and_no_sense(tmp_path):
    one, other = (keras_vit.read_arrays(images(s), [0, 1]) for s in ((1, 2), (40, 50)))
    assert keras_vit.data.find_near_duplicates(one, other) == []
    assert len(keras_vit.data.find_near_duplicates(one, one)) == 2
    with pytest.raises(ValueError, match=r"`similarity` must be in \(0, 1\]. Received: 2"):
        keras_vit.data.find_near_duplicates(one, other, similarity=2)
