"""Losses that do not fit the model or the labels are refused, with the reason."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.image_set import read_arrays
from keras_vit.runtime import losses as module
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
        ("bce", r"losses\.BinaryCrossentropy\(from_logits=True\)"),
        ("BCE", "returns logits, and BinaryCrossentropy"),
        ("kld", "returns logits, and KLDivergence .* It has no `from_logits`"),
        (keras.losses.Dice(), "returns logits, and Dice"),
        ("ce", r"'ce' takes .*SparseCategoricalCrossentropy\(from_logits=True\) or"),
        (
            "crossentropy",
            r"'crossentropy' takes .*losses.CategoricalCrossentropy\(from_logits=True\) or",
        ),
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
    with pytest.raises(ValueError, match="returns logits"):  # one loss is for every output
        keras_vit.Model(inputs, [outputs, activated]).compile("adam", "categorical_crossentropy")
    keras_vit.Model(inputs, [activated, activated * 1]).compile("adam", "kld")
    model = classifier()
    for loss in (keras.losses.CategoricalCrossentropy(from_logits=True), "mse", None):
        model.compile("adam", loss)
    # A file that was compiled so before loads: it may be for prediction.
    model._compile("sgd", "categorical_crossentropy")
    model.save(tmp_path / "old.keras")
    with pytest.warns(UserWarning, match="saved as it was compiled. The model returns logits"):
        loaded = keras.saving.load_model(tmp_path / "old.keras")
    assert loaded.loss == "categorical_crossentropy"


def test_labels_of_the_other_form_are_refused():
    x, y = np.zeros((6, 4), "float32"), np.arange(6) % 3
    model = classifier()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"takes integer labels .*\((None|6), 3\), one-hot"):
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


def ways_to_keep_logits():
    layers, ops = keras.layers, keras.ops
    rows = {
        "average": lambda x: layers.Average()([layers.Dense(3)(x), layers.Dense(3)(x)]),
        "linear": lambda x: layers.Activation("linear")(layers.Dense(3)(x)),
        "reshape": lambda x: layers.Reshape((1, 3))(layers.Dense(3)(x)),
        "flatten": lambda x: layers.Flatten()(layers.Reshape((1, 3))(layers.Dense(3)(x))),
        "concatenate": lambda x: layers.Concatenate()([layers.Dense(1)(x), layers.Dense(2)(x)]),
        "dropout": lambda x: layers.Dropout(0.1)(layers.Add()([layers.Dense(3)(x)] * 2)),
        "scaled": lambda x: layers.Rescaling(0.5)(layers.Dense(3)(x)),
        "operations": lambda x: ops.mean(ops.stack([layers.Dense(3)(x)] * 2), axis=0) / 2,
        "squeeze": lambda x: ops.squeeze(layers.Dense(3)(x[:, None]), 1),
        "segmenter": lambda x: layers.UpSampling2D()(layers.Conv2D(3, 1)(x[:, None, None])),
        "each frame": lambda x: layers.TimeDistributed(layers.Dense(3))(x[:, None]),
    }
    return [pytest.param(row, id=name) for name, row in rows.items()]


@pytest.mark.parametrize("way", ways_to_keep_logits())
def test_logits_are_found_behind_layers_that_keep_them(way):
    inputs = keras.Input((4,))
    logits = way(inputs)
    model = keras_vit.Model(inputs, logits)
    outer = keras_vit.Model(inputs, keras.layers.Identity()(model(inputs)))
    for each in (model, outer):
        with pytest.raises(ValueError, match="returns logits"):
            each.compile("sgd", "categorical_crossentropy")
    last = keras.layers.Softmax(name="shares")(logits)
    keras_vit.Model(inputs, last).compile("sgd", "kld", metrics=["AUC", "accuracy"])
    keras_vit.Model(inputs, keras.layers.Identity()(last)).compile("sgd", "ce")


def test_the_outputs_of_a_nested_model_are_told_apart():
    inputs = keras.Input((4,))
    logits = keras.layers.Dense(3)(inputs)
    both = keras.Model(inputs, {"logits": logits, "shares": keras.layers.Softmax()(logits)})
    found = both(inputs)
    keras_vit.Model(inputs, found["shares"]).compile("sgd", "ce")
    with pytest.raises(ValueError, match="returns logits"):
        keras_vit.Model(inputs, found["logits"]).compile("sgd", "ce")


def test_a_segmenter_returns_logits():
    config = tiny_config(image_size=32, depth=1, classes=None)
    backbone = keras_vit.build_vit(config)
    segmenter = keras_vit.segmentation.build_segmenter(backbone, 3)
    with pytest.raises(ValueError, match="returns logits"):
        segmenter.compile("sgd", "sparse_categorical_crossentropy")
    right = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match=r"MeanIoU takes class indices.*sparse_y_pred=False"):
        segmenter.compile("sgd", right, metrics=[keras.metrics.MeanIoU(3)])
    segmenter.compile("sgd", right, metrics=[keras.metrics.MeanIoU(3, sparse_y_pred=False)])


def test_every_loss_and_metric_of_keras_is_in_the_table():
    names = {
        name.lower().replace("_", "")
        for package in (keras.losses, keras.metrics)
        for name, found in vars(package).items()
        if callable(found) and name not in ("get", "serialize", "deserialize")
    }
    assert names - set(module._TAKES) == set()


METRICS = keras.metrics


@pytest.mark.parametrize(
    ("wrong", "right", "advice"),
    [
        (METRICS.AUC(), METRICS.AUC(from_logits=True), r"metrics\.AUC\(from_logits=True\)"),
        ("AUC", METRICS.AUC(from_logits=True), r"metrics\.AUC\(from_logits=True\)"),
        (METRICS.Recall(), METRICS.Recall(thresholds=0.0), r"Recall\(thresholds=0\.0\)"),
        (METRICS.Precision(0.5), METRICS.Precision(top_k=1), r"Precision\(thresholds=0\.0\)"),
        ("true_positives", METRICS.TruePositives([0.0]), r"TruePositives\(thresholds=0\.0\)"),
        (
            METRICS.BinaryAccuracy(),
            METRICS.BinaryAccuracy(threshold=0.0),
            r"BinaryAccuracy\(threshold=0\.0\)",
        ),
        (METRICS.binary_accuracy, "categorical_accuracy", r"BinaryAccuracy\(threshold=0\.0\)"),
        (METRICS.F1Score(threshold=0.5), METRICS.F1Score(), r"F1Score\(threshold=None\)"),
        (METRICS.BinaryIoU(), METRICS.BinaryIoU(threshold=0.0), r"BinaryIoU\(threshold=0\.0\)"),
        (METRICS.SensitivityAtSpecificity(0.5), "top_k_categorical_accuracy", "softmax"),
        (METRICS.KLDivergence(), "cosine_similarity", "softmax"),
        ("bce", METRICS.BinaryCrossentropy(from_logits=True), r"BinaryCrossentropy\(from_logits"),
        (METRICS.Accuracy(), "accuracy", 'Accuracy takes class indices.*Use "accuracy"'),
    ],
)
def test_metrics_of_probabilities_are_refused_on_logits(wrong, right, advice):
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model = classifier()
    for name in ("metrics", "weighted_metrics"):
        for given in ([wrong], {model.output_names[0]: wrong}, ["mse", wrong]):
            with pytest.raises(ValueError, match=f"returns logits, and the metric .*{advice}"):
                model.compile("sgd", loss, **{name: given})
        model.compile("sgd", loss, **{name: [right]})
    with pytest.raises(ValueError, match=advice):
        model.compile(metrics=[wrong])
    model.compile("sgd", "mse", metrics=[wrong])  # of regression
    classifier("softmax").compile("sgd", "kld", metrics=[wrong])


class Own(keras.losses.Loss):
    """A user's own loss, without a configuration."""

    def call(self, y_true, y_pred):
        return keras.losses.kl_divergence(y_true, keras.ops.softmax(y_pred))

    def get_config(self):
        raise NotImplementedError


