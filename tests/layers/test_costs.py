"""Costs that layers state themselves."""

from __future__ import annotations

import random

import keras
import pytest

from keras_vit.evaluate.counting import count_stages
from keras_vit.layers.costs import Cost, cost_of
from keras_vit.models.vit import build_vit
from keras_vit.runtime.model import Model
from tests.fixtures import tiny_config


class Gram(keras.layers.Layer):
    """A layer of a user: products of all tokens with a learned matrix."""

    def build(self, shape):
        self.matrix = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, tokens):
        return tokens @ self.matrix


class StatedGram(Gram):
    def count_costs(self, tokens_shape):
        _, T, D = tokens_shape
        return Cost(T * D * D, T * D)


def test_a_layer_of_a_user_states_its_cost_or_is_refused():
    backbone = build_vit(tiny_config(classes=None, pooling=None))
    tokens = backbone.output
    for layer in (Gram(name="gram"), StatedGram(name="gram")):
        model = Model(backbone.input, layer(tokens))
        if isinstance(layer, StatedGram):
            stage = count_stages(model)[-1]
            T, D = tokens.shape[1:]
            assert (stage.name, stage.parameters, stage.macs) == ("gram", D * D, T * D * D)
        else:
            with pytest.raises(ValueError, match=r"type Gram is not supported.*`count_costs"):
                count_stages(model)


def test_a_sum_of_costs_takes_the_larger_work():
    assert Cost(1, 2, work=3) + Cost(10, 20, work=1) == Cost(11, 22, work=3)
    assert cost_of(keras.layers.Reshape((4,)), (None, 2, 2)) == Cost()


def test_counting_a_configuration_makes_no_variables_and_draws_no_numbers(monkeypatch):
    before = keras.layers.Dropout(0.5).name
    made, initialize = [], keras.Variable._initialize
    monkeypatch.setattr(
        keras.Variable, "_initialize", lambda x, value: (made.append(x), initialize(x, value))
    )
    state = random.getstate()
    count_stages(tiny_config(width=40, num_heads=2))
    with keras.StatelessScope():  # Keras initialises here what is left of earlier ones
        pass
    assert not made and random.getstate() == state
    first, second = (
        int("0" + x.removeprefix("dropout").strip("_"))
        for x in (before, keras.layers.Dropout(0.5).name)
    )
    assert second == first + 1  # names of the user's layers are counted as before
    assert made  # the test sees variables
