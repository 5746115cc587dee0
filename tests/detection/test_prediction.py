"""Boxes and pixels of detectors are those of transformers; images of any size, files and errors."""

from __future__ import annotations

import json

import numpy as np
import PIL.Image
import pytest
import skimage.data

import keras_vit
from keras_vit.detection.boxes import read_boxes
from keras_vit.detection.evaluation import evaluate_boxes
from keras_vit.detection.prediction import (
    FoundBoxes,
    _pixels_of,
    decode_boxes,
    draw_boxes,
    predict_boxes,
    resized_sides,
)
from keras_vit.models.real_time import RealTimeDetector
from keras_vit.models.set_prediction import DetectionTransformer
from scripts.golden.network_formula import chosen_values
from tests.networks.cases import network_folder
from tests.official import GOLDEN

CASES = json.loads((GOLDEN / "detection.json").read_text())
PROCESSOR = {"size": {"shortest_edge": 64, "longest_edge": 112}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small YOLOS."""
    folder = network_folder("yolos", tmp_path_factory.mktemp("yolos"))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


@pytest.fixture(scope="module")
def detector(folder):
    return keras_vit.from_pretrained(folder, input_shape=(None, None, 3))


@pytest.mark.parametrize(
    ("kind", "file"), [(DetectionTransformer, "detection"), (RealTimeDetector, "group_loss")]
)
def test_boxes_of_outputs_are_theirs(kind, file):
    content = json.loads((GOLDEN / f"{file}.json").read_text())
    case = content["boxes" if file == "detection" else "found"]
    rows = zip(case["logits"], case["predicted"], case["sizes"], case["found"], strict=True)
    for logits, predicted, size, theirs in rows:
        arrays = np.array(logits, "float32"), np.array(predicted, "float32")
        found = decode_boxes(kind, *arrays, size, 0.4)
        assert found.labels.tolist() == theirs["labels"] and len(found.labels) > 5
        np.testing.assert_allclose(found.scores, theirs["scores"], rtol=1e-6)
        np.testing.assert_allclose(found.boxes, theirs["boxes"], rtol=1e-5, atol=1e-4)


def test_sides_are_theirs():
    for size, (shortest, longest), theirs in CASES["sides"]:
        stated = {"shortest_edge": shortest, "longest_edge": longest}
        assert list(resized_sides(size, {"size": stated})) == theirs, (size, stated)
        assert list(resized_sides(size, {"size": shortest, "max_size": longest})) == theirs
    assert resized_sides((40, 60), {}) == (800, 1200)
    assert resized_sides((40, 60), {"size": {"height": 32, "width": 48}}) == (32, 48)
    narrow = {"size": {"shortest_edge": 64}}
    for other in (narrow, {"size": 64, "do_resize": False}, {"size": 64, "resample": 3}):
        with pytest.raises(ValueError, match="must say shortest_edge and longest_edge, or height"):
            resized_sides((40, 60), other)


@pytest.mark.parametrize(
    "case", CASES["pixels"], ids=lambda case: f"{case['name']} {case['shape']}"
)
def test_pixels_of_photographs_are_theirs(detector, monkeypatch, case):
    monkeypatch.setitem(detector.published, "processor", {"size": case["size"]})
    pixels, _ = _pixels_of(detector, getattr(skimage.data, case["name"])(), "image")
    found = chosen_values(pixels)
    assert found == {"shape": case["shape"], "values": case["values"]}


def test_images_of_any_size_and_files_have_the_same_boxes(detector, folder, tmp_path):
    rng = np.random.default_rng(0)
    sizes = [(50, 70), (70, 50), (50, 70), (33, 99)]
    images = [rng.integers(0, 256, (*size, 3), "uint8") for size in sizes]
    found = predict_boxes(detector, images, threshold=0.0)
    assert [len(each.labels) for each in found] == [7] * 4
    for image, each in zip(images, found, strict=True):
        (alone,) = predict_boxes(detector, image[None], threshold=0.0, batch_size=1)
        np.testing.assert_allclose(each.boxes, alone.boxes, rtol=1e-4)
        centres = (each.boxes[:, :2] + each.boxes[:, 2:]) / 2
        assert (centres > 0).all() and (centres < image.shape[1::-1]).all()
    PIL.Image.fromarray(images[1]).save(tmp_path / "a.png")
    (of_file,) = predict_boxes(detector, tmp_path / "a.png", threshold=0.0)
    np.testing.assert_allclose(of_file.boxes, found[1].boxes, rtol=1e-4)
    scores = np.sort(found[0].scores)
    (fewer,) = predict_boxes(detector, images[:1], threshold=float(scores[3:5].mean()))
    np.testing.assert_allclose(np.sort(fewer.scores), scores[4:], rtol=1e-5)
    fixed = keras_vit.from_pretrained(folder, input_shape=(64, 96, 3))
    assert len(predict_boxes(fixed, images[:2], threshold=0.0)[1].labels) == 7


def test_images_and_models_that_do_not_fit_are_errors(detector, folder, tmp_path):
    PIL.Image.fromarray(np.zeros((5, 90, 3), "uint8")).save(tmp_path / "narrow.png")
    with pytest.raises(ValueError, match=r"narrow\.png of 5 x 90 pixels is too narrow.* 0 x 112"):
        predict_boxes(detector, [tmp_path / "narrow.png"])
    with pytest.raises(ValueError, match=r"Image 1 must have the shape"):
        predict_boxes(detector, [np.zeros((32, 32, 3)), np.zeros((8, 8))])
    with pytest.raises(ValueError, match=r"look like values in \[0, 1\]: multiply by 255"):
        predict_boxes(detector, [np.full((32, 32, 3), 0.5)])
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"b\.png cannot be read"):
        predict_boxes(detector, [tmp_path / "b.png"])
    with pytest.raises(ValueError, match="takes a DetectionTransformer, such as YOLOS"):
        predict_boxes(keras_vit.ViTTi16(weights=None), [])
    bare = keras_vit.from_pretrained(folder, include_preprocessing=False)
    with pytest.raises(ValueError, match="Load it with include_preprocessing=True"):
        predict_boxes(bare, [])


def test_boxes_outside_of_an_image_name_the_file(tmp_path):
    PIL.Image.fromarray(np.zeros((16, 24, 3), "uint8")).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png, box 0: .* lies partly outside the image"):
        read_boxes([tmp_path / "a.png"], [[[0, 0, 25, 8]]], [[0]], ["one"])


def test_average_precision_of_its_own_boxes_is_one(detector):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 40, 60, 3), "uint8")
    truth, labels = [], []
    for each in predict_boxes(detector, images, threshold=0.0):
        best = np.argsort(-each.scores)[:1]
        truth.append(np.clip(each.boxes[best], 0, [60, 40, 60, 40]))
        labels.append(each.labels[best])
    boxes = read_boxes(images, truth, labels, detector.class_names)
    result = evaluate_boxes(detector, boxes, batch_size=2)
    assert result.num_images == 3 and result.mean_ap > 0.5
    with pytest.raises(ValueError, match="has 1 classes, the model 5"):
        evaluate_boxes(detector, read_boxes(images[:1], [[]], [[]], ["one"]))


def test_drawn_boxes_are_on_their_edges():
    image = np.zeros((60, 80, 3), "uint8")
    found = FoundBoxes(np.array([0.9]), np.array([1]), np.array([[10.0, 20, 70, 50]]))
    drawn = draw_boxes(image, found, ["zero", "one"])
    assert drawn.shape == image.shape and not image.any()
    assert drawn[50, 40].tolist() == [0, 255, 0] and not drawn[35:45, 15:65].any()
