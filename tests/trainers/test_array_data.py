"""Data in arrays: as `keras.Model` does it, without tf.data's tuner."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.resume.data_position import find_epochs
from keras_vit.trainers.tuning import untuned
from tests.fixtures import fill_random, tiny_config


@pytest.fixture(scope="module")
def model():
    model = keras_vit.build_vit(tiny_config(image_size=16, patch_size=8, depth=1))
    fill_random(model, 0.1)
    return model


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(0, 255, (7, 16, 16, 3))


class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __getattribute__(self, name):
        if name.startswith("on_predict"):
            self.seen.append(name.removeprefix("on_predict_"))
        return super().__getattribute__(name)


@pytest.mark.parametrize("dtype", ["uint8", "float64", "float32", "float16"])
def test_predict_is_keras_own(model, images, dtype):
    x = images.astype(dtype)
    expected = keras.Model.predict(
        model, tf.data.Dataset.from_tensors(x.astype("float32")), verbose=0
    )
    for data in (x, tf.constant(x)):
        np.testing.assert_allclose(
            model.predict(data, 3, verbose=0), expected, rtol=1e-5, atol=1e-6
        )


def test_predict_calls_back_and_stops(model, images):
    ours, theirs = Log(), Log()
    model.predict(images, 3, verbose=0, callbacks=[ours])
    keras.Model.predict(model, images, 3, verbose=0, callbacks=[theirs])
    assert ours.seen == theirs.seen and ours.seen.count("batch_end") == 3

    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            assert logs["outputs"].shape == (3, 10)
            self.model.stop_predicting = True

    assert model.predict(images, 3, verbose=0, callbacks=[Stop()]).shape == (3, 10)


def test_several_outputs_keep_their_structure(model, images):
    inputs = keras.Input((16, 16, 3))
    tokens = keras_vit.Model(inputs, {"logits": model(inputs), "mean": [inputs[:, 0, 0]]})
    outputs = tokens.predict(images, 3, verbose=0)
    assert outputs["logits"].shape == (7, 10) and outputs["mean"][0].shape == (7, 3)


def test_what_does_not_fit_says_so(model, images):
    with pytest.raises(ValueError, match=r"takes inputs of shape \(None, 16, 16, 3\)"):
        model.predict(images[:, :8], verbose=0)
    with pytest.raises(ValueError, match=r"Add the batch axis"):
        model.predict(images[0], verbose=0)


def test_no_pipeline_of_fit_has_a_tuner(model, images):
    """Keras's own of arrays for training and evaluation, and those of `keras_vit.data`."""
    tuned = []

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            tuned.append(find_epochs()._distributed_dataset.options().autotune.enabled)

        def on_epoch_end(self, epoch, logs=None):
            iterator = self.model._eval_epoch_iterator
            tuned.append(iterator._distributed_dataset.options().autotune.enabled)

    labels = np.arange(7) % 10
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images, labels, validation_data=(images, labels), callbacks=[Look()], verbose=0)
    source = keras_vit.read_arrays(images, labels, list("abcdefghij"))
    batches = keras_vit.data.train_batches(source, model, 7, one_hot=False)
    held_out = keras_vit.data.eval_batches(source, model, 7, one_hot=False)
    model.fit(batches, validation_data=held_out, callbacks=[Look()], shuffle=False, verbose=0)
    assert tuned == [False] * 4


@pytest.mark.slow
def test_tensorflow_still_waits_for_its_tuner():
    """When this fails, TensorFlow is mended and `untuned` can go."""

    def longest_wait(change):
        waits = []
        for _ in range(12):
            data = tf.data.Dataset.range(9).map(lambda x: x + 1, tf.data.AUTOTUNE).prefetch(2)
            iterator = iter(change(data))
            next(iterator)
            time.sleep(0.4)  # the tuner sleeps from 0.31 s to 0.63 s
            begin = time.perf_counter()
            del iterator
            waits.append(time.perf_counter() - begin)
        return max(waits)

    assert longest_wait(lambda data: data) > 0.1
    assert longest_wait(untuned) < 0.1