class AUC(keras.metrics.Mean):
    """A user's own metric with the name of Keras's."""

    def get_config(self):
        raise NotImplementedError


def test_losses_and_metrics_of_users_are_left_to_them():
    classifier().compile("sgd", Own(), metrics=[AUC(), lambda y, z: z, "mse"])
    with pytest.raises(ValueError, match="metric AUC takes"):  # their outputs are logits
        classifier().compile("sgd", Own(), metrics=[METRICS.AUC()])


def test_metrics_of_several_outputs_are_checked():
    inputs = keras.Input((4,))
    logits = keras.layers.Dense(3, name="logits")(inputs)
    size = keras.layers.Dense(1, name="size")(inputs)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    for outputs in ([logits, size], {"logits": logits, "size": size}):
        model = keras_vit.Model(inputs, outputs)
        losses = {"logits": loss, "size": "mse"}
        model.compile("sgd", losses, metrics={"logits": ["accuracy"], "size": [METRICS.Recall()]})
        with pytest.raises(ValueError, match="metric Recall"):
            model.compile("sgd", losses, metrics={"logits": [METRICS.Recall()]})
    model = keras_vit.Model(inputs, [logits, size])
    with pytest.raises(ValueError, match="metric AUC"):
        model.compile("sgd", [loss, "mse"], weighted_metrics=[["accuracy", "AUC"], []])


@pytest.mark.parametrize("strategy", [None, "mirrored"])
def test_the_numbers_of_a_single_logit_are_right(tmp_path, strategy):
    strategy = (
        tf.distribute.MirroredStrategy(["cpu:0"]) if strategy else tf.distribute.get_strategy()
    )
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras_vit.Model(inputs, keras.layers.Dense(1)(inputs))
        given = [METRICS.AUC(from_logits=True, name="auc"), METRICS.Recall(0.0, name="recall")]
    z = np.linspace(-3, 3, 40, dtype="float32")[:, None]
    y = (z[:, 0] > 1).astype("float32")
    model.layers[-1].set_weights([np.ones((1, 1)), np.zeros(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy", *given])
    model.save(tmp_path / "one.keras")
    model._compile("sgd", loss, metrics=["accuracy", *given])  # as Keras does, with threshold 0.5
    model.save(tmp_path / "old.keras")
    model.compile("sgd", loss, metrics=["accuracy", *given])
    loaded = [keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("one", "old")]
    for each in (model, *loaded):
        found = each.evaluate(z, y, verbose=0, return_dict=True)
        assert found["accuracy"] == pytest.approx(np.mean((z[:, 0] > 0) == y))
        assert found["auc"] == pytest.approx(1, abs=1e-3) and found["recall"] == 1
    model.compile("sgd", "mse", metrics=["acc"])  # of 0 and 1: between them, as in Keras
    assert model.evaluate(z, y, verbose=0)[1] == pytest.approx(np.mean((z[:, 0] > 0.5) == y))
