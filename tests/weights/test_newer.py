"""CLIP, DINOv3 and EVA-02: what no array tells is asked for, licences are stated, files convert."""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.config import RotaryPositions, replace_fields
from keras_vit.create import create_model
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.models.vit import build_vit
from keras_vit.pretrained import from_pretrained
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import save_weights
from tests.fixtures import fill_random, images_for, tiny_config, tiny_vit
from tests.weights.test_load_torch import CASES as TORCH
from tests.weights.test_load_torch import weights
from tests.weights.test_sweep import CASES, TOLERANCE, difference, write_files

PLAIN = {"include_preprocessing": False}
QUICK = "timm vit_huge_patch14_clip_378"  # its tag is that of a model of quick GELU
DINOV3 = "timm vit_small_patch16_dinov3"


def test_a_model_trained_with_quick_gelu_under_another_name_asks(tmp_path, caplog):
    folder = write_files(CASES[QUICK], tmp_path)
    with pytest.raises(CheckpointError, match=r'trained with gelu="quick".*pass gelu=\.\.\.'):
        from_pretrained(folder, **PLAIN)
    model = from_pretrained(folder, gelu="exact", **PLAIN)  # as timm computes it
    assert difference(CASES[QUICK], model) <= TOLERANCE
    model = from_pretrained(folder, gelu="quick", **PLAIN)
    assert difference(CASES[QUICK], model) > 10 * TOLERANCE
    assert model.load_report.licence == "apple-ascl"
    assert "licence: apple-ascl" in str(model.load_report)
    assert "Licence of the weights: apple-ascl" in caplog.text


def test_an_open_licence_is_stated_and_not_logged(tmp_path, caplog):
    folder = write_files(CASES["timm eva02_tiny_patch14_224"], tmp_path)
    assert from_pretrained(folder, **PLAIN).load_report.licence == "mit"
    assert not caplog.records


@pytest.mark.parametrize(
    "title", [DINOV3, "timm eva02_base_patch14_224", "timm vit_base_patch16_clip_224"]
)
def test_a_file_that_no_name_belongs_to_asks_for_what_no_array_tells(title, tmp_path):
    folder = write_files(CASES[title], tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"newer model of timm .*pass gelu=.*rope=\.\.\."):
        from_pretrained(folder, num_heads=6, **PLAIN)


def test_a_variant_and_its_settings_take_such_a_file(tmp_path):
    folder = write_files(CASES[DINOV3], tmp_path)
    (folder / "config.json").unlink()
    model = create_model(
        "dinov3_s16",
        weights=folder,
        classes=10,
        input_shape=(48, 48, 3),
        rope=RotaryPositions("centered", 100.0, interleaved=False),
        position_embedding="none",
        gelu="exact",
        norm_epsilon=1e-5,
        pooling="gap",
        width=48,
        depth=2,
        mlp_dim=192,
        **PLAIN,
    )
    assert difference(CASES[DINOV3], model) <= TOLERANCE


def test_the_rotation_of_a_model_that_was_there_is_compared(tmp_path):
    folder = write_files(CASES[DINOV3], tmp_path)
    config = from_pretrained(folder, **PLAIN).config
    still = build_vit(replace_fields(config, rope=None))
    report = load_weights(still, folder / "model.safetensors")
    assert any(text.startswith("rope is None in the model") for text in report.differs)


def converted(model, layout, tmp_path, name="x.safetensors"):
    return safetensors.numpy.load_file(save_weights(model, tmp_path / name, layout))


def test_files_of_aimv2_in_the_names_of_transformers_are_written_back(tmp_path):
    folder = write_files(CASES["transformers Aimv2VisionModel"], tmp_path)
    model = from_pretrained(folder, **PLAIN)
    assert (
        model.config.block.norm == "rms" and model.config.block.swiglu and model.config.norm_patches
    )
    written, theirs = (
        converted(model, "transformers", tmp_path),
        safetensors.numpy.load_file(folder / "model.safetensors"),
    )
    assert written.keys() == theirs.keys()
    assert all(np.array_equal(written[name], theirs[name]) for name in theirs)
    config = json.loads((folder / "config.json").read_text())
    for key, message in (("use_head", "missing.*pooling"), ("is_native", "is_native = True")):
        (folder / "config.json").write_text(json.dumps({**config, key: True}))
        with pytest.raises(CheckpointError, match=f"(?s){message}"):
            from_pretrained(folder, **PLAIN)


