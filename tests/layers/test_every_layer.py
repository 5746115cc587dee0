"""Every public layer passes Keras's own test of layers, on every backend."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_vit.layers
from tests.layers import keras_cases
from tests.layers.keras_cases import CASES, keras_test_case, run_case

ROOT = pathlib.Path(__file__).parents[2]
# PyTorch is not in the environment of the tests: `scripts/backends` runs the same cases on it.
OTHER_BACKENDS = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]
# Keras's test trains on a generator, which is read in order, also layers without weights.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore:The model does not have any trainable:UserWarning"),
]


@pytest.mark.parametrize("name", CASES)
def test_layer_passes_the_test_of_keras(name):
    run_case(CASES[name])


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_layers_pass_on_another_backend(backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    is_quick = "XLA_FLAGS" in environment  # which `scripts/test` without --slow sets
    if is_quick and backend == "jax" and importlib.metadata.version("jax").startswith("0.10."):
        # 23 seconds in place of 36. JAX 0.12 does not know the flag, and ends.
        environment["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
    command = [sys.executable, "-m", keras_cases.__name__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr  # a process that ended before its report
    assert json.loads(done.stdout) == {"failures": {}, "backend": backend}, done.stderr


@pytest.mark.parametrize(
    "layer", [keras_vit.layers.GroupNorm(), keras_vit.layers.ResizeMaps((8, 8))]
)
def test_layers_of_maps_state_their_shape(layer):
    """Wrappers such as `TimeDistributed` ask for it."""
    maps = keras.Input((3, 4, 4, 64))
    expected = layer(keras.Input((4, 4, 64))).shape[1:]
    assert keras.layers.TimeDistributed(layer)(maps).shape == (None, 3, *expected)


def test_every_public_layer_has_a_case():
    public = {name: getattr(keras_vit.layers, name) for name in keras_vit.layers.__all__}
    layers = {name for name, kind in public.items() if issubclass(kind, keras.layers.Layer)}
    assert {case.layer for case in CASES.values()} == layers
    assert set(public) - layers == {"RelativeBias", "RelativeKeys"}


def test_a_layer_with_a_wrong_dtype_is_noticed(monkeypatch):
    def wrong(self, tokens):
        return tokens * self.gamma

    monkeypatch.setattr(keras_vit.layers.LayerScale, "call", wrong)
    with pytest.raises(AssertionError, match="expected output dtype float32, got float16"):
        run_case(next(case for case in CASES.values() if case.layer == "LayerScale"))


def test_keras_still_has_its_test_of_layers(monkeypatch):
    assert callable(keras_test_case().run_layer_test)
    monkeypatch.setattr(keras_cases, "_OWNER", "keras")
    with pytest.raises(AttributeError, match=r"run_layer_test is gone in Keras \d"):
        keras_test_case()
