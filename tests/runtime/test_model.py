"""What Keras offers for training, with our models: optimizers, distillation, freezing."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.checks import quick
from tests.fixtures import KERAS, tiny_config

IMAGES = np.random.default_rng(0).uniform(0, 255, (8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 2
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make():
    keras.utils.set_random_seed(0)
    return keras_vit.build_vit(tiny_config(depth=1, image_size=16, width=16, classes=2))


def two_optimizers():
    rules = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.01))
    rules["head/.*"] = keras.optimizers.AdamW(0.01)
    return keras.optimizers.MultiOptimizer(rules)


OPTIMIZERS = {
    "Muon": lambda: keras.optimizers.Muon(0.01),
    "ScheduleFreeAdamW": lambda: keras.optimizers.ScheduleFreeAdamW(0.01),
    "MultiOptimizer": two_optimizers,
    "Adam": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=4),
}


@pytest.mark.parametrize("name", quick(OPTIMIZERS, "Adam", "MultiOptimizer"))
def test_optimizers_of_keras_train_and_are_saved(name, tmp_path):
    if not hasattr(keras.optimizers, name):
        pytest.skip(f"this Keras has no {name}")
    model = make()
    model.compile(OPTIMIZERS[name](), LOSS, run_eagerly=True)
    losses = model.fit(IMAGES, LABELS, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations) == 6
    np.testing.assert_array_equal(again(IMAGES), model(IMAGES))


def test_a_list_of_one_output_trains_as_the_output():
    losses = []
    for form in (lambda outputs: outputs[0], list):
        model = make()
        model = keras_vit.Model(model.inputs, form(model.outputs))
        model.get_layer("head").kernel.assign(np.random.default_rng(1).normal(size=(16, 2)))
        model.compile(keras.optimizers.SGD(0.1), LOSS)
        history = model.fit(IMAGES, LABELS, batch_size=4, epochs=2, verbose=0, shuffle=False)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_decoder_trains_as_in_plain_keras():
    """A user's layers on our feature maps: batch norm's statistics, losses and maps."""
    masks = np.random.default_rng(1).uniform(size=(8, 16, 16, 1)) > 0.5
    found = []
    for kind in (keras.Model, keras_vit.Model):
        keras.utils.set_random_seed(0)
        config = tiny_config(depth=1, image_size=16, width=16, classes=None, pooling=None)
        backbone = keras_vit.build_vit(config)
        (x,) = keras_vit.models.feature_maps(backbone).output.values()
        x = keras.layers.Conv2DTranspose(4, 4, 2, "same")(x)
        x = keras.layers.BatchNormalization(momentum=0.9, name="norm")(x)
        x = keras.layers.Resizing(16, 16)(keras.layers.Conv2D(1, 1)(x))
        model = kind(backbone.input, keras.layers.Activation("sigmoid")(x))
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
        history = model.fit(IMAGES, masks, batch_size=4, epochs=2, verbose=0, shuffle=False).history
        norm = model.get_layer("norm").get_weights()
        assert np.abs(norm[2]).min() > 1e-4  # the mean has moved from 0
        found.append([*history.values(), *norm, model.predict(IMAGES, verbose=0)])
    for plain, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_keras_distills_one_model_into_another():
    distillation = pytest.importorskip("keras.distillation")
    student, teacher = make(), make()
    teacher.get_layer("head").kernel.assign(np.random.default_rng(1).normal(size=(16, 2)))
    distiller = distillation.Distiller(
        teacher, student, distillation.LogitsDistillation(temperature=2.0)
    )
    distiller.compile(keras.optimizers.Adam(0.01), LOSS, run_eagerly=True)
    kept = [np.array(w) for w in teacher.get_weights()]
    losses = distiller.fit(IMAGES, LABELS, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert all((a == b).all() for a, b in zip(kept, teacher.get_weights(), strict=True))


def test_freezing_after_compile_is_said_until_it_is_compiled_again():
    model = make()
    model.compile("sgd", LOSS, run_eagerly=True)
    model.get_layer("block_0").trainable = False
    with pytest.warns(UserWarning, match=r"after `compile`: \d+ variables, such as 'block_0/"):
        model.fit(IMAGES, LABELS, verbose=0)
    model.compile("sgd", LOSS, run_eagerly=True)
    before = [np.array(w) for w in model.get_layer("block_0").get_weights()]
    model.fit(IMAGES, LABELS, verbose=0)
    after = model.get_layer("block_0").get_weights()
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def to_numpy(y_true, y_pred):
    """A metric that is not of TensorFlow, with a condition on values."""
    found = np.mean(y_pred.numpy().argmax(-1) == y_true.numpy().ravel())
    return np.float32(found if found >= 0 else np.nan)


def with_a_condition(y_true, y_pred):
    """A loss that reads values in Python."""
    loss = LOSS(y_true, y_pred)
    return loss if float(loss) > 0 else 0 * loss


def test_eager_steps_run_the_code_of_users_on_values_alone():
    ours = make()
    plain = keras.Model(ours.inputs, ours.outputs[0])
    start, histories = ours.get_weights(), []
    for model in (plain, ours):
        model.set_weights(start)
        model.compile("sgd", with_a_condition, metrics=[to_numpy], run_eagerly=True)
        data = {"validation_data": (IMAGES, LABELS), "shuffle": False, "verbose": 0}
        histories.append(model.fit(IMAGES, LABELS, batch_size=4, **data).history)
        model.evaluate(IMAGES, LABELS, verbose=0)
    assert histories[0].keys() == histories[1].keys() >= {"to_numpy", "val_to_numpy"}
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5)


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_an_error_of_a_metric_is_that_of_the_step(jit_compile):
    model = make()
    model.compile("sgd", LOSS, metrics=[to_numpy], jit_compile=jit_compile)
    with pytest.raises(AttributeError, match="numpy") as error:
        model.fit(IMAGES, LABELS, verbose=0)
    assert any(entry.name == "train_step" for entry in error.traceback)


def test_more_keys_than_inputs_are_ignored():
    rows = {"images": IMAGES, "id": np.arange(8), "file": np.array(["a.png"] * 8)}
    data = tf.data.Dataset.from_tensor_slices((rows, LABELS)).batch(4)
    inputs = {"images": keras.Input((16, 16, 3), name="images")}
    inputs["age"] = keras.Input((1,), name="age")
    model = make()
    two = keras_vit.Model(inputs, keras.layers.Dense(2)(inputs["age"]) + model(inputs["images"]))
    expected = model.predict(IMAGES, verbose=0)
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, atol=1e-6)
    for each, batches in (
        (model, data),
        (two, data.map(lambda x, y: ({**x, "age": [[1.0]] * 4}, y))),
    ):
        each.compile("sgd", LOSS, jit_compile=False)
        each.fit(batches, shuffle=False, verbose=0)
        each.evaluate(batches, verbose=0)
        each.predict(batches, verbose=0)
    match = r"takes a batch with the keys images\. Received: image, id, without images"
    with pytest.raises(ValueError, match=match):
        model({"image": IMAGES, "id": np.arange(8)})
    with pytest.raises(ValueError, match="Missing data for input"):
        two({"images": IMAGES})
    with pytest.raises(ValueError, match=r"takes one input, images\. Received: 2 tensors"):
        model.predict([IMAGES, IMAGES], verbose=0)


@pytest.mark.parametrize("base", [keras.Model, keras_vit.Model])
def test_other_keys_of_nested_inputs_are_taken_in_their_order(base):
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    model = base({"x": [a, b]}, keras.layers.Dense(1, kernel_initializer="ones")(a) + 3 * b)
    model.compile("sgd", "mse", jit_compile=False)
    rows = {"k": np.ones((4, 1), "float32"), "l": np.full((4, 1), 2, "float32")}
    data = tf.data.Dataset.from_tensors((rows, np.zeros((4, 1))))
    if KERAS >= (3, 16):
        with pytest.raises(ValueError, match="Missing fields"):
            model.fit(data, shuffle=False, verbose=0)
        return
    with pytest.warns(UserWarning, match="structure of `inputs` doesn't match"):
        assert model.fit(data, shuffle=False, verbose=0).history["loss"] == [49.0]


def subclass_of(base):
    class Classifier(base):
        def __init__(self):
            super().__init__()
            self.backbone = make()
            self.classes = keras.layers.Dense(2)

        def call(self, images, training=None):
            return self.classes(self.backbone(images, training=training))

    return Classifier


def test_a_model_in_a_subclass_of_keras(tmp_path):
    model, again = subclass_of(keras.Model)(), subclass_of(keras.Model)()
    model.compile("sgd", LOSS)
    model.fit(IMAGES, LABELS, verbose=0)
    model.save_weights(tmp_path / "a.weights.h5")
    again(IMAGES)
    again.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(again(IMAGES), model(IMAGES))
    with pytest.raises(TypeError, match="your own, derive from"):
        subclass_of(keras_vit.Model)()


def test_a_clone_keeps_names_and_architecture():
    model = keras_vit.build_vit(tiny_config(classes=2))
    model.class_names = ["dog", "cat"]
    copy = keras.models.clone_model(model)
    assert (copy.config, copy.class_names) == (model.config, ("dog", "cat"))
    assert keras_vit.Model(copy.inputs, copy.outputs).config is None  # not of models built on it

    def enlarge(layer):
        config = layer.get_config()
        return type(layer).from_config({**config, "units": 3} if layer.name == "head" else config)

    other = keras.models.clone_model(model, clone_function=enlarge)
    assert (other.config, other.class_names, other.output_shape) == (None, None, (None, 3))
