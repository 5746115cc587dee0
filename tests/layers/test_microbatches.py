import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.microbatches import Microbatches
from tests.fixtures import numpy

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(7, 6)).astype("float32")
IDS = RNG.integers(0, 9, (7, 5)).astype("int32")
UPSTREAM = RNG.normal(size=(7, 4)).astype("float32")


def image_tower(rate=0.0):
    inputs = keras.Input((6,))
    x = keras.layers.Dropout(rate, seed=3)(keras.layers.Dense(8, "gelu")(inputs))
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def text_tower():
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 6)(ids))
    return keras.Model(ids, keras.layers.Dense(4)(x))


def gradients(function, tower, x):
    """Outputs, and gradients of a float batch and of all weights."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        if x.dtype.is_floating:
            tape.watch(x)
        y = function(x)
        loss = tf.reduce_sum(y * UPSTREAM)
    sources = [weight.value for weight in tower.trainable_weights]
    if x.dtype.is_floating:
        sources.append(x)
    return [y, *(tf.convert_to_tensor(each) for each in tape.gradient(loss, sources))]


@pytest.mark.parametrize("make", [image_tower, text_tower])
@pytest.mark.parametrize("size", [3, 7, 20])
def test_parts_have_outputs_and_gradients_of_the_batch(make, size):
    tower = make()
    layer, x = Microbatches(tower, size), IMAGES if make is image_tower else IDS
    expected = gradients(lambda x: tower(x, training=True), tower, x)
    found = gradients(lambda x: layer(x, training=True), tower, x)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
        assert np.abs(other).max() > 0.01
    np.testing.assert_array_equal(layer(x), tower(x))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_dropout_is_repeated_in_the_gradient(jit_compile):
    tower = image_tower(0.5)
    state = tower.layers[2].seed_generator.state
    layer, start = Microbatches(tower, 4), numpy(state)

    def parts(x):
        filled = tf.gather(x, [0, 1, 2, 3, 4, 5, 6, 0])
        return tf.concat([tower(part, training=True) for part in tf.split(filled, 2)], 0)[:7]

    def run(function):  # XLA draws other numbers from the same seed
        step = tf.function(lambda x: gradients(function, tower, x), jit_compile=jit_compile)
        return step(tf.constant(IMAGES))

    expected = run(parts)
    after = numpy(state)
    state.assign(start)
    for one, other in zip(run(lambda x: layer(x, training=True)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(state, after)


def test_a_frozen_tower_has_no_gradients_of_weights():
    tower = image_tower()
    tower.trainable = False
    layer = Microbatches(tower, 3)
    found = gradients(lambda x: layer(x, training=True), tower, IMAGES)
    assert len(found) == 2 and np.abs(found[1]).max() > 0


def test_the_layer_is_saved(tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, Microbatches(image_tower(), 2)(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IMAGES), model(IMAGES))
    assert loaded.layers[-1].size == 2


def test_errors_say_what_is_taken():
    with pytest.raises(ValueError, match="`size`"):
        Microbatches(image_tower(), 0)
    one, other = keras.Input((2,)), keras.Input((2,))
    with pytest.raises(ValueError, match=r"one input and one output\. Received: 2 and 1"):
        Microbatches(keras.Model([one, other], one + other), 2)
