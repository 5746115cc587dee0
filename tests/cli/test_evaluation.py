"""`keras-vit evaluate` and `predict` of exported files, alone and with their model."""

from __future__ import annotations

import json
import shutil
import types

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.cli.main import main
from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.evaluate.targets import predict_targets
from keras_vit.export.formats import FORMATS
from keras_vit.models.vit import build_vit
from tests.checks import quick
from tests.fixtures import fill_random, tiny_config

COLOURS = {"blue": (20, 40, 220), "red": (210, 30, 20)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Red and blue images, tables of them, a model that tells them apart, and its files."""
    folder = tmp_path_factory.mktemp("exported")
    rng, rows = np.random.default_rng(0), []
    for name, colour in COLOURS.items():
        (folder / "im" / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.clip(colour + rng.normal(0, 60, (24, 30, 3)), 0, 255).astype("uint8")
            rows.append(f"im/{name}/{number}.png")
            Image.fromarray(pixels).save(folder / rows[-1])
    tables = {
        "one": "file,label\n" + "\n".join(f"{x},{x.split('/')[1]}" for x in rows),
        "several": "file,blue,red\n"
        + "\n".join(f"{x},{int('blue' in x)},{int(x[-5] in '012')}" for x in rows),
        "numbers": "file,redness\n" + "\n".join(f"{x},{len(x) / 7}" for x in rows),
    }
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    model = build_vit(tiny_config(image_size=16, patch_size=8, depth=1, classes=2))
    fill_random(model, 0.1)
    model.class_names = tuple(COLOURS)
    images = keras_vit.data.read_folder(folder / "im")
    [(x, y)] = keras_vit.data.eval_batches(images, model, 12)
    head = model.get_layer("head")
    features = np.asarray(keras.Model(model.inputs, head.input)(x))
    wanted = 4 * np.asarray(y) - 1.5 + rng.normal(0, 0.3, (12, 2))
    wanted[0] = wanted[0][::-1]  # one mistake
    kernel, *_ = np.linalg.lstsq(features, wanted, rcond=None)
    head.set_weights([kernel, np.zeros(2)])
    model.save(folder / "m.keras")
    files = {}
    for name, format in FORMATS.items():
        try:
            format.export(model, folder / format.file, verbose=False)
        except ImportError:  # of an optional package
            continue
        files[name] = format.file
    accuracy = predict_set(model, images).accuracy
    return types.SimpleNamespace(folder=folder, model=model, files=files, accuracy=accuracy)


@pytest.fixture(autouse=True)
def inside(place, monkeypatch):
    monkeypatch.chdir(place.folder)


def printed(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", quick([*FORMATS], "onnx"))
def test_an_exported_file_has_the_accuracy_of_its_model(name, place, capsys):
    if name not in place.files:
        pytest.skip(f"no package for {name}")
    file, expected = place.files[name], {"accuracy": place.accuracy, "images": 12}
    assert expected["accuracy"] == 11 / 12
    assert json.loads(printed(capsys, "evaluate", file, "im", "--json")) == expected
    line = printed(capsys, "evaluate", "--data", "one.csv", "--model", file)
    assert line == "91.67% of 12 images\n"


def test_several_files_are_one_table_and_one_page(place, capsys):
    files = ["m.keras", *place.files.values()]
    words = ["evaluate", *files, "im", "--output", "page.html"]
    lines = printed(capsys, *words).splitlines()
    assert lines[0].split()[:4] == ["model", "accuracy", "images", "agreement"]
    for file, line in zip(files, lines[1:], strict=True):
        assert line.split()[:4] == [file, "91.67%", "12", "100.00%"]
    page = (place.folder / "page.html").read_text()
    assert all(f"<td>{file}</td>" in page for file in files) and "91.67%" in page
    rows = [json.loads(line) for line in printed(capsys, *words, "--json").splitlines()]
    assert [row["model"] for row in rows] == files
    assert rows[1]["bytes"] > 1000 and all(row["images a second"] > 0 for row in rows)


def test_a_file_predicts_what_its_model_predicts(place, capsys):
    image = "im/red/3.png"
    expected = printed(capsys, "predict", "m.keras", image)
    for file in place.files.values():
        assert printed(capsys, "predict", file, image) == expected


def test_other_classes_than_those_of_the_file_are_refused(place, capsys):
    path = place.folder / "others.onnx"
    keras_vit.export_onnx(place.model, path, labels=["cat", "red"], verbose=False)
    assert "cat" in refused(capsys, "evaluate", path, "one.csv")
    assert "blue" in refused(capsys, "evaluate", path, "im")
    keras_vit.export_onnx(place.model, place.folder / "turned.onnx", labels=["red", "blue"])
    line = printed(capsys, "evaluate", place.folder / "turned.onnx", "im")
    assert line == "8.33% of 12 images\n"  # the labels of the file decide


def test_several_labels_and_numbers_are_read_as_the_export_says(place, capsys):
    images = keras_vit.data.read_csv("several.csv", task="multi_label")
    expected = predict_targets(place.model, images).metrics()
    keras_vit.export_onnx(place.model, "labels.onnx", activation="sigmoid")
    answer = json.loads(printed(capsys, "evaluate", "labels.onnx", "several.csv", "--json"))
    assert answer == pytest.approx({**expected, "images": 12}, rel=1e-5)
    assert printed(capsys, "evaluate", "labels.onnx", "im") == "91.67% of 12 images\n"

    model = build_vit(tiny_config(image_size=16, patch_size=8, depth=1, classes=1))
    fill_random(model, 0.3)
    images = keras_vit.data.read_csv("numbers.csv", task="regression")
    expected = predict_targets(model, images).metrics()
    keras_vit.export_onnx(model, "numbers.onnx", activation="linear", labels=["redness"])
    answer = json.loads(printed(capsys, "evaluate", "numbers.onnx", "numbers.csv", "--json"))
    assert answer == pytest.approx({**expected, "images": 12}, rel=1e-4)
    assert "redness" in refused(capsys, "evaluate", "numbers.onnx", "im")
    assert "redness" in refused(capsys, "evaluate", "numbers.onnx", "one.csv")


def test_outputs_of_probabilities_are_not_activated_again(place, capsys):
    keras_vit.export_onnx(place.model, "scores.onnx", outputs=["probabilities"])
    expected = printed(capsys, "predict", "m.keras", "im/red/3.png")
    assert printed(capsys, "predict", "scores.onnx", "im/red/3.png") == expected


@pytest.mark.parametrize("content", [None, b"{}", b"no JSON", b'{"input_shape": [8, 8, 3]}'])
def test_a_file_without_a_card_is_refused(content, place, capsys):
    shutil.copytree(place.files["saved_model"], "copy", dirs_exist_ok=True)
    card = place.folder / "copy/1/assets.extra/model_card.json"
    card.unlink() if content is None else card.write_bytes(content)
    error = refused(capsys, "evaluate", "copy", "im")
    assert "copy" in error and ("no model card" if content is None else "damaged") in error


@pytest.mark.parametrize("kind", ["onnx", "litert"])
def test_a_damaged_file_is_named(kind, place, capsys):
    file = place.folder / place.files[kind]
    (place.folder / f"cut_{file.name}").write_bytes(file.read_bytes()[:5000])
    assert f"cut_{file.name}" in refused(capsys, "evaluate", f"cut_{file.name}", "im")


def test_folders_called_by_numbers_are_no_classes_of_a_file_with_names(place, capsys):
    for number, name in enumerate(COLOURS):
        shutil.copytree(f"im/{name}", f"numbered/{number}")
    assert "no classes: 0, 1. The classes are blue, red; --labels" in refused(
        capsys, "evaluate", place.files["onnx"], "numbered"
    )


def test_what_needs_the_model_refuses_a_file(place, capsys):
    error = refused(capsys, "export", "model.onnx", "--to", "litert")
    assert "model.onnx is an exported file, which `keras-vit evaluate` and `predict` run" in error
    error = refused(capsys, "evaluate", "model.onnx", "im", "--image-size", "32")
    assert "takes images of 16 x 16 pixels. Leave --image-size out" in error
    keras_vit.export_onnx(place.model, "features.onnx", outputs=["features"], labels=None)
    assert "features" in refused(capsys, "evaluate", "features.onnx", "im")
