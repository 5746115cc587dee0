"""The loss of sets of boxes, and its gradients, are those of transformers."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.models.set_prediction import LOSS_DEFAULTS, DetectionTransformer, set_loss
from tests.official import GOLDEN
from tests.workers import run

CASES = json.loads((GOLDEN / "detection.json").read_text())["losses"]
HEIGHT, WIDTH = 64, 96


def filled(rows, shape):
    """Rows of different lengths as one array, filled up with -1."""
    found = np.full((len(rows), max(1, *map(len, rows)), *shape), -1, "float32")
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = np.reshape(values, (-1, *shape))
    return found


def tiny_detector(classes=5, queries=7, **fields):
    """A detector whose outputs do not depend on the image."""
    x = keras.Input((HEIGHT, WIDTH, 3))
    y = keras.layers.GlobalAveragePooling2D()(x) / 255
    y = keras.layers.Dense(16, activation="relu")(y)
    logits = keras.layers.Dense(queries * (classes + 1))(y)
    boxes = keras.layers.Dense(queries * 4, activation="sigmoid")(y)
    outputs = {
        "logits": keras.layers.Reshape((queries, classes + 1))(logits),
        "pred_boxes": keras.layers.Reshape((queries, 4))(boxes),
    }
    model = DetectionTransformer(x, outputs)
    model.published = {"config": fields, "processor": {}}
    return model


def loss_and_gradients(case):
    """The loss of a case, and its gradients by outputs."""
    y = {"boxes": filled(case["boxes"], (4,)), "labels": filled(case["labels"], ())}
    model = tiny_detector(**case["weights"])
    images = np.zeros((len(case["boxes"]), HEIGHT, WIDTH, 3), "float32")
    outputs = {
        "logits": tf.constant(case["logits"]),
        "pred_boxes": tf.constant(case["predicted"]),
    }
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        loss = model.compute_loss(images, y, outputs)
    return loss, tape.gradient(loss, outputs)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_theirs(name):
    case = CASES[name]
    loss, gradients = loss_and_gradients(case)
    np.testing.assert_allclose(loss, case["loss"], rtol=1e-6)
    for key, gradient in gradients.items():
        theirs = np.array(case[{"logits": "logits", "pred_boxes": "predicted"}[key] + "_gradient"])
        if name == "no boxes" and key == "pred_boxes":
            assert not theirs.any()
        np.testing.assert_allclose(gradient, theirs, rtol=0, atol=2e-6 * max(abs(theirs).max(), 1))


def test_order_and_filling_of_boxes_do_not_matter():
    case = CASES["plain"]
    logits, predicted = tf.constant(case["logits"]), tf.constant(case["predicted"])
    boxes = filled(case["boxes"], (4,)) / np.array([WIDTH, HEIGHT] * 2)
    boxes, labels = boxes.astype("float32"), filled(case["labels"], ())
    loss = set_loss(logits, predicted, boxes, labels, LOSS_DEFAULTS)
    more = np.pad(labels, ((0, 0), (2, 1)), constant_values=-1)[:, ::-1]
    wider = np.pad(boxes, ((0, 0), (2, 1), (0, 0)), constant_values=-0.1)[:, ::-1]
    again = set_loss(logits, predicted, wider, more, LOSS_DEFAULTS)
    np.testing.assert_allclose(loss, again, rtol=1e-6)


def test_arguments_that_do_not_fit_are_errors(monkeypatch):
    model = tiny_detector()
    assert model.num_classes == 5
    model.class_names = [f"kind {n}" for n in range(5)]
    with pytest.raises(ValueError, match="must name each of the 5 outputs"):
        model.class_names = list("abcdef")
    for options in ({"loss": "mse"}, {"jit_compile": True}):
        with pytest.raises(ValueError, match=r"Leave both out: model\.compile\(optimizer\)"):
            model.compile("adam", **options)
    images = np.zeros((1, HEIGHT, WIDTH, 3), "float32")
    with pytest.raises(ValueError, match=r'a dict of "boxes" and "labels".*Received: ndarray'):
        model.compute_loss(images, np.zeros(1), model(images))
    y = {"boxes": np.full((1, 1, 4), -1.0), "labels": np.full((1, 1), -1)}
    with pytest.raises(ValueError, match="without weights of images"):
        model.compute_loss(images, y, model(images), sample_weight=np.ones(1))
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match=r"train on TensorFlow alone\. Received: 'jax'"):
        set_loss(None, None, None, None, LOSS_DEFAULTS)
    with pytest.raises(ValueError, match="predictions run on every backend"):
        model.compile("adam")


@pytest.mark.slow
def test_two_replicas_train_as_one_device(tmp_path):
    """Also EoMT: losses of matched objects are a replica's part of the loss of all."""
    found = run("tests.models.set_replicas", "check", tmp_path)
    assert found.split()[-4:] == ["yolos", "moved", "eomt", "moved"]
