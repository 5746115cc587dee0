"""Dense networks of transformers: outputs are theirs, in every file, and strictly read."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.cli.main import main
from keras_vit.export.formats import FORMATS
from tests.networks.cases import CASES, check_outputs, images_of, network_folder


def load(name, folder):
    return load_folder(name, network_folder(name, folder))


def load_folder(name, folder, **options):
    size = (*CASES[name]["size"], 3)
    options = {**CASES[name].get("options", {}), **options}
    return keras_vit.from_pretrained(
        folder, input_shape=size, include_preprocessing=False, **options
    )


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_theirs_and_keras_files_keep_them(name, tmp_path):
    model, images = load(name, tmp_path), images_of(CASES[name]["size"])
    outputs = model.predict(images, verbose=0)
    check_outputs(outputs, name)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    found = again.predict(images, verbose=0)
    for key in outputs:
        np.testing.assert_array_equal(found[key], outputs[key])
    assert again.published == model.published


@pytest.mark.parametrize("name", CASES)
def test_a_written_folder_is_read_again(name, tmp_path):
    model, size = load(name, tmp_path / "a"), CASES[name]["size"]
    stated = CASES[name]["config"].get("backbone_config") or CASES[name]["config"]
    if size[0] != size[1] and not isinstance(stated["image_size"], list):
        with pytest.raises(ValueError, match="holds positions of square images"):
            model.save_pretrained(tmp_path / "b")
        return
    model.save_pretrained(tmp_path / "b")
    again = keras_vit.from_pretrained(
        tmp_path / "b", input_shape=(*size, 3), include_preprocessing=False
    )
    images = images_of(size)
    expected, found = (x.predict(images, verbose=0) for x in (model, again))
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])
    written = safetensors.numpy.load_file(tmp_path / "b/model.safetensors")
    arrays = safetensors.numpy.load_file(tmp_path / "a/model.safetensors")
    assert written.keys() <= arrays.keys()
    left = {key for key in arrays if key not in written and "num_batches" not in key}
    assert {key for key in left if "experts" not in key} <= {
        *model.load_report.left_out, "backbone.embeddings.mask_token"
    }  # fmt: skip


def test_what_does_not_fit_is_an_error_with_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"is_hybrid = True: a stem of ResNet stages"):
        load_folder("dpt", network_folder("dpt", tmp_path / "a", is_hybrid=True))
    with pytest.raises(ValueError, match=r"newest = 3: what this key does"):
        load_folder("dpt", network_folder("dpt", tmp_path / "b", newest=3))
    folder = network_folder("depth anything", tmp_path / "c")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays["head.more"] = arrays["head.conv3.bias"]
    arrays["head.conv1.weight"] = arrays["head.conv1.weight"][:, :3]
    del arrays["neck.convs.0.weight"]
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match="does not fit DepthAnything") as error:
        load_folder("depth anything", folder)
    for text in ("neck.convs.0.weight is missing", "head.more is of no layer", "(8, 3, 3, 3)"):
        assert text in str(error.value)
    with pytest.raises(ValueError, match=r"Received: pooling\. Leave them out\."):
        load_folder("depth anything", folder, pooling="mean")
    with pytest.raises(ValueError, match=r"has no classes\. Received: classes=3"):
        load_folder("depth anything", folder, classes=3)


WITH_CLASSES = {"dpt segmentation": 0, "beit segmentation": 0, "yolos": 1, "vitpose": 0, "eomt": 1}


@pytest.mark.parametrize("name", WITH_CLASSES)
def test_a_network_takes_new_classes(name, tmp_path):
    folder = network_folder(name, tmp_path / "a")
    model = load_folder(name, folder, classes=3)
    whole = load_folder(name, folder)
    loaded, fresh = model.load_report.loaded, model.load_report.fresh
    assert fresh and {*loaded, *fresh} == {*whole.load_report.loaded}
    outputs = model.predict(images_of(CASES[name]["size"]), verbose=0)
    key = {"vitpose": "heatmaps", "eomt": "class_queries_logits"}.get(name, "logits")
    axis = -1 if WITH_CLASSES[name] else 1
    assert outputs[key].shape[axis] == 3 + WITH_CLASSES[name] != whole.output[key].shape[axis]
    assert load_folder(name, folder, classes=len(whole.class_names)).class_names == (
        whole.class_names
    )
    model.save_pretrained(tmp_path / "b")
    again = load_folder(name, tmp_path / "b").predict(images_of(CASES[name]["size"]), verbose=0)
    np.testing.assert_array_equal(again[key], outputs[key])


def test_new_classes_do_not_hide_a_damaged_head(tmp_path):
    folder = network_folder("dpt segmentation", tmp_path)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays["head.head.4.weight"] = arrays["head.head.4.weight"][:, 1:]
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"head\.head\.4\.weight has the shape"):
        load_folder("dpt segmentation", folder, classes=3)


def test_licences_are_stated_where_the_address_tells_them(tmp_path, monkeypatch, caplog):
    folder = network_folder("depth anything", tmp_path)
    monkeypatch.setattr(
        "keras_vit.pretrained.find_weights", lambda *_: folder / "model.safetensors"
    )
    for name, licence in (
        ("depth-anything/Depth-Anything-V2-Large-hf", "CC-BY-NC-4.0"),
        ("depth-anything/Depth-Anything-V2-Small-hf", "Apache-2.0"),
        ("LiheYoung/depth-anything-base-hf", "Apache-2.0"),
        ("somebody/depth", None),
    ):
        caplog.clear()
        report = keras_vit.from_pretrained(f"hf://{name}").load_report
        assert report.licence == licence
        assert ("Licence of the weights" in caplog.text) == (licence == "CC-BY-NC-4.0")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("format", FORMATS)
def test_files_give_the_outputs_of_the_network(name, format, tmp_path):
    size = CASES[name]["size"]
    network = keras_vit.from_pretrained(
        network_folder(name, tmp_path / "network"), input_shape=(*size, 3)
    )
    images = np.clip(50 * images_of(size) + 128, 0, 255).round()
    expected = network.predict(images, verbose=0)
    for precision in ("float32", "float16"):
        path = tmp_path / precision / FORMATS[format].file
        report = FORMATS[format].export(
            network, path, images=images, precision=precision, verbose=False
        )
        found = FORMATS[format].load(report.path)(images)
        for key, values in expected.items():
            assert found[key].shape == values.shape
            limit = 1e-5 if precision == "float32" else 0.02
            assert np.abs(found[key] - values).max() <= limit * np.abs(values).max()


@pytest.mark.parametrize("command", ["inspect", "predict", "find-export"])
def test_commands_for_classes_name_a_network(command, tmp_path, capsys):
    folder, picture = network_folder("yolos", tmp_path / "a"), tmp_path / "b.png"
    keras.utils.save_img(picture, np.zeros((32, 32, 3)), scale=False)
    words = {"inspect": [], "predict": [str(picture)], "find-export": ["--images", str(picture)]}
    assert main([command, str(folder), *words[command]]) == 2
    assert "dense prediction (YolosForObjectDetection), which this" in capsys.readouterr().err