def test_the_projection_of_clip_gains_and_loses_a_bias_of_zeros(tmp_path):
    folder = write_files(CASES["transformers CLIPVisionModelWithProjection"], tmp_path)
    model = from_pretrained(folder, **PLAIN)
    assert model.output_shape == (None, 512) and model.config.head_bias is None
    timm = converted(model, "timm", tmp_path)
    assert not timm["head.bias"].any() and timm["head.bias"].shape == (512,)
    clip = tiny_config(
        gelu="quick", norm_epsilon=1e-5, norm_before_blocks=True, without_bias=("patch",)
    )
    biased = build_vit(clip)
    fill_random(biased)
    with pytest.raises(ValueError, match=r"transformers_clip layout has no array for head/bias"):
        save_weights(biased, tmp_path / "y.safetensors", "transformers")
    biased.get_layer("head").bias.assign(np.zeros(10))
    arrays = converted(biased, "transformers", tmp_path)
    assert arrays["visual_projection.weight"].shape == (10, 32)
    twin = build_vit(dataclasses.replace(clip, head_bias=None))
    (tmp_path / "config.json").unlink()
    load_weights(twin, tmp_path / "x.safetensors")
    images = images_for(twin)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(twin(images)), keras.ops.convert_to_numpy(biased(images))
    )


def test_another_head_in_place_of_the_projection_has_a_bias(tmp_path):
    folder = write_files(CASES["transformers CLIPVisionModelWithProjection"], tmp_path)
    model = from_pretrained(folder, classes=3, **PLAIN)
    assert model.output_shape == (None, 3) and model.config.head_bias == 0.0
    assert model.load_report.fresh == ("head/kernel", "head/bias")


@pytest.mark.parametrize("layout", ["official", "big_vision", "transformers"])
def test_rotary_positions_are_not_written_where_nobody_turns(layout, tmp_path):
    model = build_vit(tiny_config(depth=1, rope=RotaryPositions()))
    suffix = "safetensors" if layout == "transformers" else "npz"
    with pytest.raises(ValueError, match=r'no such rotary positions.*layout="timm"'):
        save_weights(model, tmp_path / f"x.{suffix}", layout)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_after_blocks": False}, r"norm after the last block.*layout=\"timm\""),
        ({"window_size": 2}, r"have no window_size.*window_size=\(2, 2\). Save the model with"),
        ({"num_merged_tokens": 2}, r"have no num_merged_tokens.*tokens=2\. Save the model"),
        ({"pooling": "map", "class_token": False, "map_mlp_dim": 24}, "map_mlp_dim=24, mlp_dim=64"),
        ({"pooling": "map", "class_token": False, "map_heads": 2}, "map_heads=2, num_heads=4"),
    ],
)
def test_what_only_the_perception_encoder_has_is_written_as_timm_or_not_at_all(
    changes, message, tmp_path
):
    model = build_vit(tiny_config(depth=1, **changes))
    with pytest.raises(ValueError, match=message):
        save_weights(model, tmp_path / "x.npz", "big_vision")
    with pytest.raises(ValueError, match="norm_after_pooling=True, norm_after_blocks=False"):
        tiny_config(norm_after_blocks=False, norm_after_pooling=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "map", "map_heads": 2}, "transformers_siglip .*map_heads=2, num_heads=4"),
        ({"pooling": "map", "norm_after_pooling": True}, "have the last norm before the pooling"),
        ({"pooling": "gap", "norm": "rms", "swiglu": True}, "aimv2 layout have a norm after the"),
    ],
)
def test_what_siglip_and_aimv2_compute_otherwise_is_not_written_as_transformers(
    changes, message, tmp_path
):
    model = build_vit(tiny_config(depth=1, classes=None, class_token=False, **changes))
    with pytest.raises(ValueError, match=message):
        save_weights(model, tmp_path / "x.safetensors", "transformers")
    if "map_heads" in changes:  # timm's pooling has other heads with rotary positions alone
        with pytest.raises(ValueError, match=r"timm layout .*map_heads=2, num_heads=4"):
            save_weights(model, tmp_path / "x.safetensors", "timm")


