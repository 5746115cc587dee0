"""The model's numbers against the official code and against the paper in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.models.vit import build_vit
from tests import official, reference
from tests.fixtures import fill_random, tiny_config

ATOL = 1e-5

STAGES = {
    "embedding": "patch_encoder",
    "positions": "position_embedding",
    "block_0": "block_0",
    "block_1": "block_1",
    "encoder_norm": "encoder_norm",
    "logits": "head",
}
CASES = {
    "vit_token": {},
    "vit_pre_logits": {"pre_logits": 32},
    "vit_gap": {"pooling": "gap", "class_token": False},
}


def golden_model(name, **changes):
    weights, outputs = official.load_golden(name)
    image_size = outputs["images"].shape[1:3]
    config = tiny_config(
        patch_size=8, image_size=image_size, include_preprocessing=False, **CASES[name], **changes
    )
    model = build_vit(config)
    official.assign(model, official.to_keras(weights))
    return model, outputs


def run_stages(model, images):
    outputs = {stage: model.get_layer(layer).output for stage, layer in STAGES.items()}
    values = keras.Model(model.input, outputs)(images)
    return {stage: keras.ops.convert_to_numpy(value) for stage, value in values.items()}


@pytest.mark.parametrize("name", CASES)
def test_every_stage_agrees_with_the_official_code(name):
    model, outputs = golden_model(name)
    stages = run_stages(model, outputs["images"])
    for stage, value in stages.items():
        expected = outputs[stage].reshape(value.shape)  # the official embedding is a grid
        np.testing.assert_allclose(value, expected, rtol=0, atol=ATOL, err_msg=stage)


@pytest.mark.parametrize("change", [{"gelu": "exact"}, {"norm_epsilon": 1e-5}])
def test_another_gelu_or_epsilon_would_be_noticed(change):
    model, outputs = golden_model("vit_token", **change)
    error = np.abs(run_stages(model, outputs["images"])["logits"] - outputs["logits"]).max()
    assert error > 2 * ATOL


@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_every_stage_agrees_with_the_paper_in_numpy(form):
    model = build_vit(tiny_config(gelu=form, include_preprocessing=False))
    fill_random(model)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:]))
    expected = reference.vit(official.from_keras(model), images, 8, 4, form)
    stages = run_stages(model, images.astype("float32"))
    for stage, value in stages.items():
        np.testing.assert_allclose(value, expected[stage], rtol=0, atol=ATOL, err_msg=stage)
    other = reference.vit(
        official.from_keras(model), images, 8, 4, "exact" if form == "tanh" else "tanh"
    )
    assert np.abs(stages["logits"] - other["logits"]).max() > 2 * ATOL
