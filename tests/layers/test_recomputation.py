"""What is computed a second time is the same, random numbers included."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.block import TransformerBlock
from tests.checks import quick

RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.1, "stochastic_depth_rate": 0.3}


def steps(rematerialize, jit_compile):
    """Outputs, gradients and random states of two training steps."""
    keras.utils.set_random_seed(1)
    block = TransformerBlock(2, 32, rematerialize=rematerialize, **RATES)
    block.build((None, 5, 16))
    tokens = tf.constant(np.random.default_rng(0).normal(size=(3, 5, 16)), "float32")

    def step():
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            outputs = block(tokens, training=True)
            loss = tf.reduce_sum(outputs**2)
        return outputs, tape.gradient(loss, [tokens, *(v.value for v in block.trainable_variables)])

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    return [(step(), [v.numpy() for v in block.non_trainable_variables]) for _ in range(2)]


@pytest.mark.parametrize(
    "jit_compile", quick([None, False, True], None, False), ids=["eager", "graph", "xla"]
)
def test_gradients_are_those_without_it(jit_compile):
    expected, received = steps(False, jit_compile), steps(True, jit_compile)
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4), received, expected
    )
    (first, _), (second, states) = received
    assert np.abs(first[0] - second[0]).max() > 0.1  # the random numbers went on
    assert [state[1] for state in states] == [2, 2, 2, 2, 4]


def test_products_are_recomputed():
    def products(rematerialize):
        block = TransformerBlock(2, 32, rematerialize=rematerialize)
        block.build((None, 5, 16))

        @tf.function
        def forward(tokens):
            with tf.GradientTape() as tape:
                outputs = block(tokens, training=True)
            return tape.gradient(outputs, [v.value for v in block.trainable_variables])

        graph = forward.get_concrete_function(tf.TensorSpec((3, 5, 16))).graph
        return sum(
            operation.type in ("BatchMatMulV2", "MatMul") for operation in graph.get_operations()
        )

    assert products(True) > products(False) + 4  # its products are there twice


def test_inference_and_scores_do_without():
    block = TransformerBlock(2, 32, rematerialize=True)
    block.build((None, 5, 16))
    tokens = np.ones((1, 5, 16), "float32")
    outputs, scores = block(tokens, return_attention_scores=True, training=True)
    np.testing.assert_allclose(block(tokens), outputs, atol=1e-6)
    assert scores.shape == (1, 2, 5, 5)
