"""Training of EoMT: the loss of transformers and its gradients, annealing, and plain `fit`."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.segmentation.mask_loss import MaskLoss
from keras_vit.segmentation.mask_training import build_mask_trainer
from scripts.golden.network_formula import (
    chosen_values,
    images_of,
    mask_labels_of,
    mask_logits_of,
    points_of,
)
from tests.official import GOLDEN
from tests.segmentation.test_segments import load

EXPECTED = json.loads((GOLDEN / "eomt_loss.json").read_text())


@pytest.fixture
def fixed_points(monkeypatch):
    """The points of `scripts/golden/make_eomt.py` in place of random ones."""
    monkeypatch.setattr(tf.random, "uniform", lambda shape: tf.constant(points_of(shape)))


def check(found, expected, tolerance=1e-5):
    found = chosen_values(np.asarray(found))
    assert found["shape"] == expected["shape"]
    values, theirs = np.array(found["values"]), np.array(expected["values"])
    assert np.abs(values - theirs).max() <= tolerance * np.abs(theirs).max()


def test_loss_and_gradients_are_those_of_transformers(fixed_points):
    logits = [tf.constant(each) for each in mask_logits_of()]
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = MaskLoss(train_num_points=100)(*logits, *mask_labels_of(16))
    masks, classes = tape.gradient(loss, logits)
    expected = EXPECTED["logits"]
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-6)
    check(masks, expected["masks"])
    check(classes, expected["classes"])


def test_training_with_masked_attention_is_that_of_transformers(fixed_points, tmp_path):
    model = load(tmp_path, include_preprocessing=False)
    trainer = build_mask_trainer(model, 1000, MaskLoss(train_num_points=100))
    masks, labels = mask_labels_of(16)
    weights = {
        "queries": model.get_layer("queries").token,
        "patches": model.get_layer("patch_encoder").weights[1],
        "upscale": model.get_layer("upscale_0_depthwise").kernel,
    }
    with tf.GradientTape() as tape:
        outputs = trainer(images_of((64, 64)), training=True)
        loss = trainer.compute_loss(y={"masks": masks, "labels": labels}, y_pred=outputs)
    found = tape.gradient(loss, [weight.value for weight in weights.values()])
    expected = EXPECTED["training"]
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-6)
    queries, patches, upscale = map(np.asarray, found)
    check(queries[0], expected["queries"])
    check(patches, expected["patches"])
    check(upscale.transpose(2, 3, 0, 1), expected["upscale"])
