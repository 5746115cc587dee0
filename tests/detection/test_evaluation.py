"""COCO's mean average precision of boxes whose overlap is known."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest

from keras_vit.detection.boxes import read_boxes
from keras_vit.detection.evaluation import evaluate_boxes

NAMES = ("a", "b", "never")


class Detector(keras.Model):
    """A detector on 32 x 64 pixels that gives the same boxes for every image."""

    bounding_box_format, num_classes = "xyxy", 3

    def decode_predictions(self, outputs, images):
        x = images.numpy()
        assert x.shape[1:] == (32, 64, 3) and outputs.shape == x.shape
        corners, labels, confidence = self.answer
        count = len(corners)
        filled = np.full((len(x), count + 1, 4), -1.0)
        filled[:, :count] = corners
        return {
            "boxes": filled,
            "labels": np.tile([*labels, -1], (len(x), 1)),
            "confidence": np.tile([*confidence, -1.0], (len(x), 1)),
            "num_detections": np.full(len(x), count),
        }


def detector(corners, labels, confidence):
    x = keras.Input((32, 64, 3))
    model = Detector(x, keras.layers.Identity()(x))
    model.answer = corners, labels, confidence
    return model


@pytest.fixture
def boxes():
    """Five images of 16 x 16 pixels, half and a quarter of the model's sides."""
    rows = [[0, 0, 8, 10], [8, 8, 16, 16]]
    return read_boxes(np.zeros((5, 16, 16, 3), "uint8"), [rows] * 5, [[0, 1]] * 5, NAMES)


def test_mean_average_precision_by_hand(boxes):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    exact = np.array([[0, 0, 32, 20], [32, 16, 64, 32]])  # in pixels of the model
    perfect = evaluate_boxes(detector(exact, [0, 1], [0.9, 0.8]), boxes, batch_size=2)
    assert perfect.mean_ap == pytest.approx(1) and np.isnan(perfect.ap[2]).all()
    assert "mAP 100.00%, AP50 100.00%, AP75 100.00% (5 images)" in str(perfect)
    # 8 x 10 and 8 x 7 pixels overlap by 0.7: right at the thresholds 0.5 to 0.65 (and 0.7, up to
    # rounding); the second class is right
    shorter = np.array([[0, 0, 32, 14.2], [32, 16, 64, 32]])
    result = evaluate_boxes(detector(shorter, [0, 1], [0.9, 0.8]), boxes)
    np.testing.assert_allclose(result.ap[0], [1] * 5 + [0] * 5, atol=1e-12)
    assert result.ap50 == pytest.approx(1) and result.ap75 == pytest.approx(0.5)
    assert result.mean_ap == pytest.approx(0.75)
    # a wrong box of more confidence before each right one: half of the boxes are right
    doubled = np.array([[40, 0, 60, 8], *exact])
    result = evaluate_boxes(detector(doubled, [0, 0, 1], [0.99, 0.9, 0.8]), boxes)
    assert result.ap50 == pytest.approx((0.5 + 1) / 2)
    nothing = evaluate_boxes(detector(exact[:0], [], []), boxes)
    assert nothing.mean_ap == 0


def test_detectors_that_do_not_fit_are_errors(boxes):
    model = detector(np.zeros((0, 4)), [], [])
    model.num_classes = 7
    with pytest.raises(ValueError, match="has 3 classes, the model 7"):
        evaluate_boxes(model, boxes)
    model.num_classes, model.bounding_box_format = 3, "yxyx"
    with pytest.raises(ValueError, match="gives boxes as 'yxyx'"):
        evaluate_boxes(model, boxes)


def test_pycocotools_is_asked_for_before_anything_is_computed(boxes, monkeypatch):
    model = detector(np.zeros((0, 4)), [], [])
    monkeypatch.setattr(Detector, "call", lambda *_, **__: pytest.fail("it was computed"))
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ImportError, match=r'pip install "keras-vision-transformer\[detection\]"'):
        evaluate_boxes(model, boxes)
