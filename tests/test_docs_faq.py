"""docs/faq.md: each row names a test that exists, and what no other test tries is tried here."""

from __future__ import annotations

import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.fixtures import tiny_config

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/faq.md").read_text(encoding="utf-8")


def test_every_row_names_tests_that_exist():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| report |")]
    assert 25 <= len(rows) <= 50
    for row in rows:
        named = re.findall(r"`tests/([\w/]+\.py)::(test_\w+)`", row.split(" | ")[-1])
        assert named, row
        for file, test in named:
            assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_class_weight_of_several_outputs():
    """An error in Keras and here; weights of each output are the way."""
    vit = keras_vit.build_vit(tiny_config(depth=1, image_size=16, classes=None))
    first = keras.layers.Dense(2, name="first")(vit.outputs[0])
    second = keras.layers.Dense(3, name="second")(vit.outputs[0])
    images, labels = np.zeros((4, 16, 16, 3), "float32"), np.arange(4) % 2
    y = {"first": labels, "second": labels}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for kind in (keras.Model, keras_vit.Model):
        model = kind(vit.inputs, {"first": first, "second": second})
        model.compile(keras.optimizers.SGD(0.0), {"first": loss, "second": loss})
        with pytest.raises(ValueError, match="only supported for Models with a single output"):
            model.fit(images, y, class_weight={0: 1.0, 1: 2.0}, verbose=0)
        weights = {"first": labels + 1.0, "second": np.ones(4)}
        losses.append(model.fit(images, y, sample_weight=weights, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
