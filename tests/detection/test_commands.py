"""`keras-vit detect`: boxes of files as text, as JSON and drawn."""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.data.image_files import read_image
from keras_vit.detection.open_vocabulary import load_open_vocabulary
from keras_vit.detection.prediction import predict_boxes
from tests.detection.open_vocabulary import owl_folder
from tests.fixtures import tiny_config
from tests.networks.cases import network_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network_folder("yolos", tmp_path / "yolos")
    processor = {"size": {"shortest_edge": 64, "longest_edge": 112}}
    (tmp_path / "yolos/preprocessor_config.json").write_text(json.dumps(processor))
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (50, 70)), ("b.jpg", (70, 50))):
        pixels = rng.integers(0, 256, (*size, 3), "uint8")
        PIL.Image.fromarray(pixels).save(tmp_path / "images" / name)
    return tmp_path


def test_boxes_are_printed_and_drawn(folder, capsys):
    words = ["detect", "yolos", "images", "--threshold", "0.2"]
    assert main([*words, "--json", "--output", "drawn"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model = keras_vit.from_pretrained(folder / "yolos", input_shape=(None, None, 3))
    for row in rows:
        (found,) = predict_boxes(model, [row["file"]], 0.2)
        assert [box["label"] for box in row["boxes"]] == [f"kind {x}" for x in found.labels]
        np.testing.assert_allclose([x["box"] for x in row["boxes"]], found.boxes, atol=0.006)
    assert [row["file"] for row in rows] == ["images/a.png", "images/b.jpg"]
    assert all(row["boxes"] for row in rows)
    for name, size in (("a", (70, 50)), ("b", (50, 70))):
        with PIL.Image.open(folder / f"drawn/{name}_boxes.png") as drawn:
            assert drawn.size == size
    model.save(folder / "any.keras")
    assert main(["detect", "any.keras", "images/a.png", "--threshold", "0.2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("images/a.png  kind ") and "%" in text
    assert main(["detect", "any.keras", "images/a.png", "--threshold", "1"]) == 0
    assert capsys.readouterr().out == "images/a.png  no object\n"
    assert main(["detect", "yolos", "images/a.png", "--image-size", "64x96", "--json"]) == 0


def test_what_does_not_fit_is_an_error(folder, capsys):
    PIL.Image.new("RGB", (40, 40)).save(folder / "images/a.jpg")
    assert main(["detect", "yolos", "images", "--output", "drawn"]) == 2
    assert "would replace one another: images/a.jpg, images/a.png." in capsys.readouterr().err
    keras_vit.build_vit(tiny_config()).save(folder / "vit.keras")
    assert main(["detect", "vit.keras", "images/b.jpg"]) == 2
    assert "'vit.keras' is no detector of this command" in capsys.readouterr().err


def test_what_lines_of_a_file_name_is_found(folder, capsys):
    owl = load_open_vocabulary(owl_folder("owlv2", folder / "owl"))
    (folder / "names.txt").write_text("a photo of a cat\n\n dog \n")
    words = ["detect", "owl", "images/a.png", "--json", "--threshold", "0.05"]
    assert main([*words, "--classes", "names.txt"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model = owl.detector(["a photo of a cat", "dog"])
    (found,) = predict_boxes(model, [row["file"]], 0.05)
    assert [box["label"] for box in row["boxes"]] == [model.class_names[x] for x in found.labels]
    np.testing.assert_allclose([x["box"] for x in row["boxes"]], found.boxes, atol=0.006)
    assert main(words) == 2
    assert "keras-vit detect FOLDER IMAGES --classes names.txt" in capsys.readouterr().err
    assert main(["detect", "yolos", "images", "--classes", "names.txt"]) == 2
    assert "Received: a YolosForObjectDetection" in capsys.readouterr().err
    model.save(folder / "two.keras")
    assert main(["detect", "two.keras", "images/a.png", "--threshold", "1"]) == 0
    assert capsys.readouterr().out == "images/a.png  no object\n"


def box_folder(root, layout, counts=(8, 2)):
    """Images of a red or a green square, in the layout of COCO or of YOLO."""
    random = np.random.default_rng(0)
    for part, count in zip(("train", "test"), counts, strict=True):
        images = root / (f"images/{part}" if layout == "yolo" else part)
        labels = root / f"labels/{part}"
        images.mkdir(parents=True), labels.mkdir(parents=True)
        rows, boxes = [], []
        for index in range(count):
            pixels = random.integers(0, 40, (64, 64, 3)).astype("uint8")
            pixels[16:48, 8:40, index % 2] = 255
            PIL.Image.fromarray(pixels).save(images / f"{index}.png")
            rows.append({"id": index, "file_name": f"{index}.png", "height": 64, "width": 64})
            boxes.append({"image_id": index, "category_id": index % 2, "bbox": [8, 16, 32, 32]})
            (labels / f"{index}.txt").write_text(f"{index % 2} 0.375 0.5 0.5 0.5")
        kinds = [{"id": 0, "name": "red"}, {"id": 1, "name": "green"}]
        if layout == "coco":
            content = {"images": rows, "annotations": boxes, "categories": kinds}
            (images / "_annotations.coco.json").write_text(json.dumps(content))
    (root / "classes.txt").write_text("red\ngreen\n")
    return root


@pytest.mark.parametrize(
    ("model", "layout", "side"),
    [("yolos", "coco", "64"), pytest.param("rf-detr", "yolo", "56", marks=pytest.mark.slow)],
)
def test_published_detectors_are_fine_tuned_and_resumed(model, layout, side, folder, capsys):
    box_folder(folder / "data", layout)
    network_folder("rf-detr", folder / "rf-detr")
    words = ["detect", "train", model, "data", "--output", "run", "--image-size", side]
    assert main([*words, "--epochs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "epoch 1/1" in printed and "mAP" in printed and "(2 images)" in printed
    assert main([*words, "--epochs", "2"]) == 0
    printed = capsys.readouterr().out
    assert "epoch 2/2" in printed and "epoch 1/2" not in printed
    assert main(["detect", "run/detector.keras", "data", "--json", "--threshold", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 10
    assert {box["label"] for row in rows for box in row["boxes"]} <= {"red", "green"}


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
def test_classifiers_become_a_retina_net(folder, capsys, monkeypatch):
    pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    box_folder(folder / "data", "coco", (4, 2))
    keras_vit.build_vit(tiny_config(patch_size=16, image_size=64)).save(folder / "vit.keras")
    words = ["detect", "train", "vit.keras", "data", "--output", "run", "--epochs", "1"]
    assert main(words) == 0
    assert "mAP" in capsys.readouterr().out
    assert list((folder / "run/states").iterdir())
    detector = keras.saving.load_model(folder / "run/detector.keras", compile=False)
    assert type(detector).__name__ == "RetinaNetObjectDetector" and detector.num_classes == 2
    detector.prediction_decoder.confidence_threshold = 0.0  # it has learned nothing yet
    detector.save(folder / "run/detector.keras")
    words = ["images", "--json", "--threshold", "0", "--output", "drawn"]
    assert main(["detect", "run", *words]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    images = [read_image(folder / row["file"]) for row in rows]
    for row, found in zip(rows, predict_boxes(detector, images, 0.0), strict=True):
        assert [box["label"] for box in row["boxes"]] == [("red", "green")[x] for x in found.labels]
        np.testing.assert_allclose([x["box"] for x in row["boxes"]], found.boxes, atol=0.006)
    assert all(row["boxes"] for row in rows) and (folder / "drawn/b_boxes.png").exists()
    (folder / "run/classes.txt").write_text("red\n")
    assert main(["detect", "run/detector.keras", *words]) == 2
    assert "must name the 2 classes of detector.keras" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    assert main(["detect", "run", *words]) != 0
    assert "run/detector.keras needs keras-hub. Install it" in capsys.readouterr().err


def test_data_is_checked_before_the_model(folder, capsys):
    assert main(["detect", "train", "nothing", "images"]) == 2
    assert "images must have boxes in train/_annotations.coco.json" in capsys.readouterr().err
    assert main(["detect", "train", "nothing", "images", "--epochs", "0"]) == 2
    assert "`epochs` must be" in capsys.readouterr().err
    data = box_folder(folder / "data", "coco")
    path = data / "test/_annotations.coco.json"
    path.write_text(path.read_text().replace("green", "blue"))
    assert main(["detect", "train", "nothing", "data"]) == 2
    assert "Received: ('red', 'green'), ('red', 'blue')." in capsys.readouterr().err
