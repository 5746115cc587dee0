"""Folders to hand on: what `save_pretrained` writes is read back as it was."""

from __future__ import annotations

import copy
import dataclasses
import json
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import Preprocessing, field_names, make_config, replace_fields
from keras_vit.create import build
from keras_vit.models.resizing import resize_model
from keras_vit.pretrained import from_pretrained
from keras_vit.variants import find_config
from keras_vit.weights.save import find_layout, save_weights
from keras_vit.weights.sidecar_writing import describe
from keras_vit.weights.timm_settings import timm_settings
from tests.checks import quick
from tests.fixtures import fill_random, images_for, tiny_config
from tests.official import GOLDEN
from tests.weights.folders import BIT, FOLDERS, SIZES, THEIRS


def config_of(name):
    return BIT if name == "bit" else make_config(**{**SIZES, "classes": 10, **FOLDERS[name][1]})


def outputs_of(model, pixels):
    return np.asarray(model(pixels))


@pytest.mark.parametrize(
    "name", quick([*FOLDERS], "vit", "dinov2", "beit", "bit", "timm registers", "timm clip")
)
def test_a_folder_is_read_back_as_it_was(name, tmp_path):
    model = build(config_of(name))
    fill_random(model)
    folder = model.save_pretrained(tmp_path / "a" / "folder", FOLDERS[name][0])
    again = from_pretrained(folder)
    pixels = images_for(model)
    expected = outputs_of(model, pixels)
    np.testing.assert_allclose(
        outputs_of(again, pixels), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )
    ours, theirs = model.config.preprocessing, again.config.preprocessing
    statistics = (x.per_channel(model.config.channels) for x in (theirs, ours))
    np.testing.assert_allclose(*statistics, rtol=1e-6)
    same = dataclasses.replace(theirs, mean=ours.mean, std=ours.std, crop_ratio=ours.crop_ratio)
    assert same == ours
    assert sorted(os.listdir(tmp_path / "a")) == ["folder"]


def test_names_of_classes_are_in_the_configuration(tmp_path):
    model = build(config_of("vit"))
    names = [f"animal {i}" for i in range(10)]
    folder = model.save_pretrained(tmp_path / "x", class_names=names)
    config = json.loads((folder / "config.json").read_text())
    assert [config["id2label"][str(i)] for i in range(10)] == names
    assert config["label2id"]["animal 3"] == 3
    (folder / "config.json").write_text(json.dumps(config), "utf-8-sig")  # as Windows saves it
    loaded = from_pretrained(folder)
    assert loaded.load_report.class_names == loaded.class_names == tuple(names)
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["id2label"]["3"] == names[3]
    assert from_pretrained(folder, classes=3).load_report.class_names == ()
    assert from_pretrained(folder, classes=3).class_names is None
    assert from_pretrained(folder, include_top=False).class_names is None
    colours = keras.layers.Rescaling(1.0)(keras.Input((16, 16, 3)))
    assert from_pretrained(folder, input_tensor=colours).class_names == tuple(names)
    keras_vit.load_weights(model, folder)
    assert model.class_names == tuple(names)
    model = build(replace_fields(config_of("vit"), norm_epsilon=1e-6))
    timm = model.save_pretrained(tmp_path / "timm", layout="timm", class_names=names)
    assert list(from_pretrained(timm).load_report.class_names) == names
    model.save_pretrained(tmp_path / "numbers")  # LABEL_0, LABEL_1, ...
    assert from_pretrained(tmp_path / "numbers").load_report.class_names == ()
    with pytest.raises(ValueError, match=r"each of the 10 outputs\. Received: 1 names"):
        model.save_pretrained(tmp_path / "z", class_names=["a"])
    assert not (tmp_path / "z").exists()


def config_of_name(name):
    config = find_config(name)
    settings = timm_settings(name)
    fields = set(field_names(config)) & settings.keys()
    return replace_fields(config, **{field: settings[field] for field in fields})


def test_models_that_timm_has_by_name_alone_get_that_name():
    """DINOv3, EVA-02, Perception Encoder, AIMv2, NaFlex: the name states all but the size."""
    found = []
    names = json.loads((GOLDEN / "timm_parameters.json").read_text())
    for name in (name for name in names if not name.endswith("_bit")):
        config = config_of_name(name)
        content = describe(config, find_layout(config, "timm"), ())["config.json"]
        if "patch_size" in content["model_args"]:
            continue  # the arguments state the sizes
        same = config_of_name(content["architecture"])
        assert dataclasses.replace(same, image_size=config.image_size) == config, name
        if not config.takes_patches:
            assert content["model_args"]["img_size"] == config.image_size[0]
        found.append(config)
    assert len(found) > 60
    other = dataclasses.replace(found[-1], depth=found[-1].depth + 5)
    with pytest.raises(ValueError, match="none has these sizes and options"):
        describe(other, find_layout(other, "timm"), ())