def test_vit_5_is_told_by_the_rotation_of_its_registers(tmp_path):
    """In the names of `models_vit5.py` in github.com/wangf3014/ViT-5, without `config.json`."""
    arrays = weights(TORCH["timm vit5"]["shapes"])
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    config = from_pretrained(tmp_path, **PLAIN).config
    assert (config.block.rope, config.block.num_heads) == (RotaryPositions(register_base=100.0), 4)
    assert (config.block.norm, config.block.qk_norm, config.pooling) == ("rms", True, "token")
    name = "blocks.1.attn.rope_reg.freqs"
    arrays[name] = arrays[name] * np.float32(1.1)
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=rf"{name}' has other frequencies"):
        from_pretrained(tmp_path, **PLAIN)
    del arrays[name]
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=rf"missing: '{name}' \(2,\)"):
        from_pretrained(tmp_path, **PLAIN)
    arrays = {key: array for key, array in arrays.items() if "rope_reg" not in key}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"the arrays have rotary positions"):
        from_pretrained(tmp_path, num_heads=4, **PLAIN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "layer"}, r"have RMS norms.*norm='layer'"),
        ({"rope": {"register_base": 50.0}}, r"no such rotary positions.*`model.save`"),
        ({"pooling": "gap"}, r"reads pooling='token'.*Received: pooling='gap'"),
    ],
)
def test_what_is_not_vit_5_is_not_written_in_its_names(changes, message, tmp_path):
    fields = {"rope": {"register_base": 100.0}, "num_registers": 4, "norm": "rms", **changes}
    with pytest.raises(ValueError, match=message):
        save_weights(build_vit(tiny_config(depth=1, **fields)), tmp_path / "x.safetensors", "timm")


def test_the_index_in_older_files_of_beit_is_left_out(tmp_path):
    arrays = weights(TORCH["timm beit"]["shapes"])
    name = "blocks.1.attn.relative_position_index"
    arrays[name] = np.zeros((17, 17), "int64")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    model = from_pretrained(tmp_path, **PLAIN)  # which its arrays tell, without a name
    assert model.load_report.left_out == (name,)
    config = model.config
    assert (config.position_embedding, config.block.num_heads) == ("relative_bias", 4)
    assert (config.position_resize, config.image_size) == ("geometric", (32, 32))
    with pytest.raises(CheckpointMismatchError, match=r"the 52 rows .*no grid of 3 x 5"):
        load_weights(model, tmp_path / "model.safetensors", grid=(3, 5))


def test_beit_for_images_that_are_no_square_is_written_as_timm_reads_it(tmp_path):
    fields = {"position_embedding": "relative_bias", "gelu": "exact", "without_bias": ("key",)}
    model = tiny_vit(image_size=(32, 48), **fields)
    with pytest.raises(ValueError, match="exchange rows and columns"):
        save_weights(model, tmp_path / "model.safetensors", "transformers")
    save_weights(model, tmp_path / "model.safetensors", "timm")
    twin = build_vit(model.config)
    assert not load_weights(twin, tmp_path / "model.safetensors").resized
    with pytest.raises(ValueError, match="official layout has no array for block_0/attention"):
        save_weights(model, tmp_path / "model.npz", "official")


def test_two_configurations_of_a_tower_are_read_as_transformers_does(tmp_path):
    """Files of OpenAI have a second one, which overrides the first with its defaults."""
    case = CASES["transformers CLIPVisionModelWithProjection"]
    tower = case["config"]
    both = {"model_type": "clip", "vision_config": tower, "vision_config_dict": {}}
    folder = write_files({**case, "config": both}, tmp_path)
    assert difference(case, from_pretrained(folder, **PLAIN)) <= TOLERANCE
    both["vision_config_dict"] = {"hidden_act": "gelu", "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(both))
    assert from_pretrained(folder, **PLAIN).config.block.gelu == "exact"
