"""Data in arrays: the results of `keras.Model`, without the autotuning of tf.data."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.runtime.array_data import without_autotune
from keras_vit.runtime.private_names import EpochIterator
from tests.checks import quick
from tests.fixtures import tiny_config, tiny_vit


@pytest.fixture(scope="module")
def model():
    return tiny_vit(stddev=0.1, image_size=16, patch_size=8, depth=1)


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
def test_predict_equals_keras(model, images, dtype):
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


def test_a_wrong_shape_is_an_error(model, images):
    with pytest.raises(ValueError, match=r"takes inputs of shape \(None, 16, 16, 3\)"):
        model.predict(images[:, :8], verbose=0)
    with pytest.raises(ValueError, match=r"Add the batch axis"):
        model.predict(images[0], verbose=0)


@pytest.mark.slow
def test_fit_and_evaluate_read_without_autotuning(model, images):
    """Keras's own of arrays for training and evaluation, and those of `keras_vit.data`."""
    tuned = []

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            tuned.append(EpochIterator.of_running_fit().dataset.options().autotune.enabled)

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


def is_tuned(iterator):
    """Whether TensorFlow tunes what it adds to a dataset for the first device."""
    part = iterator._iterators[0]._iterator._device_iterators[0]
    return part._dataset.options().autotune.enabled is not False


@pytest.mark.parametrize("steps", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_data_of_devices_is_not_tuned_under_a_strategy(steps):
    class Look(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_begin(self, epoch, logs=None):
            iterator = EpochIterator.of_running_fit()
            self.seen.append(is_tuned(iter(iterator._keras._get_iterator())))

        def on_test_begin(self, logs=None):
            iterator = self.model._eval_epoch_iterator
            self.seen.append(is_tuned(iter(iterator._get_iterator())))

    x, y = np.arange(12.0).reshape(6, 2), np.ones((6, 1))
    data = without_autotune(tf.data.Dataset.from_tensor_slices((x, y)).batch(2).repeat(3))
    results = {}
    for name in ("keras", "ours"):
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            inputs = keras.Input((2,))
            outputs = keras.layers.Dense(1, "relu", kernel_initializer="ones")(inputs)
            model = {"keras": keras.Model, "ours": keras_vit.Model}[name](inputs, outputs)
            model.compile("sgd", "mse")
        look = Look()
        options = {"validation_data": data, "validation_steps": steps, "steps_per_epoch": steps}
        model.fit(data, epochs=2, shuffle=False, callbacks=[look], verbose=0, **options)
        assert look.seen == [name == "keras"] * 4
        results[name] = model.get_weights()[0], model.predict(x, batch_size=2, verbose=0)
        results[name] += (model.predict(data.map(lambda x, y: x), steps=steps, verbose=0),)
    assert not is_tuned(iter(model._for_devices(data)))  # the data of `predict`
    for ours, expected in zip(results["ours"], results["keras"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


FIT_CASES = {
    "shuffled": {},
    "in order": {"shuffle": False, "batch_size": 3, "sample_weight": np.linspace(0, 2, 7)},
    "split": {"validation_split": 0.3, "class_weight": {0: 0.5, 1: 2.0, 2: 1.0}},
    "validation": {"validation_data": True, "validation_batch_size": 4, "validation_freq": 2},
    "steps": {"steps_per_epoch": 3, "validation_data": True, "validation_steps": 2},
    "some steps": {"steps_per_epoch": 2, "batch_size": 2},
}


@pytest.mark.parametrize("case", quick(FIT_CASES, "shuffled", "validation"))
def test_fit_and_evaluate_equal_keras(images, case):
    options = dict(FIT_CASES[case])
    labels, weights = np.arange(7) % 3, np.linspace(1, 0, 7)
    if "validation_data" in options:
        options["validation_data"] = (images, labels, weights)
    results = []
    for kind in (keras_vit.Model, keras.Model):
        keras.utils.set_random_seed(5)
        inputs = keras.Input((16, 16, 3))
        x = keras.layers.Rescaling(1 / 255)(keras.layers.AveragePooling2D(8)(inputs))
        outputs = keras.layers.Dense(3)(keras.layers.Flatten()(x))
        model = kind(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)  # Keras chooses none here; XLA rounds
        history = model.fit(images, labels, epochs=2, verbose=0, **options).history
        loss = model.evaluate(images, labels, 3, verbose=0, sample_weight=weights)
        limited = model.evaluate(images, labels, steps=2, verbose=0)
        listed = model.predict(images, 3, verbose=0, steps=2)
        results.append((history, loss, limited, listed, model.get_weights()))
    assert results[0][0].keys() == results[1][0].keys()
    keras.tree.map_structure(np.testing.assert_array_equal, *results)


def test_errors_about_arrays_are_those_of_keras(model, images):
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="cardinality"):
        model.fit(images, np.zeros((6, 10)), verbose=0)
    with pytest.raises(ValueError, match=r"`y`.*should not be passed"):
        model.fit(tf.data.Dataset.from_tensors(images), np.zeros((7, 10)), verbose=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bach_size'"):
        model.fit(images, np.zeros((7, 10)), bach_size=3)


def test_a_limit_on_steps_per_epoch_counts(model, images):
    model.compile("sgd", "mse")
    keras.config.set_max_steps_per_epoch(2)
    try:
        with pytest.warns(UserWarning, match="Limiting steps_per_epoch to 2"):
            model.fit(images, np.zeros((7, 10)), batch_size=2, verbose=0)
    finally:
        keras.config.set_max_steps_per_epoch(None)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.slow
def test_tensorflow_still_waits_for_autotuning():
    """When this fails, TensorFlow is corrected and `without_autotune` can go."""

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
    assert longest_wait(without_autotune) < 0.1


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_floats_in_another_range_are_noticed(method):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3)).astype("uint8")
    labels = np.zeros(20, "int32")
    sizes = {"image_size": 16, "depth": 1}
    model = keras_vit.build_vit(tiny_config(**sizes))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def run(images, model=model):
        model._values_are_checked = False
        return getattr(model, method)(images, *([labels] if method != "predict" else []), verbose=0)

    scaled = (pixels / 255).astype("float32")
    with pytest.warns(
        UserWarning, match=r"float32 in \[0, 1\], which look like .* Multiply .* 255"
    ):
        run(scaled)
    with pytest.warns(UserWarning, match=r"\[-1, 1\], which look normalised.*include_prepro"):
        run(keras.ops.convert_to_tensor(2 * scaled - 1))
    dark = np.concatenate([np.ones((16, 16, 16, 3), "float32"), pixels[:4].astype("float32")])
    for images in (pixels, pixels // 255, pixels.astype("float32"), dark, np.zeros_like(scaled)):
        run(images)  # pixels in [0, 255], however dark: warnings are errors
    for options in ({"include_preprocessing": False}, {"preprocessing": Preprocessing(0.5, 0.5)}):
        other = keras_vit.build_vit(tiny_config(**sizes, **options))
        other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        run(scaled, other)


def test_fit_trains_where_another_package_has_wrapped_that_of_keras(monkeypatch):
    fit = keras.Model.fit
    monkeypatch.setattr(
        keras.Model, "fit", lambda self, *args, **kwargs: fit(self, *args, **kwargs)
    )
    model = tiny_vit(classes=2)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = np.zeros((2, *model.input_shape[1:]), "float32")
    assert model.fit(images, np.array([0, 1]), verbose=0).history["loss"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        model.fit(images, np.array([0, 1]), batchsize=3)
