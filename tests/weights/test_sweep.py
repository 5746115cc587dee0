"""Every plain-ViT name of timm and ViT-like class of transformers agrees, or is refused by name.

`scripts/sweep` writes `tests/golden/sweep.json.gz`, small models of both projects and their
outputs, and `tests/golden/sweep_outcomes.json`, what this package makes of each.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.config import field_value
from keras_vit.errors import CheckpointError
from keras_vit.families import google
from keras_vit.hub.catalog import CARDS
from keras_vit.pretrained import from_pretrained
from keras_vit.variants import find_config, find_variant
from keras_vit.weights.image_processors import timm_preprocessing
from keras_vit.weights.timm_settings import timm_pixels, timm_settings
from tests.sweep import RECORD, arrays, images, patches_of, read_record

OUTCOMES = RECORD.with_name("sweep_outcomes.json")
# Differences of ViTs are below 5e-6. The other GELU makes 1.3e-4, the least of all. Stems of deep
# ResNets round more: timm's own float32 is 2e-5 from the float64 of the record.
TOLERANCE, STEM_TOLERANCE = 2e-5, 5e-5
AGREES = "agrees"


def write_files(case, folder) -> pathlib.Path:
    """Writes the checkpoint of a case and its `config.json`, as its project publishes them."""
    safetensors.numpy.save_file(arrays(case), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(case["config"]))
    return folder


def difference(case, model) -> float:
    """Largest difference of the outputs, relative to their largest value."""
    theirs = np.array(case["outputs"])
    channels = getattr(model.config, "channels", 3)
    pixels = images(tuple(case["size"]), channels)
    if getattr(model.config, "takes_patches", False):
        side, limit = model.config.patch_size[0], model.config.max_num_patches
        pixels = dict(zip(("patches", "grid"), patches_of(pixels, side, limit), strict=True))
    ours = model(pixels)
    ours = keras.ops.convert_to_numpy(ours["logits"] if isinstance(ours, dict) else ours)
    ours = ours.mean((2, 3)) if ours.ndim == 4 else ours  # logits of a map
    if ours.shape != theirs.shape:
        return np.inf
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def outcome(case, folder) -> str:
    """Loads a case by its folder: `"agrees"`, or `"refused: "` and why."""
    options = dict(case.get("ours", {}))
    if "input_shape" in options:
        options["input_shape"] = tuple(options["input_shape"])
    path = write_files(case, folder)
    try:
        model = from_pretrained(path, include_preprocessing=False, **options)
        size = getattr(model.config, "image_size", None)
        origin = model.load_report.settings.get("image_size", (None, ""))[1]
        if size != tuple(case["size"]) and "input_size" in origin:
            # The outputs are of the size of the positions; that of the preprocessing goes first.
            shape = (*case["size"], model.input_shape[-1])
            model = from_pretrained(path, include_preprocessing=False, input_shape=shape)
    except CheckpointError as error:
        return f"refused: {reason(error)}"
    if case["outputs"] is None:
        return "loaded, and its project has no such outputs"
    distance = difference(case, model)
    tolerance = STEM_TOLERANCE if "backbone" in "".join(case["shapes"]) else TOLERANCE
    return AGREES if distance <= tolerance else f"differs by {distance:.1e}"


def reason(error: Exception) -> str:
    """What an error names, without paths and advice."""
    lines = [line.strip() for line in str(error).splitlines()]
    if len(lines) > 1:
        lines = [re.sub(r" \(pass [^()]*\)$", "", line) for line in lines[1:4]]
    text = "; ".join(lines)
    found = re.search(r"It has (.*)\. Known layouts", text)
    return (found[1] if found else text)[:240]


def config_of(case, folder, monkeypatch):
    """The configuration of the model that a case would be loaded into."""
    built = []
    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.create.build", lambda config, *_: built.append(config))
        with pytest.raises(AttributeError):  # there is no model to load into
            from_pretrained(write_files(case, folder))
    return built[0]


CASES = read_record()
EXPECTED = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
SAMPLE = (
    "timm vit_tiny_patch16_224",
    "timm vit_base_patch16_gap_224",
    "timm vit_large_patch16_siglip_512",
    "timm vit_so150m_patch16_reg4_map_256",
    "timm vit_base_patch16_clip_224",
    "timm flexivit_small to img_size=64",
    "timm vit_tiny_patch16_224 global_pool=max",
    "timm vit_tiny_patch16_224 act_layer=relu",
    "transformers DeiTForImageClassification",
    "transformers Dinov2ForImageClassification",
    "transformers SiglipForImageClassification",
    "transformers IJepaForImageClassification names in memory",
    "transformers ViTForImageClassification hidden_act=silu",
    "timm naflexvit_base_patch16_siglip",
    "timm naflexvit_so150m2_patch16_reg1_gap",
    "timm naflexvit_base_patch16_par_gap",
    "timm beitv2_base_patch16_224",
    "transformers BeitModel",
    "transformers CLIPVisionModel",
    "transformers Aimv2VisionModel",
    "transformers Siglip2ForImageClassification",
    "timm vit_tiny_patch16_224 qk_norm=True to img_size=64",
    "timm vit_tiny_patch16_224 qk_norm=True, norm_layer=rmsnorm",
    "timm vit_tiny_patch16_224 norm_layer=rmsnorm to img_size=64",
    "timm vit_tiny_patch16_224 global_pool=",
    "timm vit_tiny_patch16_224 global_pool=avg, pool_include_prefix=True to img_size=64",
    "timm vit_small_patch16_dinov3_qkvb num_reg_tokens=0 to img_size=64",
    "timm vit_small_patch16_dinov3 global_pool=map",
    "timm deit_tiny_distilled_patch16_224 reg_tokens=2",
    "timm beitv2_base_patch16_224 use_abs_pos_emb=True to img_size=64",
    "transformers CLIPForImageClassification",
    "transformers BeitForSemanticSegmentation",
    "transformers Data2VecVisionModel",
    "transformers ViTForImageClassification qkv_bias=False",
)


def test_every_case_has_an_outcome_that_is_no_difference():
    assert set(CASES) == set(EXPECTED)
    assert {text for text in EXPECTED.values() if not text.startswith("refused: ")} == {AGREES}


@pytest.mark.parametrize("title", SAMPLE)
def test_a_sample_agrees_or_is_refused_by_name(title, tmp_path):
    assert outcome(CASES[title], tmp_path) == EXPECTED[title]


@pytest.mark.slow
def test_every_name_agrees_or_is_refused_by_name(tmp_path):
    wrong = {}
    for number, (title, case) in enumerate(CASES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = outcome(case, folder)
        if found != EXPECTED[title]:
            wrong[title] = found
        shutil.rmtree(folder)
        keras.utils.clear_session(free_memory=False)  # a full garbage collection takes a second
    assert not wrong


# What the small models of the record have in common with those of their names.
_SHARED = (
    *("class_token", "distillation_token", "num_registers", "pooling", "position_embedding"),
    *("position_on_class_token", "norm", "norm_epsilon", "norm_after_pooling", "norm_after_blocks"),
    *("norm_before_blocks", "norm_patches", "swiglu", "inner_norms", "without_bias", "qk_norm"),
)


@pytest.mark.slow
def test_names_mean_what_their_files_say(tmp_path, monkeypatch):
    """`create_model` of every name of timm has the options of the model in a file."""
    names = [title for title in CASES if title.startswith("timm ") and title.count(" ") == 1]
    names = [name for name in names if EXPECTED[name] == AGREES and "test_vit" not in name]
    for name in names:
        found, named = config_of(CASES[name], tmp_path, monkeypatch), find_config(name[5:])
        for field in _SHARED:
            if field == "position_on_class_token" and not field_value(named, "class_token", True):
                continue  # it says nothing then
            assert field_value(found, field, None) == field_value(named, field, None), (name, field)
        if getattr(named, "rope", None) is not None:
            fixed = {"reference_grid": None}
            one, other = (dataclasses.replace(x.block.rope, **fixed) for x in (found, named))
            assert one == other, name
        # The paper's models, which timm has with another GELU, keep theirs.
        if find_variant(name[5:]) not in google.VARIANTS:
            assert field_value(found, "gelu", None) == field_value(named, "gelu", None), name


def test_names_of_timm_alone_tell_the_preprocessing():
    """As the `pretrained_cfg` that timm writes for a name without tag."""
    checked = 0
    for case in read_record().values():
        config = case["config"]
        name = config.get("architecture", "")
        if "pretrained_cfg" not in config or timm_settings(name) is None or "_bit" in name:
            continue
        stated = timm_preprocessing(config["pretrained_cfg"])
        ours = timm_pixels(name)
        np.testing.assert_allclose(ours.per_channel(3), stated.per_channel(3), atol=1e-4)
        assert dataclasses.replace(stated, mean=ours.mean, std=ours.std) == ours, name
        checked += 1
    assert checked > 200
    for card in CARDS.values():  # with their tags
        found = re.match(r"hf://timm/([^/@]+)", card.address)
        if found and "_bit" not in found[1]:
            ours = timm_pixels(found[1])
            stated = dataclasses.replace(card.preprocessing, mean=ours.mean, std=ours.std)
            assert stated == ours, found[1]
            checked += 1
    assert checked > 400
    assert timm_pixels("vit_base_patch16_224.dino").mean == timm_pixels("deit3_x").mean
    assert timm_pixels("vit_large_patch16_dinov3.sat493m").mean[0] == pytest.approx(0.43 * 255)


def test_a_file_in_a_folder_of_timm_has_the_pixels_of_its_name(tmp_path):
    case = read_record()["timm vit_small_patch16_dinov3"]
    for name in ("vit_small_patch16_dinov3.lvd1689m", "vit_small_patch16_dinov3"):
        folder = tmp_path / "timm" / name
        folder.mkdir(parents=True)
        (write_files(case, folder) / "config.json").unlink()
        model = from_pretrained(folder, input_shape=(48, 48, 3))
        assert model.config.preprocessing.mean == pytest.approx((123.675, 116.28, 103.53))
        assert model.load_report.settings["preprocessing"][1] == f"timm's {name}"
