"""ViTPose: preprocessing, experts, sizes, and files that are refused. Outputs: tests/networks."""

from __future__ import annotations

import numpy as np
import pytest

import keras_vit
from tests.networks.cases import CASES, check_outputs, images_of, network_folder

SIZE = (64, 48)


def test_patches_are_shifted_after_the_preprocessing(tmp_path):
    model = keras_vit.from_pretrained(network_folder("vitpose", tmp_path))
    assert model.input_shape == (None, *SIZE, 3)
    mean, std = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
    pixels = (images_of(SIZE) * std + mean).astype("float32")
    check_outputs(model.predict(pixels, verbose=0), "vitpose")


def test_images_of_any_size_give_heatmaps_of_a_quarter(tmp_path):
    model = keras_vit.from_pretrained(
        network_folder("vitpose", tmp_path), include_preprocessing=False,
        input_shape=(None, None, 3),
    )  # fmt: skip
    check_outputs(model.predict(images_of(SIZE), verbose=0), "vitpose")
    assert model.predict(images_of((96, 64)), verbose=0)["heatmaps"].shape == (2, 6, 24, 16)


def test_a_model_of_one_expert_is_a_plain_one(tmp_path):
    folder = network_folder("vitpose of experts", tmp_path)
    first, third = (
        keras_vit.from_pretrained(folder, dataset_index=i, include_preprocessing=False)
        for i in (0, 2)
    )
    assert third.published["config"]["backbone_config"]["num_experts"] == 1
    left_out = third.load_report.left_out
    assert len(left_out) == 3 * 2 * 2 and not any(".experts.2." in name for name in left_out)
    x = images_of(SIZE)
    outputs = (model.predict(x, verbose=0)["heatmaps"] for model in (first, third))
    assert np.abs(np.subtract(*outputs)).max() > 0.01
    with pytest.raises(ValueError, match="less than 3, the number of experts"):
        keras_vit.from_pretrained(folder, dataset_index=3)
    with pytest.raises(ValueError, match="less than 1, the number of experts"):
        keras_vit.from_pretrained(network_folder("vitpose", tmp_path / "b"), dataset_index=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "dinov2"}, "another backbone"),
        ({"rotary": True}, "rotary"),
        ({"out_features": ["stem"], "out_indices": None}, "block_-1"),
        ({"hidden_act": "silu"}, "silu"),
    ],
)
def test_other_backbones_are_refused(changes, message, tmp_path):
    described = {**CASES["vitpose"]["config"]["backbone_config"], **changes}
    folder = network_folder("vitpose", tmp_path, backbone_config=described)
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(folder)
