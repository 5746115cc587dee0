"""Every public layer passes Keras's own test of layers, on every backend."""

from __future__ import annotations

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
EMITTERS = "xla_cpu_use_fusion_emitters"  # a flag that JAX 0.11 has no more
OTHER_BACKENDS = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]
# Keras's test trains on a generator, which is read in order, also layers without weights.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore:The model does not have any trainable:UserWarning"),
]


@pytest.mark.parametrize("name", CASES)
def test_layer_passes_the_test_of_keras(name):
    run_case(CASES[name])


def jax_knows(flag: str) -> bool:
    """Whether XLA in JAX has a flag: an unknown one ends the process."""
    folder = pathlib.Path(importlib.util.find_spec("jaxlib").origin).parent
    libraries = [path for path in folder.glob("*.so") if path.stat().st_size > 10**7]
    return any(flag.encode() in path.read_bytes() for path in libraries)


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_layers_pass_on_another_backend(backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    if "XLA_FLAGS" in environment and backend == "jax" and jax_knows(EMITTERS):
        # `scripts/test` without --slow: the 765 programs compile in half the time without these
        environment["XLA_FLAGS"] += f" --{EMITTERS}=false"
    command = [sys.executable, "-m", keras_cases.__name__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
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
