"""Norms and GELUs with gradients in closed form, in training on TensorFlow."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.mlp import MLP, gelu
from keras_vit.layers.norm import LayerNormalization
from keras_vit.layers.traced import PerThread
from tests import reference
from tests.fixtures import fill_random

TOKENS = np.random.default_rng(7).normal(1, 2, (3, 5, 16)).astype("float32")
COTANGENT = np.random.default_rng(8).normal(size=TOKENS.shape).astype("float32")
RUNS = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}


def gradients(layer, training, run=RUNS["eager"]):
    """Output of a layer, and gradients of its input and weights."""

    def step(tokens):
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            y = layer(tokens, training=training)
            loss = tf.reduce_sum(tf.cast(y, "float32") * COTANGENT)
        values = [weight.value for weight in layer.trainable_variables]
        return y, *tape.gradient(loss, [tokens, *values])

    return [np.asarray(x, "float64") for x in run(step)(tf.constant(TOKENS))]


def exact_gelu(x, form):
    return x / (1 + np.exp(-1.702 * x)) if form == "quick" else reference.gelu(x, form)


@pytest.mark.parametrize(
    ("policy", "limit"), [("float32", 2e-6), ("float64", 1e-7), ("bfloat16", 1.2e-2)]
)
@pytest.mark.parametrize("form", ["tanh", "exact", "quick"])
def test_value_and_derivative_of_gelu(form, policy, limit):
    x = tf.cast(np.linspace(-7, 7, 2001), policy)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x, form, training=True)
    z = np.asarray(x, "float64")  # rounded as the input is
    step = 1e-5
    derivative = (exact_gelu(z + step, form) - exact_gelu(z - step, form)) / (2 * step)
    assert y.dtype == x.dtype
    assert np.abs(np.asarray(tape.gradient(y, x), "float64") - derivative).max() < limit
    error = np.abs(np.asarray(y, "float64") - exact_gelu(z, form))
    assert (error <= limit * np.maximum(1, np.abs(z))).all()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: LayerNormalization(epsilon=1e-6, dtype=dtype),
        lambda dtype: LayerNormalization(epsilon=1e-6, dtype=dtype, center=False),
        lambda dtype: MLP(24, dtype=dtype),
        lambda dtype: TransformerBlock(4, 24, gelu="exact", dtype=dtype),
    ],
    ids=["norm", "without center", "mlp", "block"],
)
def test_gradients_are_those_of_the_operations_of_inference(make, run):
    layer = make("float32")
    layer.build(TOKENS.shape)
    fill_random(layer, seed=0)
    expected, received = gradients(layer, False), gradients(layer, True, RUNS[run])
    assert len(received) == 2 + len(layer.trainable_variables)
    for x, y in zip(received, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_as_near_to_float64_as_without(autocast):
    def make(dtype):
        layer = LayerNormalization(epsilon=1e-6, dtype=dtype, autocast=autocast)
        layer.build(TOKENS.shape)
        fill_random(layer, seed=0)
        return layer

    exact, half = gradients(make("float64"), False), make("mixed_bfloat16")
    assert half(TOKENS, training=True).dtype == tf.bfloat16
    without, received = gradients(half, False), gradients(half, True)
    for x, y, z in zip(received, without, exact, strict=True):
        assert np.abs(x - z).mean() <= 1.1 * np.abs(y - z).mean()


def count_operations(layer, training, shape):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
        return y, tape.gradient(y, [x, *(weight.value for weight in layer.trainable_variables)])

    return len(tf.function(step).get_concrete_function(tf.TensorSpec(shape)).graph.get_operations())


@pytest.mark.parametrize(("make", "share"), [(LayerNormalization, 0.25), (lambda: MLP(24), 0.6)])
def test_a_training_step_has_few_operations(make, share):
    layer = make()
    layer.build(TOKENS.shape)
    few, many = (count_operations(layer, training, (None, 5, 16)) for training in (True, False))
    assert few < share * many


def test_known_sizes_stay_known():
    layer = LayerNormalization()
    layer.build(TOKENS.shape)

    @tf.function(input_signature=[tf.TensorSpec((None, 5, 16))])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(layer(x, training=True), "tanh", training=True)
        gradient = tape.gradient(y, x)
        assert y.shape == gradient.shape == (None, 5, 16)
        return gradient

    step.get_concrete_function()


def test_no_graph_outlives_its_model():
    def train():
        block = TransformerBlock(4, 24)
        block.build(TOKENS.shape)

        @tf.function
        def step(tokens):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(tokens, training=True))
            return tape.gradient(loss, [weight.value for weight in block.trainable_variables])

        step(tf.constant(TOKENS))
        return weakref.ref(step.get_concrete_function(tf.constant(TOKENS)).graph)

    graphs = [train() for _ in range(3)]
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 3


def test_gradients_of_single_images():
    layer = MLP(24)
    layer.build((None, 5, 16))

    def of_one(tokens):
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            y = layer(tokens[None], training=True)
        return tape.gradient(y, tokens)

    together = tf.vectorized_map(of_one, tf.constant(TOKENS))
    np.testing.assert_allclose(together, [of_one(x) for x in tf.constant(TOKENS)], atol=1e-5)


def test_second_derivatives():
    x = tf.constant([-1.5, 0.0, 0.7])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = gelu(x, "exact", training=True)
        slope = inner.gradient(y, x)
    density = np.exp(-(x.numpy() ** 2) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(outer.gradient(slope, x), density * (2 - x.numpy() ** 2), rtol=1e-5)


@pytest.mark.parametrize("round_number", range(3))
def test_first_gradients_in_several_threads(round_number):
    """With one traced function for all threads, most rounds ended in a TypeError."""
    gate = threading.Barrier(4)

    def train(seed):
        width = 16 + 4 * round_number  # traced in this round
        block = TransformerBlock(4, 24)
        block.build((None, 5, width))

        @tf.function
        def step(tokens):
            with tf.GradientTape() as tape:
                tape.watch(tokens)
                loss = tf.reduce_sum(block(tokens, training=True))
            return tape.gradient(loss, tokens)

        gate.wait(60)
        return step(tf.ones((2, 5, width))).shape

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(train, range(4))) == [(2, 5, 16 + 4 * round_number)] * 4


def test_functions_of_a_thread_that_ended_go_to_the_next():
    made = []
    shared = PerThread(lambda key: made.append(key) or made[-1:])
    for _ in range(3):
        thread = threading.Thread(target=shared, args=("a",))
        thread.start()
        thread.join()
    assert made == ["a"]
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: (barrier.wait(60), shared("a"))[1], range(2))
    assert made == ["a", "a"]
    assert first is not second
