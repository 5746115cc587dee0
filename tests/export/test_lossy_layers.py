"""A refused file names the layers that lose most: one with an outlier in its kernel."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import FORMATS
from keras_vit.export.lossy_layers import is_part
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, images_for, tiny_config

BAD = "block_1/mlp/hidden"
NEEDS = {("litert", "int4"): "ai_edge_quantizer", ("openvino", "int8"): "nncf"}


@pytest.fixture(scope="module")
def outlier():
    """A model with a channel that is tiny before one dense layer, and has huge weights in it."""
    model = build_vit(tiny_config(depth=2, width=32, mlp_dim=64, gelu="exact"))
    fill_random(model, stddev=0.05)
    block = model.get_layer("block_1")
    for variable in block.variables:
        if variable.path.endswith(("mlp_norm/gamma", "mlp_norm/beta")):
            variable.assign(variable * np.where(np.arange(32), 1, 1e-3))
        if variable.path.endswith("mlp/hidden/kernel"):
            variable.assign(variable * np.where(np.arange(32), 1, 1e3)[:, None])
    return model


@pytest.mark.parametrize(
    ("format", "precision"),
    [("litert", "dynamic"), ("litert", "int8"), *NEEDS, ("onnx", "int8")],
)
def test_a_refused_file_names_the_layer_with_an_outlier(format, precision, outlier, tmp_path):
    package = NEEDS.get((format, precision))
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    images = images_for(outlier, 8)
    options = {"images": images, "precision": precision, "tolerance": 1e-6}
    if precision in FORMATS[format].calibrated:
        options["calibration"] = images
    path = tmp_path / FORMATS[format].file
    named = r"\S+ \(\S+%\)"
    bits = 4 if precision == "int4" else 8
    said = rf"{bits} bits lose most in {BAD} \([4-9]\d\.\d%\), {named}, {named}\. (Take|Keep)"
    with pytest.raises(ExportMismatchError, match=said):
        FORMATS[format].export(outlier, path, **options)
    assert "call" not in vars(outlier.get_layer("block_1").mlp.hidden)
    if (format, precision) == ("litert", "int8"):  # which takes the name
        with pytest.raises(ExportMismatchError, match=r"8 bits lose most in (?!block_1/mlp/h)"):
            FORMATS[format].export(outlier, path, float_layers=[BAD], **options)


def test_a_name_in_a_file_has_numbers_that_the_layer_has_not():
    name = "exported_1/block_1_1/mlp_1/hidden_1/MatMul"
    assert is_part(BAD, name) and is_part("block_1_1/mlp_1", name) and is_part("mlp/hidden/", name)
    assert not is_part("block_11/mlp", name) and not is_part("block_0", name)
