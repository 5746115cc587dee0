"""The model's numbers against the official code and against the paper in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.config import ResNetStem
from keras_vit.models.pyramid import feature_maps
from keras_vit.models.vit import build_vit
from tests import official, reference, reference_resnet
from tests.fixtures import tiny_config, tiny_vit

ATOL = 1e-5
# Of the largest value of a stage, with a stem: the official group norm computes its variance as
# E[x^2] - E[x]^2 in float32 and so is up to 5.4e-5 from float64 where values reach 20; ours stays
# within 4e-5.
RTOL = 5e-6

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
    "hybrid_stem": {"patch_size": 4, "stem": ResNetStem()},
    "hybrid_stages": {"patch_size": 1, "stem": ResNetStem((1, 2))},
}


def golden_model(name, **changes):
    weights, outputs = official.load_golden(name)
    fields = {"image_size": outputs["images"].shape[1:3], **CASES[name], **changes}
    model = build_vit(tiny_config(include_preprocessing=False, **fields))
    official.assign(model, official.to_keras(weights))
    return model, outputs


def run_stages(model, images):
    outputs = {stage: model.get_layer(layer).output for stage, layer in STAGES.items()}
    values = keras.Model(model.input, outputs)(images)
    if model.config.stem:
        root = model.get_layer("stem_root")
        values["stem"] = root.norm(root.conv(images))
    return {stage: keras.ops.convert_to_numpy(value) for stage, value in values.items()}


def tolerance(model, expected):
    return RTOL * np.abs(expected).max() if model.config.stem else ATOL


@pytest.mark.parametrize("name", CASES)
def test_every_stage_agrees_with_the_official_code(name):
    model, outputs = golden_model(name)
    stages = run_stages(model, outputs["images"])
    assert set(stages) == set(outputs) - {"images"}
    for stage, value in stages.items():
        expected = outputs[stage].reshape(value.shape)  # the official embedding is a grid
        atol = tolerance(model, expected)
        np.testing.assert_allclose(value, expected, rtol=0, atol=atol, err_msg=stage)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vit_token", {"gelu": "exact"}),
        ("vit_token", {"norm_epsilon": 1e-5}),
        ("hybrid_stages", {"stem": ResNetStem((1, 2), norm_epsilon=1e-3)}),
        ("hybrid_stages", {"stem": ResNetStem((1, 2), standardization=None)}),
    ],
)
def test_another_gelu_epsilon_or_plain_kernels_would_be_noticed(name, change):
    model, outputs = golden_model(name, **change)
    error = np.abs(run_stages(model, outputs["images"])["logits"] - outputs["logits"]).max()
    assert error > 2 * tolerance(model, outputs["logits"])


@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_every_stage_agrees_with_the_paper_in_numpy(form):
    model = tiny_vit(gelu=form, include_preprocessing=False)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:]))
    expected = reference.vit(official.from_keras(model), images, 8, 4, form)
    stages = run_stages(model, images.astype("float32"))
    for stage, value in stages.items():
        np.testing.assert_allclose(value, expected[stage], rtol=0, atol=ATOL, err_msg=stage)
    other = reference.vit(
        official.from_keras(model), images, 8, 4, "exact" if form == "tanh" else "tanh"
    )
    assert np.abs(stages["logits"] - other["logits"]).max() > 2 * ATOL


@pytest.mark.parametrize("name", ["hybrid_stem", "hybrid_stages"])
def test_stem_agrees_with_the_paper_in_numpy(name):
    model, outputs = golden_model(name)
    arrays, images = official.from_keras(model), outputs["images"].astype("float64")
    stages = CASES[name]["stem"].stages
    root, maps = reference_resnet.stem(arrays, images, stages)
    kernel = arrays["patch_encoder/projection/kernel"]
    expected = reference_resnet.convolution(maps, kernel, kernel.shape[0], 0)
    expected = expected + arrays["patch_encoder/projection/bias"]
    ours = run_stages(model, outputs["images"])
    for value, truth in ((ours["stem"], root), (ours["embedding"], expected)):
        truth = truth.reshape(value.shape)
        np.testing.assert_allclose(value, truth, rtol=0, atol=RTOL * np.abs(truth).max())


def test_feature_maps_are_the_stages_of_the_paper_and_the_blocks_of_the_official_code():
    model, outputs = golden_model("hybrid_stages")
    maps = feature_maps(model, ["stem_stage_1", "stem_stage_2", "block_0"], norm=False)
    found = maps(outputs["images"])
    arrays, images = official.from_keras(model), outputs["images"].astype("float64")
    expected = {
        f"stem_stage_{count}": reference_resnet.stem(arrays, images, (1, 2)[:count])[1]
        for count in (1, 2)
    }
    rows, columns = expected["stem_stage_2"].shape[1:3]  # patches of one position
    expected["block_0"] = outputs["block_0"][:, 1:].reshape(len(images), rows, columns, -1)
    for name, truth in expected.items():
        np.testing.assert_allclose(
            found[name], truth, rtol=0, atol=RTOL * np.abs(truth).max(), err_msg=name
        )
