"""RF-DETR survives saving and writing, trains all groups of queries, and is read strictly."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.detection.rf_detr import build_rf_detr
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.evaluate.counting import count_stages
from keras_vit.models.real_time import RealTimeDetector
from scripts.golden.network_formula import chosen_values
from tests.fixtures import tiny_vit
from tests.networks.cases import CASES, check_outputs, images_of, network_folder

NAME = "rf-detr segmentation"
NAMES = [name for name in CASES if name.startswith("rf-detr")]


def load(folder, **options):
    return keras_vit.from_pretrained(folder, include_preprocessing=False, **options)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_for_the_loss_are_theirs(name, tmp_path):
    size = CASES[name]["size"]
    model = load(network_folder(name, tmp_path), input_shape=(*size, 3))
    outputs = model(images_of(size), training=True)
    for key, theirs in CASES[name]["training"].items():
        found = chosen_values(np.asarray(outputs[key]))
        assert found["shape"] == theirs["shape"]
        largest = np.abs(theirs["values"]).max()
        np.testing.assert_allclose(found["values"], theirs["values"], rtol=0, atol=1e-5 * largest)
    one = model.all_predictions(images_of(size), training=False)
    last = model.output["logits"].shape[1]
    count, layers = outputs["logits"].shape[1] // one["logits"].shape[1], 2
    assert count == CASES[name]["config"]["group_detr"]
    np.testing.assert_allclose(
        one["logits"][:, (layers - 1) * last : layers * last],
        model(images_of(size))["logits"], rtol=0, atol=1e-5,
    )  # fmt: skip


def test_all_groups_are_saved_and_loaded(tmp_path):
    model = load(network_folder(NAME, tmp_path), input_shape=(56, 56, 3))
    expected = model(images_of((56, 56)), training=True)  # makes the second graph
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again) is RealTimeDetector and again.class_names == model.class_names
    found = again(images_of((56, 56)), training=True)
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values)


def test_sizes_follow_the_preprocessor_or_the_positions(tmp_path):
    folder = network_folder("rf-detr", tmp_path)
    assert load(folder).input_shape == (None, 56, 56, 3)
    processor = {"size": {"height": 84, "width": 84}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    assert load(folder).input_shape == (None, 84, 84, 3)
    for size in ((70, 70), (56, 84)):
        with pytest.raises(ValueError, match=r"square images of a whole number of windows.* of 28"):
            load(folder, input_shape=(*size, 3))
    with pytest.raises(ValueError, match=r"6 queries start at .* a map of 2 x 2\. Take larger"):
        load(folder, input_shape=(28, 28, 3))


def test_half_precision_keeps_the_decoder_in_float32(tmp_path):
    folder, before = network_folder(NAME, tmp_path), keras.config.dtype_policy()
    exact = load(folder)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = load(folder)
    finally:
        keras.config.set_dtype_policy(before)
    outputs = model(images_of((56, 56)))
    assert {keras.backend.standardize_dtype(x.dtype) for x in outputs.values()} == {"float32"}
    after = model.layers[[x.name for x in model.layers].index("projector_norm") :]
    assert {layer.compute_dtype for layer in after if layer.weights} == {"float32"}
    maps, expected = (
        keras.Model(x.inputs[0], x.get_layer("projector_norm").output)(images_of((56, 56)))
        for x in (model, exact)
    )  # rounding of the map can change which proposals are the best
    np.testing.assert_allclose(maps, expected, rtol=0, atol=0.05 * np.abs(expected).max())


def test_new_classes_begin_anew_in_every_group(tmp_path):
    folder = network_folder(NAME, tmp_path)
    model = load(folder, classes=3)
    assert model.num_classes == 3 == len(model.class_names)
    heads = ["class_head", "group_0_class_head", "group_1_class_head"]
    fresh = [path.split("/")[-2] for path in model.load_report.fresh]
    assert sorted(fresh) == sorted(2 * heads)
    assert model(images_of((56, 56)), training=True)["logits"].shape == (2, 36, 3)


def test_partial_configurations_have_the_defaults_of_transformers(tmp_path):
    folder = network_folder("rf-detr", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("activation_function", "hidden_expansion", "layer_norm_eps", "num_feature_levels"):
        del config[key]
    for key in ("out_indices", "window_block_indexes", "layer_norm_eps", "patch_size"):
        del config["backbone_config"][key]
    (folder / "config.json").write_text(json.dumps(config))
    check_outputs(load(folder)(images_of((56, 56))), "rf-detr")


def test_blocks_after_the_last_map_are_read_strictly_and_written(tmp_path):
    name = "rf-detr of another size"
    folder = network_folder(name, tmp_path / "a")
    model = load(folder, input_shape=(84, 84, 3))
    model.save_pretrained(tmp_path / "b")
    before, after = (
        safetensors.numpy.load_file(path / "model.safetensors") for path in (folder, tmp_path / "b")
    )
    assert any(".layer.3." in key for key in before)  # maps end after the third block
    assert before.keys() == after.keys()
    start = "backbone.0.encoder.encoder.embeddings."
    del before[f"{start}position_embeddings"], before[f"{start}mask_token"]  # resized, and unused
    changed = {k for k, x in before.items() if (x != after[k]).any()}
    unread = (".encoder.layer.3.", ".encoder.layernorm.")  # no norm is applied to its maps
    assert changed and all(any(x in key for x in unread) for key in changed), changed
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    del arrays[min(key for key in changed if ".layer.3." in key)]
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=r"missing: 'encoder\.layer\.3\."):
        load(folder)


def test_costs_are_those_of_all_windows(tmp_path):
    model = load(network_folder(NAME, tmp_path))
    blocks = {x.name: x.macs for x in count_stages(model) if x.name.startswith("block_")}
    tokens, width = 4 * (1 + 4), 32  # of windows of 2 x 2 patches
    products = tokens * width**2 * (3 + 1 + 2 * 2)
    assert blocks["block_0"] == products + 2 * tokens * 5 * width
    assert blocks["block_2"] == products + 2 * tokens * tokens * width
    decoder = {x.name: x.macs for x in count_stages(model)}
    assert decoder["decoder_0_attention"] == 3 * 6 * width**2 + 2 * 6 * 6 * width
    assert decoder["decoder_0_sampling"] == 6 * 2 * 4 * width
    positions = 16 * width * (width + 5)
    assert decoder["proposals"] == positions + 6 * width * (5 * width + 4 + 5)


def test_files_are_read_strictly(tmp_path):
    folder = network_folder("rf-detr", tmp_path, num_feature_levels=2)
    with pytest.raises(CheckpointError, match="num_feature_levels = 2: feature maps of several"):
        load(folder)
    own = {**CASES["rf-detr"]["config"]["backbone_config"], "num_register_tokens": 4}
    folder = network_folder("rf-detr", tmp_path, backbone_config=own)
    with pytest.raises(CheckpointError, match="num_register_tokens = 4: registers"):
        load(folder)
    folder = network_folder("rf-detr", tmp_path)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    name = "transformer.decoder.layers.1.self_attn.in_proj_bias"
    del arrays[name]
    arrays["transformer.enc_output.2.bias"] = arrays["transformer.enc_output.1.bias"]
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    with pytest.raises(CheckpointMismatchError) as error:
        load(folder)
    assert f"{name} is missing" in str(error.value)
    assert "transformer.enc_output.2.bias is of no layer" in str(error.value)


def test_a_new_decoder_begins_at_its_proposals():
    backbone = tiny_vit(depth=2, classes=None, pooling=None)
    side = backbone.input_shape[1]
    model = build_rf_detr(backbone, 3, num_queries=4, num_groups=2)
    assert model.output["logits"].shape == (None, 4, 3) and model.num_classes == 3
    outputs = model(np.random.default_rng(0).uniform(0, 255, (2, side, side, 3)), training=True)
    boxes = np.array(outputs["pred_boxes"]).reshape(2, 4, 8, 4)  # three layers, and the proposals
    np.testing.assert_allclose(boxes[:, :3], boxes[:, 3:].repeat(3, axis=1), rtol=1e-6)
    np.testing.assert_allclose(boxes[..., 2:], 0.05, rtol=1e-6)
    offsets = model.get_layer("decoder_0_offsets").bias.numpy().reshape(16, 2, 2)
    assert offsets[0].tolist() == [[1, 0], [2, 0]] and len(np.unique(offsets[:, 0], axis=0)) == 16
    with pytest.raises(ValueError, match="`num_windows` must be"):
        build_rf_detr(backbone, 3, num_windows=0)
