"""Losses that do not fit the model or the labels are refused, with the reason."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.image_set import read_arrays
from tests.fixtures import tiny_config


def classifier(activation=None):
    inputs = keras.Input((4,))
    return keras_vit.Model(inputs, keras.layers.Dense(3, activation=activation)(inputs))


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        ("categorical_crossentropy", r"CategoricalCrossentropy\(from_logits=True\)"),
        ("sparse_categorical_crossentropy", r"SparseCategoricalCrossentropy\(from_logits=True\)"),
        (keras.losses.categorical_crossentropy, "classifier_activation"),
        (keras.losses.CategoricalCrossentropy(), "returns logits, and CategoricalCrossentropy"),
        (keras.losses.BinaryCrossentropy(), r"BinaryCrossentropy\(from_logits=True\)"),
    ],
)
def test_losses_of_probabilities_are_refused_on_logits(loss, advice):
    model = classifier()
    with pytest.raises(ValueError, match=advice):
        model.compile("adam", loss)
    assert not model.compiled
    outer = keras_vit.Model(model.inputs, model(model.inputs[0]))  # whose output is another model
    with pytest.raises(ValueError, match="returns logits"):
        outer.compile("adam", loss=loss)
    classifier("softmax").compile("adam", loss)


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_a_loss_for_each_output_is_checked(form):
    """As a list, or by the names of outputs, of one output and of several."""
    inputs = keras.Input((4,))
    logits = keras.layers.Dense(3, name="logits")(inputs)
    shares = keras.layers.Dense(3, activation="softmax", name="shares")(inputs)
    right = keras.losses.CategoricalCrossentropy(from_logits=True)

    def losses(**named):
        return named if form is dict else form(named.values())

    for outputs in ([logits, shares], {"logits": logits, "shares": shares}):
        model = keras_vit.Model(inputs, outputs)
        if form is not dict and isinstance(outputs, dict):
            continue
        model.compile("sgd", losses(logits=right, shares="categorical_crossentropy"))
        with pytest.raises(ValueError, match=r"The model returns logits, and CategoricalCross"):
            model.compile("sgd", losses(logits="categorical_crossentropy", shares=right))
    model = keras_vit.Model(inputs, logits)
    with pytest.raises(ValueError, match="returns logits"):
        model.compile("sgd", losses(logits="sparse_categorical_crossentropy"))
    model.compile("sgd", losses(logits=right))
    with pytest.raises(ValueError, match=r"takes one-hot labels of shape \(B, 3\)"):
        model.evaluate(np.zeros((6, 4), "float32"), np.arange(6) % 3, verbose=0)


def test_losses_of_logits_and_others_are_not_refused(tmp_path):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(3)(inputs)
    activated = keras.layers.Activation("softmax")(outputs)
    keras_vit.Model(inputs, activated).compile("adam", "categorical_crossentropy")
    keras_vit.Model(inputs, [outputs, activated]).compile("adam", "categorical_crossentropy")
    model = classifier()
    for loss in (keras.losses.CategoricalCrossentropy(from_logits=True), "mse", None):
        model.compile("adam", loss)
    # A file that was compiled so before loads: it may be for prediction.
    model._compile("sgd", "categorical_crossentropy")
    model.save(tmp_path / "old.keras")
    assert keras.saving.load_model(tmp_path / "old.keras").loss == "categorical_crossentropy"


def test_labels_of_the_other_form_are_refused():
    x, y = np.zeros((6, 4), "float32"), np.arange(6) % 3
    model = classifier()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"takes integer labels .*\(None, 3\), one-hot"):
        model.fit(x, np.eye(3)[y], verbose=0)
    model.fit(x, y[:, None], verbose=0)  # as keras.datasets returns them
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"takes one-hot labels of shape \(B, 3\)"):
        model.evaluate(x, y, verbose=0)


@pytest.mark.parametrize("is_sparse", [True, False])
def test_batches_have_the_labels_that_the_loss_takes(is_sparse):
    model = keras_vit.build_vit(tiny_config(image_size=8, depth=1, classes=2))
    name = "SparseCategoricalCrossentropy" if is_sparse else "CategoricalCrossentropy"
    loss = getattr(keras.losses, name)(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    images = read_arrays(np.zeros((4, 8, 8, 3), "uint8"), np.arange(4) % 2)
    training = keras_vit.data.train_batches(images, model, 4)
    held_out = keras_vit.data.eval_batches(images, model, 4)
    for batches in (training, held_out):
        assert batches.element_spec[1].shape[1:] == (() if is_sparse else (2,))
    history = model.fit(training, validation_data=held_out, shuffle=False, verbose=0).history
    assert history["loss"] == pytest.approx([np.log(2)]) and history["val_accuracy"] == [0.5]
    if is_sparse:
        mixed = keras_vit.data.Augmentation(mixup=0.2)
        with pytest.raises(ValueError, match="compiled with a sparse loss"):
            keras_vit.data.train_batches(images, model, 4, mixed)
