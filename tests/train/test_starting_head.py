"""The head that fine-tuning starts from, of classes, labels and numbers."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.evaluate.targets import predict_targets
from keras_vit.train.probe import fit_probe
from keras_vit.train.rate_search import search_learning_rate
from keras_vit.train.starting_head import can_start, start_head
from tests.train import test_tasks
from tests.train.test_probe import coloured, make_model

RECIPE = keras_vit.train.plan_training(24, pretrained=True).recipe.replace(steps=2, batch_size=8)


def test_fine_tuning_starts_from_the_head_of_a_probe(tmp_path, monkeypatch):
    train = coloured(24)
    probed = fit_probe(make_model(), train, None, tmp_path / "features", batch_size=12)
    assert RECIPE.initial_head == "probe"
    still = RECIPE.replace(learning_rate=1e-30)
    found = keras_vit.fine_tune(make_model(), train, still, folder=tmp_path / "states", verbose=0)
    heads = [model.get_layer("head").weights for model in (found.model, probed.model)]
    for received, expected in zip(*heads, strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-5)
    monkeypatch.setattr("keras_vit.train.fit.start_head", None)  # a run that continues has its head
    again = keras_vit.fine_tune(make_model(), train, still, folder=tmp_path / "states", verbose=0)
    np.testing.assert_array_equal(*(x.model.get_layer("head").kernel for x in (found, again)))


def test_a_class_with_one_image_starts_as_the_rarest(monkeypatch):
    monkeypatch.setattr("keras_vit.train.starting_head.STARTING_IMAGES", 20)
    train = coloured(25, classes=2)  # ten of each are taken
    labels = np.array([*train.labels[:24], 2])
    images = dataclasses.replace(
        train, rows=(train.rows[0], labels), class_names=("red", "green", "one", "none")
    )
    model = keras_vit.adapt_model(make_model(), 4)
    start_head(model, images, verbose=False)
    kernel, bias = map(np.asarray, model.get_layer("head").weights)
    assert np.abs(kernel[:, :2]).max(axis=0).all() and not kernel[:, 2:].any()
    assert (bias[2:] == bias[:2].min()).all()
    right = keras_vit.evaluate.predict_set(model, images).is_right
    assert right[:24].all() and not right[24]


def test_where_no_head_starts_from_a_probe(monkeypatch):
    train = coloured(24)
    with pytest.raises(ValueError, match="One dense head can start from a probe"):
        keras_vit.fine_tune(make_model(distillation_token=True), train, RECIPE, verbose=0)
    with pytest.raises(ValueError, match="at least two classes with two images each"):
        keras_vit.fine_tune(make_model(), train.subset(np.arange(4)), RECIPE, verbose=0)
    with pytest.raises(ValueError, match="loss 'softmax' is not for task='regression'"):
        keras_vit.fine_tune(make_model(), vectors("regression"), RECIPE)
    with pytest.raises(ValueError, match=r"`pretrain` .* keeps its head; .* initial_head='probe'"):
        keras_vit.pretrain(make_model(classes=3), train, RECIPE, verbose=0)
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(ValueError, match="heads that differ in rounding"):
        keras_vit.fine_tune(make_model(), train, RECIPE, verbose=0)


def vectors(task, count=48):
    """Images of 16 pixels with two labels or numbers that follow from their colours."""
    images = test_tasks.coloured(task, count)
    pixels = images.rows[0].repeat(2, axis=1).repeat(2, axis=2)
    return dataclasses.replace(images, rows=(pixels, images.rows[1]))


def started(images, loss):
    """A model after training that changes nothing but its head at the beginning."""
    recipe = keras_vit.train.plan_training(images.num_images, True, images.task).recipe
    assert (recipe.initial_head, recipe.loss) == ("probe", loss)
    still = recipe.replace(steps=2, batch_size=8, learning_rate=1e-30)
    return keras_vit.fine_tune(make_model(), images, still, verbose=0).model


def test_several_labels_start_from_a_regression_each():
    images = vectors("multi_label")
    labels = np.concatenate([images.labels, np.zeros((48, 2))], axis=1)
    labels[0, 2] = 1  # the last two labels are on one image and on none
    images = dataclasses.replace(
        images, rows=(images.rows[0], labels), class_names=("red", "blue", "one", "none")
    )
    model = started(images, "sigmoid")
    kernel, bias = map(np.asarray, model.get_layer("head").weights)
    assert np.abs(kernel[:, :2]).max() > 1 and np.abs(kernel[:, 2:]).max() < 1e-20
    np.testing.assert_allclose(bias[2:], np.log(np.array([1.5 / 47.5, 0.5 / 48.5])), rtol=1e-5)
    found = predict_targets(model, images).outputs[:, :2] > 0.5
    assert (found == labels[:, :2]).mean() > 0.9
    rare = dataclasses.replace(images, rows=(images.rows[0], labels[:, 2:]), class_names=("a", "b"))
    assert can_start(images) and not can_start(rare)
    model.get_layer("block_0").trainable_variables[0].assign_add([np.nan] * 32)
    with pytest.raises(ValueError, match="Features must be finite"):
        start_head(model, images, verbose=False)


@pytest.mark.slow
def test_a_rare_label_is_among_the_images_of_the_probe(monkeypatch):
    monkeypatch.setattr("keras_vit.train.starting_head.STARTING_IMAGES", 12)
    images = coloured(60)
    labels = np.stack([images.labels == 0, np.arange(60) % 30 == 1], axis=1).astype("float16")
    images = dataclasses.replace(
        images, rows=(images.rows[0], labels), class_names=("often", "rare"), task="multi_label"
    )
    for seed in range(3):
        model = keras_vit.adapt_model(make_model(), 2)
        start_head(model, images, seed, verbose=False)
        kernel = model.get_layer("head").kernel.numpy()
        assert np.abs(kernel).max(axis=0).min() > 1e-3
        outputs = predict_targets(model, images).outputs.mean(axis=0)
        np.testing.assert_allclose(outputs, [1 / 3, 2 / 60], atol=0.06)  # not those of the 12


@pytest.mark.slow
def test_images_of_records_are_read_first(monkeypatch):
    images, heads = coloured(24), []

    def read(among, part, number, buffer):
        rows = tf.data.Dataset.from_tensor_slices(images.rows)
        rows = rows if number is None else rows.shuffle(buffer or 24, number)
        return rows.skip(part[0]).take(part[1] - part[0])

    records = dataclasses.replace(images, rows=(np.arange(24),), records=read)
    assert records.labels is None and can_start(records)
    for each in (images, records):
        model = keras_vit.adapt_model(make_model(), 3)
        start_head(model, each, verbose=False)
        heads.append(model.get_layer("head").get_weights())
    for one, other in zip(*heads, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    monkeypatch.setattr("keras_vit.train.starting_head.STARTING_IMAGES", 12)
    start_head(model, records, verbose=False)
    assert keras_vit.evaluate.predict_set(model, images).is_right.sum() > 20
    wrong = dataclasses.replace(records, class_names=("red", "green"))
    with pytest.raises(ValueError, match="Labels must be from 0 to 1"):
        start_head(keras_vit.adapt_model(make_model(), 2), wrong, verbose=False)


@pytest.mark.slow
def test_numbers_that_are_constant_where_they_are_drawn_start_from_zeros(monkeypatch):
    monkeypatch.setattr("keras_vit.train.starting_head.STARTING_IMAGES", 4)
    images, drawn = vectors("regression"), np.random.default_rng(0).permutation(48)[:4]
    targets = np.full((48, 2), 100.0)
    targets[np.setdiff1d(np.arange(48), drawn)[0]] = 90.0
    model = started(dataclasses.replace(images, rows=(images.rows[0], targets)), "huber")
    assert abs(predict_targets(model, images).outputs - targets.mean()).max() < 1e-3


def test_numbers_start_from_a_ridge_regression_in_their_units(monkeypatch):
    images = vectors("regression")
    model = started(images, "huber")
    found = predict_targets(model, images).metrics()
    assert min(found["R2 of red price"], found["R2 of blue"]) > 0.85
    head = [x.numpy() for x in model.get_layer("head").weights]
    recipe = keras_vit.train.plan_training(48, True, "regression").recipe
    with pytest.raises(ValueError, match=r"never fell .* it began at 0\.0"):  # in deviations
        search_learning_rate(model, images, recipe, lowest=1e-12, highest=1e-11, steps=3, seed=1)
    monkeypatch.setattr("keras_vit.train.rate_search.training_batches", None)
    with pytest.raises(TypeError):  # after the head was changed
        search_learning_rate(model, images, recipe, steps=3)
    for value, weight in zip(head, model.get_layer("head").weights, strict=True):
        np.testing.assert_array_equal(weight, value)
