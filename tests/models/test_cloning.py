"""Copies of models with changed layers."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.models.cloning import change_config, clone
from keras_vit.models.quantized import float_config, float_values


def test_dense_layers_get_their_updates_and_others_keep_their_variables():
    """Variables without a name of their own are called otherwise in each copy."""

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="random_normal")
            self.offset = self.add_weight(shape=(shape[-1],), initializer="random_normal")

        def call(self, x):
            return x * self.factor + self.offset

    inputs = keras.Input((6,))
    dense = keras.layers.Dense(4)
    with keras.saving.custom_object_scope({"Scale": Scale}):
        model = keras.Model(inputs, dense(Scale()(inputs)))
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(np.ones((2, 4), "float32"))
        copy = clone(model, change_config(model.get_config(), float_config), float_values)
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    np.testing.assert_allclose(copy(x), model(x), rtol=0, atol=1e-6)
    assert len(copy.variables) == len(model.variables) - 2


def test_inner_configurations_are_changed_first():
    config = {"parts": [{"size": 1}, ({"size": 2},)]}
    found = []
    changed = change_config(config, lambda part: found.append(part) or {**part, "new": len(found)})
    assert changed == {"parts": [{"size": 1, "new": 1}, ({"size": 2, "new": 2},)], "new": 3}
    assert config == {"parts": [{"size": 1}, ({"size": 2},)]}
