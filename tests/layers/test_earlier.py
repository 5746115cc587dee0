"""`.keras` files from before blocks took rotations and masks still open, with the same outputs."""

from __future__ import annotations

import io
import pathlib
import zipfile

import keras
import numpy as np
import pytest

from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.causal import CausalBlock
from tests.fixtures import KERAS, numpy

pytestmark = pytest.mark.skipif(KERAS < (3, 15), reason="files of Keras 3.15 are for no older one")

# Written by commit 3a7cfeb9 with Keras 3.15.1: small models of random weights, their inputs and
# outputs.
FILES = zipfile.ZipFile(pathlib.Path(__file__).parents[1] / "golden/earlier.zip")
ARRAYS = np.load(io.BytesIO(FILES.read("outputs.npz")))
NAMES = sorted({key.partition("/")[0] for key in ARRAYS})


def opened(name, folder):
    path = folder / f"{name}.keras"
    path.write_bytes(FILES.read(path.name))
    return keras.saving.load_model(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_before_opens_and_is_saved_again(name, tmp_path):
    inputs = {
        key.partition("/")[2]: ARRAYS[key]
        for key in ARRAYS
        if key.startswith(f"{name}/") and not key.endswith("/output")
    }
    inputs = inputs.get("input", inputs)
    model = opened(name, tmp_path)
    np.testing.assert_allclose(
        numpy(model(inputs)), ARRAYS[f"{name}/output"], rtol=0, atol=1e-5, err_msg=name
    )
    model.save(tmp_path / "again.keras")
    again = keras.saving.load_model(tmp_path / "again.keras")
    np.testing.assert_array_equal(numpy(again(inputs)), numpy(model(inputs)))
    assert [w.path for w in again.weights] == [w.path for w in model.weights]


def test_blocks_of_before_are_the_blocks_of_today_where_they_can_be(tmp_path):
    kinds = {
        name: type(opened(name, tmp_path).get_layer("block_0")) for name in ("plain", "pixels")
    }
    assert kinds["plain"] is TransformerBlock
    assert issubclass(kinds["pixels"], CausalBlock)  # whose tokens are drawn one by one


def test_attention_that_made_its_own_rotations_outside_of_a_block_is_refused():
    config = {**SelfAttention(2, rope={}).get_config(), "causal": False, "grid": (2, 2)}
    config |= {"positions": None, "num_prefix_tokens": 0, "num_registers": 0, "window_size": None}
    with pytest.raises(ValueError, match="Build the model with a `RotaryTable`"):
        SelfAttention.from_config(config)