def test_a_model_keeps_its_class_names(tmp_path):
    """In files and copies, but not with a new head; wrong ones are refused."""
    model = build(tiny_config(classes=3))
    assert model.class_names is None and "class_names" not in model.get_config()
    model.class_names = ["cat", "dog", "eel"]
    with pytest.raises(ValueError, match=r"each of the 3 outputs.*Received: the string 'cat'"):
        model.class_names = "cat"
    with pytest.raises(ValueError, match="Received: 2 names"):
        model.class_names = ["cat", "dog"]
    model.save(tmp_path / "model.keras")
    for same in (
        keras.saving.load_model(tmp_path / "model.keras"),
        copy.deepcopy(model),
        resize_model(model, 64),
    ):
        assert same.class_names == ("cat", "dog", "eel")
    assert keras_vit.adapt_model(model, 3).class_names is None
    for names in (["a", "b\nc", "d"], ["a", "", "d"]):  # no labels
        model.save_pretrained(tmp_path / names[1].strip(), class_names=names)
        assert from_pretrained(tmp_path / names[1].strip()).class_names is None


def test_resizing_of_another_library_is_kept_and_said(tmp_path, caplog):
    own = Preprocessing(exif_orientation=False)  # resized by TensorFlow
    for layout in ("transformers", "timm"):
        model = build(tiny_config(gelu="exact", preprocessing=own))
        folder = model.save_pretrained(tmp_path / layout, layout)
        assert "resizes images as tensorflow does, and " + layout in caplog.text
        assert from_pretrained(folder).config.preprocessing.library == "tensorflow"
        assert not from_pretrained(folder).config.preprocessing.exif_orientation


@pytest.mark.parametrize(
    ("changes", "layout", "match"),
    [
        ({"classifier_activation": "softmax"}, None, "classifier_activation='softmax'"),
        ({"norm_epsilon": 1e-12}, "timm", "norm_epsilon=1e-12"),
        ({"pooling": "gap", "class_token": False}, None, "have a class token"),
        ({"without_bias": ("query",)}, None, "without_bias"),
        ({"qk_norm": True}, None, "no array for"),
        ({"preprocessing": Preprocessing(interpolation="area")}, None, "interpolation='area'"),
        ({"window_size": 2}, None, "window_size"),
    ],
)
def test_what_cannot_be_said_is_refused_before_anything_is_written(
    changes, layout, match, tmp_path
):
    model = build(tiny_config(**{**THEIRS, **changes}))
    with pytest.raises(ValueError, match=match):
        model.save_pretrained(tmp_path / "x", layout)
    with pytest.raises(ValueError, match=match):
        model.save_pretrained(tmp_path / "new/folder", layout)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_other_weights_is_left_alone(tmp_path):
    model = build(config_of("vit"))
    folder = model.save_pretrained(tmp_path)
    model.save_pretrained(folder, class_names=[f"c{i}" for i in range(10)])  # its own
    (folder / "other.safetensors").write_bytes(b"")
    before = (folder / "config.json").read_text()
    with pytest.raises(ValueError, match=r"a config.json of something else .other.safetensors."):
        build(config_of("vit tanh")).save_pretrained(folder)
    assert (folder / "config.json").read_text() == before


@pytest.mark.parametrize("layout", ["timm", "transformers"])
def test_a_saved_file_is_loaded_without_options(layout, tmp_path, caplog):
    model = build(tiny_config(**THEIRS))
    fill_random(model)
    path = save_weights(model, tmp_path / "model.safetensors", layout)
    again, pixels = from_pretrained(path), images_for(model)
    np.testing.assert_allclose(
        outputs_of(again, pixels), outputs_of(model, pixels), rtol=0, atol=1e-5
    )
    other = build(tiny_config(**THEIRS, num_registers=0, classes=3))
    save_weights(other, tmp_path / "other.safetensors", layout)
    assert "without sidecar files" in caplog.text
    assert "classes" not in caplog.text and from_pretrained(path).config.classes == 10
