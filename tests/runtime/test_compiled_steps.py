"""Steps are traced once, and mean what they mean in Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.runtime.compilers import SWITCH
from tests.checks import quick
from tests.workers import run


class Counting(keras.layers.Layer):
    """Counts how often TensorFlow traces a step of training, and Python thereby runs the layer."""

    traced = 0

    def call(self, x, training=False):
        self.traced += bool(training)
        return x


def count_traces(model_class):
    inputs = keras.Input((2,))
    layer = Counting()
    model = model_class(inputs, keras.layers.Dense(2)(layer(inputs)))
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    model.fit(np.zeros((4, 2)), np.ones((4, 2)), verbose=0)
    return layer.traced


def test_a_step_is_traced_once():
    assert count_traces(keras_vit.Model) == 1
    assert count_traces(keras.Model) == 2, "Keras creates variables before the step: remove ours."


def test_steps_of_a_users_own_get_what_keras_gives_them():
    def train_step(self, data):  # labels that fit no metric
        return {"labels": keras.ops.max(data[1]["class"])}

    members = {"train_step": train_step}
    inputs = keras.Input((2,))
    model = type("Model", (keras_vit.Model,), members)(inputs, keras.layers.Dense(2)(inputs))
    model.compile("adam", "mse", jit_compile=False)
    data = tf.data.Dataset.from_tensors((tf.zeros((4, 2)), {"class": tf.ones(4)}))
    assert model.fit(data, shuffle=False, verbose=0).history["labels"] == [1.0]


CASES = [("0", "few"), ("0", "all"), ("1", "all")]


@pytest.mark.parametrize(("onednn", "extent"), quick(CASES, ("0", "few")))
def test_what_is_chosen_for_the_user_means_what_keras_does(onednn, extent):
    """Labels outside of the classes, assertions, prints, Python, strings, open sizes."""
    variables = {"TF_ENABLE_ONEDNN_OPTS": onednn, SWITCH: "1"}
    printed = run("tests.runtime.xla_cases", "check", onednn, extent, **variables)
    assert "all mean the same" in printed
