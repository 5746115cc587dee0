"""benchmarks/dense.py: masks and boxes of the composed images agree, for training and test."""

from __future__ import annotations

import json
import types

import keras
import numpy as np
import pytest

from tests.fixtures import tiny_config


@pytest.fixture
def dense(load):
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    return load("dense")


@pytest.mark.parametrize("test", [False, True])
def test_boxes_are_those_of_the_masks(dense, test):
    images, maps, boxes, labels = dense.compose(4, 0, test)
    assert images.shape == (*maps.shape, 3) and images.dtype == "uint8"
    for class_map, own, digits in zip(maps, boxes, labels, strict=True):
        outside = class_map.copy()
        for (left, top, right, bottom), digit in zip(own.astype(int), digits, strict=True):
            window = class_map[top:bottom, left:right]
            edges = window[0], window[-1], window[:, 0], window[:, -1]
            assert set(np.unique(window)) == {0, digit + 1} and all(edge.any() for edge in edges)
            outside[top:bottom, left:right] = 0
        assert len(own) and not outside.any()


def test_the_first_step_does_not_move_the_weights(dense):
    timer = dense.TrainFor(seconds=60, rate=0.1)
    model = types.SimpleNamespace(optimizer=types.SimpleNamespace(learning_rate=1.0))
    timer.set_model(model)
    timer.on_train_begin()
    assert model.optimizer.learning_rate == 0
    timer.on_train_batch_end(0, {"loss": 2.0})
    assert 0 <= model.optimizer.learning_rate < 1e-3
    timer.on_train_batch_end(1, {"loss": 3.0})  # Keras gives the mean of the epoch: this one was 4
    timer.on_train_batch_end(0, {"loss": 6.0})  # another epoch
    assert timer.curve() == [4.0] + [None] * 9


def test_a_row_is_written_before_pictures_are_drawn(dense, monkeypatch, tmp_path):
    def convolution(classes):
        x = keras.Input((dense.SIZE, dense.SIZE, 3))
        return keras.Model(x, keras.layers.Conv2D(classes, 1)(x))

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(dense, "contestants", lambda *_: {"one": convolution})
    monkeypatch.setattr(dense, "draw", fail)
    output = tmp_path / "new/rows.jsonl"
    words = ["--seeds", "0", "--seconds", "0.01", "--images", "4", "--test-images", "2"]
    words += ["--batch-size", "2", "--output", str(output), "--pictures", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["dense.py", *words])
    with pytest.raises(OSError, match="no space"):
        dense.main()
    row = json.loads(output.read_text())
    assert {"mean_iou", "date", "cpu", "devices"} <= row.keys() and row["steps"] >= 1
    assert set(row["versions"]) == set(dense.PACKAGES)
    dense.main()  # what stands in the file is not run again
    assert json.loads(output.read_text()) == row
    words[words.index("0.01")] = "0.02"
    monkeypatch.setattr("sys.argv", ["dense.py", *words])
    with pytest.raises(OSError, match="no space"):
        dense.main()  # for another time it is


def test_the_table_has_means_and_the_picture_has_curves(load, tmp_path):
    dense = load("dense")  # without keras-hub and scikit-image
    fixed = {"task": "detection", "who": "one", "parameters": 1000, "steps": 5}
    fixed |= {"loss": [2.0, None, 1.0]}
    rows = [{**fixed, "mean_ap": x, "ap50": 0.9, "ap75": 0.25} for x in (0.4, 0.5, 0.6)]
    *_, row = dense.table(rows, "detection")
    assert row == "| one | 50.0 ± 5.8 | 90.0 ± 0.0 | 25.0 ± 0.0 | 1,000 | 5 | 3 |"
    dense.plot(rows, tmp_path / "curves.png")
    for name in ("keras_vit", "RetinaNet, ResNet"):
        picture = dense.picture_of("detection", name, 0, tmp_path)
        dense.PIL.Image.new("RGB", (30, 10)).save(picture)
    dense.sheet("detection", 0, tmp_path, tmp_path / "sheet.png")
    assert keras.utils.load_img(tmp_path / "sheet.png").size == (60, 40)
    assert keras.utils.load_img(tmp_path / "curves.png").size == (600, 432)


@pytest.mark.slow
def test_boxes_of_a_few_images_are_drawn(dense, tmp_path):
    config = tiny_config(patch_size=16, image_size=dense.SIZE, classes=None, pooling=None)
    backbone = dense.keras_vit.build_vit(config)
    model = dense.keras_vit.detection.build_detector(backbone, 10, 16, 5, num_conv_layers=1)
    images = np.zeros((3, dense.SIZE, dense.SIZE, 3), "uint8")
    dense.draw("detection", model, images, tmp_path / "a/boxes.png")
    drawn = keras.utils.load_img(tmp_path / "a/boxes.png")
    assert drawn.size == (3 * dense.SIZE, dense.SIZE)
