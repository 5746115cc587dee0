"""Training of EoMT: the loss of transformers and its gradients, annealing, and plain `fit`."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.segmentation.mask_training import build_mask_trainer
from keras_vit.train.mask_loss import MaskLoss
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


def found_on_logits():
    """The loss on fixed logits, and its gradients."""
    logits = [tf.constant(each) for each in mask_logits_of()]
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = MaskLoss(train_num_points=100)(*logits, *mask_labels_of(16))
    masks, classes = tape.gradient(loss, logits)
    return {"loss": float(loss), "masks": masks, "classes": classes}


def found_in_training(folder):
    """The loss of a step of training with masked attention, and its gradients."""
    model = load(folder, include_preprocessing=False)
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
    queries, patches, upscale = map(np.asarray, found)
    gradients = {"queries": queries[0], "patches": patches}
    return {"loss": float(loss), **gradients, "upscale": upscale.transpose(2, 3, 0, 1)}


@pytest.mark.parametrize("case", ["logits", "training"])
def test_loss_and_gradients_are_those_of_transformers(fixed_points, case, tmp_path):
    found = found_on_logits() if case == "logits" else found_in_training(tmp_path)
    expected = EXPECTED[case]
    assert found.pop("loss") == pytest.approx(expected["loss"], rel=1e-6)
    assert {*found, "loss"} == expected.keys()
    for name, gradient in found.items():
        check(gradient, expected[name])


def test_masks_without_a_query_and_images_without_masks_count_nothing():
    masks, classes = map(tf.constant, mask_logits_of(queries=2))
    targets, labels = mask_labels_of(16)
    loss = MaskLoss(train_num_points=50)
    assert np.isfinite(float(loss(masks, classes, targets, labels)))  # three masks, two queries
    nothing = float(loss(masks, classes, targets, np.full_like(labels, -1)))
    entropy = -tf.nn.log_softmax(classes)[..., -1]
    assert nothing == pytest.approx(2 * float(tf.reduce_mean(entropy)), rel=1e-6)


def squares(count=4, size=64):
    """Images of a bright square each, whose mask is on the left or on the right."""
    images, masks = np.zeros((count, size, size, 3), "float32"), np.zeros((count, 2, size, size))
    for index in range(count):
        place = slice(8, 56), slice(4, 28) if index % 2 else slice(36, 60)
        images[index][place] = 255
        masks[index, 0][place] = 1
    labels = np.array([[index % 2, -1] for index in range(count)])
    return images, {"masks": masks.astype("float32"), "labels": labels.astype("int32")}


@pytest.mark.parametrize("name", ["eomt", "eomt on dinov3"])
def test_the_loss_falls_in_20_steps_of_fit(name, tmp_path):
    keras.utils.set_random_seed(0)
    model = load(tmp_path, name=name)
    trainer = build_mask_trainer(model, 20, MaskLoss(train_num_points=200))
    trainer.compile(keras.optimizers.Adam(1e-3))
    images, labels = squares()
    losses = trainer.fit(images, labels, epochs=20, batch_size=4, verbose=0).history["loss"]
    assert np.mean(losses[-3:]) < 0.5 * np.mean(losses[:3])
    # After all steps no query is masked: the model alone, whose weights were trained, is the same.
    outputs, alone = trainer.predict(images, verbose=0), model.predict(images, verbose=0)
    for key, value in alone.items():
        np.testing.assert_allclose(outputs[key], value, rtol=0, atol=1e-3)
    trainer.save(tmp_path / "t.keras")
    again = keras.saving.load_model(tmp_path / "t.keras")
    assert again.mask_loss == trainer.mask_loss
    assert int(again.get_layer("query_mask_0").step) == 20
    assert again.evaluate(images, labels, verbose=0) < losses[0]


def test_annealing_is_that_of_the_authors(tmp_path):
    """Steps of configs/dinov2/coco/panoptic/eomt_large_640.yaml, whose 12 epochs are 88,692."""
    trainer = build_mask_trainer(load(tmp_path), 88_692)
    masks = [layer for layer in trainer.layers if layer.name.startswith("query_mask")]
    assert [each.annealing for each in masks] == [(14_782, 29_564), (59_128, 73_910)]
    for step, share in ((0, 1), (14_782, 1), (22_173, 0.5**0.9), (29_564, 0), (80_000, 0)):
        masks[0].step.assign(step)
        assert float(masks[0].probability()) == pytest.approx(share)


def test_settings_of_the_loss_are_those_of_the_checkpoint(tmp_path):
    model = load(tmp_path, changes={"no_object_weight": 0.3, "train_num_points": 77})
    assert build_mask_trainer(model, 10).mask_loss == MaskLoss(
        no_object_weight=0.3, train_num_points=77
    )


def test_wrong_models_and_labels_say_what_to_do(tmp_path):
    masked = load(tmp_path, name="masked eomt")
    with pytest.raises(ValueError, match="attn_mask_probs are 0"):
        build_mask_trainer(masked, 10)
    trainer = build_mask_trainer(load(tmp_path), 10)
    with pytest.raises(ValueError, match="Labels are a dict of `masks`"):
        trainer.compute_loss(y=np.zeros(2), y_pred={})
