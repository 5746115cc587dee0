"""The JAX backend without TensorFlow: layouts on eight virtual devices, against one device."""

from __future__ import annotations

import importlib.util
import os
import types

import numpy as np
import pytest

from keras_vit.distribution.mesh_layouts import vit_layout_map
from tests.distribution.mesh_layouts_process import predict
from tests.fixtures import tiny_config
from tests.workers import python

# Hides TensorFlow, as if it were not installed.
HIDE_TENSORFLOW = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name=name)

sys.meta_path.insert(0, Hide())
"""
# Shapes of what a device of a (2, 4) mesh holds; the momentum is that of the first.
SPLIT = {
    "block_0/attention/qkv/kernel": (32, 24),
    "block_0/attention/qkv/bias": (24,),
    "block_0/attention/output/kernel": (8, 32),
    "block_0/attention/output/bias": (32,),
    "block_0/mlp/hidden/kernel": (32, 16),
    "block_0/mlp/hidden/bias": (16,),
    "block_0/mlp/output/kernel": (16, 32),
    "head/kernel": (32, 10),
    "momentum": (32, 24),
}
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="the JAX backend is not installed"
)


@pytest.fixture(scope="module", params=[(2, 4), (8,)], ids=str)
def compared(request, tmp_path_factory):
    """A shape, and results of training on one device and in the shape."""
    return request.param, train(tmp_path_factory, [None, request.param])


def train(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("layouts") / "results.npz"
    # Compiled without optimisation, which takes most of the time and changes no result by more than
    # rounding.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    variables = {"KERAS_BACKEND": "jax", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
    code = f"from tests.distribution.mesh_layouts_process import main; main(sys.argv[1], *{shapes})"
    python("-c", HIDE_TENSORFLOW + code, path, **variables)
    return dict(np.load(path))


@needs_jax
@pytest.mark.slow
def test_every_layout_trains_as_one_device_does(compared):
    shape, results = compared
    for kind, tolerance in (("losses", 2e-6), ("accuracies", 0)):
        single, split = results[f"None/{kind}"], results[f"{shape}/{kind}"]
        np.testing.assert_allclose(split, single, rtol=tolerance, atol=0)
    assert results["None/losses"][1] < results["None/losses"][0]
    weights = [key for key in results if key.startswith("None/weights/")]
    assert len(weights) > 25
    for key in weights:
        split = results[key.replace("None", str(shape))]
        np.testing.assert_allclose(split, results[key], rtol=0, atol=2e-6, err_msg=key)
    shapes = {path: tuple(results[f"{shape}/shards/{path}"]) for path in SPLIT}
    # Data parallelism splits none.
    whole = {path: tuple(results[f"None/shards/{path}"]) for path in SPLIT}
    assert shapes == (whole if shape == (8,) else SPLIT)


@needs_jax
def test_jax_predicts_without_tensorflow(tmp_path_factory):
    results = train(tmp_path_factory, [])
    assert results["predict"].shape == (3, 10)
    np.testing.assert_allclose(results["predict"], predict(), rtol=0, atol=1e-5)


def fake_mesh(shape, names=("batch", "model")):
    """A mesh without devices, which only says its shape."""
    return types.SimpleNamespace(shape=shape, axis_names=list(names))


def test_what_cannot_be_split_is_an_error():
    with pytest.raises(ValueError, match=r"no axis 'model'\. Received: axes .'batch', 'heads'"):
        vit_layout_map(tiny_config(), fake_mesh((2, 4), ("batch", "heads")))
    with pytest.raises(ValueError, match=r"num_heads=4\. Give the axis 4 devices"):
        vit_layout_map(tiny_config(), fake_mesh((1, 8)))
    with pytest.raises(ValueError, match=r"`mlp_dim` cannot be split evenly over 4 .*mlp_dim=66"):
        vit_layout_map(tiny_config(mlp_dim=66), fake_mesh((2, 4)))
