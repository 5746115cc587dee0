"""The MLP of a block, and the forms of GELU."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_vit.layers.mlp import MLP, gelu
from keras_vit.runtime.processors import describe_processor
from tests import reference
from tests.checks import check_layer
from tests.layers.test_block import TOKENS, built, numpy


@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_gelu_is_the_form_it_says(form):
    x = np.linspace(-6, 6, 1001)
    value = numpy(gelu(keras.ops.convert_to_tensor(x, "float32"), form))
    np.testing.assert_allclose(value, reference.gelu(x, form), rtol=0, atol=1e-6)
    other = reference.gelu(x, {"tanh": "exact", "exact": "tanh"}[form])
    assert np.abs(value - other).max() == pytest.approx(4.73e-4, rel=0.01)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_onednn_joins_product_bias_and_gelu(form, policy):
    if os.environ["TF_ENABLE_ONEDNN_OPTS"] != "1":
        pytest.skip("oneDNN is off")
    units = set(describe_processor().split())
    if policy == "mixed_bfloat16" and not units & {"avx512f", "avx_ne_convert"}:
        pytest.skip("oneDNN has no bfloat16 on this processor")
    layer, _ = built(MLP(24, gelu=form, dtype=policy, name="mlp"))
    context.enable_run_metadata()
    tf.function(layer)(TOKENS)
    graphs = context.export_run_metadata().partition_graphs
    context.disable_run_metadata()
    found = [tuple(node.attr["fused_ops"].list.s) for graph in graphs for node in graph.node]
    gelu = {"tanh": b"GeluApproximate", "exact": b"GeluExact"}[form]
    assert found.count((b"BiasAdd", gelu)) == found.count((b"BiasAdd",)) == 1


@pytest.mark.parametrize("options", [{}, {"gelu": "exact"}])
def test_mlp_passes_check_layer(options):
    check_layer(MLP(24, **options), (5, 16))
