"""The last block computes those tokens alone that are read after it."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import RotaryPositions
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.mlp import MLP
from keras_vit.layers.norm import LayerNormalization
from keras_vit.layers.pooling import TokenPooling
from keras_vit.layers.windows import WindowAttention
from keras_vit.models.vit import build_vit
from keras_vit.runtime.pooled_tokens import pooled_tokens
from tests.fixtures import images_for, tiny_vit

SHORTENED = {
    "plain": {},
    "two tokens": {"distillation_token": True},
    "registers": {"num_registers": 2},
    "no last norm": {"norm_after_pooling": True},
    "post-norm": {"post_norm": True, "layer_scale": 0.1},
    "rms": {"norm": "rms", "qk_norm": True, "inner_norms": ("attention", "mlp"), "swiglu": True},
    "distances": {"position_embedding": "relative"},
    "biases": {"position_embedding": "relative_bias"},
    "rotary": {"position_embedding": "none", "rope": RotaryPositions()},
    "chunks": {"query_chunk_size": 5},
    "rematerialized": {"rematerialize": True},
    "any size": {"any_size": True},
}
WHOLE = {
    "mean": {"pooling": "gap"},
    "attention": {"pooling": "map"},
    "both": {"pooling": "token_gap"},
    "tokens": {"pooling": None},
    "merged": {"num_merged_tokens": 2},
    "windows": {"window_size": 2, "global_blocks": (0,)},
}


def built(changes):
    return tiny_vit(**changes)


def whole(model):
    """The same graph as Keras runs it."""
    return keras.Model(model.inputs[0], model.outputs[0])


def images_of(model):
    config = model.config
    return images_for(build_vit(dataclasses.replace(config, any_size=False)))


@pytest.mark.parametrize("changes", SHORTENED.values(), ids=SHORTENED)
def test_outputs_and_gradients_are_those_of_all_tokens(changes):
    model = built(changes)
    (block, count) = next(iter(pooled_tokens(model).items()))
    assert (block.name, count) == ("block_1", model.config.num_class_tokens)
    images = images_of(model)

    def run(model):
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(images, training=True))[0]
            loss = tf.reduce_sum(outputs * tf.range(10.0))
        return outputs, tape.gradient(loss, [v.value for v in model.trainable_variables])

    (outputs, gradients), (expected, all_gradients) = run(model), run(whole(model))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5)
    for gradient, other in zip(gradients, all_gradients, strict=True):
        scale = max(1e-3, np.abs(other).max())
        np.testing.assert_allclose(gradient / scale, other / scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize("changes", WHOLE.values(), ids=WHOLE)
def test_blocks_whose_tokens_are_all_read_compute_all(changes):
    assert pooled_tokens(built(changes)) == {}


def test_tokens_that_are_an_output_are_all_computed():
    model = built({})
    for names in (["block_1"], ["encoder_norm", "head"]):
        features = keras_vit.features_of(model, names)
        assert pooled_tokens(features) == {}
        images = images_for(model)
        np.testing.assert_array_equal(
            features(images)[names[0]],
            keras.Model(model.inputs[0], model.get_layer(names[0]).output)(images),
        )
    assert list(pooled_tokens(keras_vit.features_of(model, "pooling")).values()) == [1]


def test_the_rest_of_the_last_block_is_not_computed(monkeypatch):
    model, shapes = built({}), []
    call = MLP.call

    def remember(self, tokens, training=None):
        shapes.append(tuple(tokens.shape))
        return call(self, tokens, training=training)

    monkeypatch.setattr(MLP, "call", remember)
    outer = keras_vit.Model(model.inputs[0], keras.layers.Dense(3)(model(model.inputs[0])))
    outer(images_for(model))
    assert shapes == [(4, 17, 32), (4, 1, 32)]


def test_a_norm_over_tokens_and_a_pooling_from_the_end_read_all():
    tokens = keras.Input((5, 16))
    for axis, index, expected in ((-1, 0, [1]), (-1, -1, []), ([1, 2], 0, [])):
        x = LayerNormalization(axis=axis)(TransformerBlock(4, 32)(tokens))
        model = keras_vit.Model(tokens, TokenPooling(index)(x))
        assert list(pooled_tokens(model).values()) == expected


def test_a_class_of_the_users_own_may_read_other_tokens():
    class LastToken(TokenPooling):
        def call(self, tokens):
            return tokens[:, -1]

    class OtherBlock(TransformerBlock):
        pass

    tokens = keras.Input((5, 16))
    for block, pooling, count in (
        (TransformerBlock, TokenPooling, 1),
        (TransformerBlock, LastToken, 0),
        (OtherBlock, TokenPooling, 0),
    ):
        model = keras_vit.Model(tokens, pooling()(block(4, 32)(tokens)))
        assert len(pooled_tokens(model)) == count


def test_a_block_that_cannot_leave_tokens_out_says_so():
    with pytest.raises(ValueError, match="num_queries"):
        TransformerBlock(4, 32)(np.zeros((1, 5, 16), "float32"), num_queries=-1)
    block = TransformerBlock(4, 32, attention=WindowAttention(4, (1, 4), 2, 1))
    with pytest.raises(ValueError, match=r"computes all tokens. Received: num_queries=1"):
        block(np.zeros((1, 5, 16), "float32"), num_queries=1)
