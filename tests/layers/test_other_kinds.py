"""Kinds of blocks that docs/architecture.md shows: attention sinks, and class attention."""

from __future__ import annotations

import pathlib
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from tests import reference
from tests.checks import check_layer
from tests.fixtures import numpy
from tests.layers.test_block import TOKENS, built

PAGE = pathlib.Path(__file__).parents[2] / "docs/architecture.md"


@pytest.fixture(scope="module")
def shown():
    """What the code of the page defines."""
    names = {"keras": keras, "ops": ops, "np": np}
    names |= {"SelfAttention": SelfAttention, "TransformerBlock": TransformerBlock}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if "class " in code:
            exec(code, names)
    return names


def test_a_sink_takes_its_share_of_every_row(shown):
    layer, w = built(shown["SinkAttention"](4, name="attention"))
    x = TOKENS.astype("float64")
    qkv = x @ w["attention/qkv/kernel"] + w["attention/qkv/bias"]
    q, k, v = (qkv[..., 16 * i : 16 * i + 16].reshape(2, 5, 4, 4) for i in range(3))
    odds = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) / 2)
    sinks = np.exp(w["attention/sinks"])[:, None, None]
    shares = odds / (odds.sum(-1, keepdims=True) + sinks)
    expected = np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(2, 5, 16)
    expected = expected @ w["attention/output/kernel"] + w["attention/output/bias"]
    np.testing.assert_allclose(numpy(layer(TOKENS)), expected, rtol=0, atol=1e-5)
    check_layer(TransformerBlock(4, 24, attention=shown["SinkAttention"](4)), (5, 16))


def test_class_attention_leaves_the_patches_as_they_are(shown):
    layer, w = built(shown["ClassBlock"](4, 24, name="block"))
    expected = reference.block(TOKENS.astype("float64"), w, "block", 4, "tanh")
    received = numpy(layer(TOKENS))
    np.testing.assert_allclose(received[:, :1], expected[:, :1], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(received[:, 1:], TOKENS[:, 1:])
    check_layer(shown["ClassBlock"](4, 24), (5, 16))
