"""Evaluation of detection: the mean average precision of COCO, by pycocotools."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from typing import Any

import keras
import numpy as np

from keras_vit.checks import short_repr
from keras_vit.data.decode import decode
from keras_vit.detection.boxes import NO_BOX, BoxSet
from keras_vit.detection.prediction import predict_boxes
from keras_vit.errors import printable
from keras_vit.installation import needing


@dataclasses.dataclass(frozen=True, eq=False)
class DetectionResult:
    """Average precision of a detector, as COCO defines it: https://cocodataset.org/#detection-eval.

    Args:
        class_names: Names of the classes.
        ap: float64 array of shape `(K, 10)`: average precision in [0, 1] of every class at the
            thresholds 0.50, 0.55, ..., 0.95 of intersection over union; `nan` for classes without
            boxes.
        num_images: Number of images.
    """

    class_names: tuple[str, ...]
    ap: np.ndarray
    num_images: int

    __repr__ = short_repr

    @property
    def mean_ap(self) -> float:
        """Mean over classes and thresholds: COCO's mAP, or AP."""
        return _mean(self.ap)

    @property
    def ap50(self) -> float:
        """Mean over classes at the threshold 0.5."""
        return _mean(self.ap[:, 0])

    @property
    def ap75(self) -> float:
        """Mean over classes at the threshold 0.75."""
        return _mean(self.ap[:, 5])

    def __str__(self) -> str:
        rows = zip(self.class_names, self.ap, strict=True)
        lines = [f"{printable(name):>20}  {_mean(row):7.2%}" for name, row in rows]
        end = f"mAP {self.mean_ap:.2%}, AP50 {self.ap50:.2%}, AP75 {self.ap75:.2%}"
        return "\n".join([*lines, f"{end} ({self.num_images} images)"])


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def evaluate_boxes(model: keras.Model, boxes: BoxSet, batch_size: int = 8) -> DetectionResult:
    """Compares the boxes of a detector with those of images, in pixels of the images.

    Args:
        model: A detector of `keras_vit.detection.build_detector` or another, as for
            `predict_boxes`.
        boxes: Images with boxes.
        batch_size: Images that the model computes at a time.

    Returns:
        A `DetectionResult`. At most 100 boxes of an image count, as in COCO.

    Raises:
        ImportError: If pycocotools is not installed.
        ValueError: If the number of classes differs, or as `predict_boxes`.
    """
    boxes.check_classes(getattr(model, "num_classes", None))
    _import_coco()  # before the model computes for hours
    channels = model.inputs[0].shape[-1]
    found = []  # rows of image, left, top, width, height, score, class
    for start in range(0, boxes.num_images, batch_size):
        rows = boxes.rows[0][start : start + batch_size]
        images = [decode(boxes.load(row), channels, boxes.max_pixels).numpy() for row in rows]
        predicted = predict_boxes(model, images, threshold=0.0, batch_size=batch_size)
        for index, (scores, labels, corners) in enumerate(predicted, start):
            corners = np.clip(corners, 0, boxes.sizes[index][[1, 0, 1, 0]])
            image, sides = np.full((len(scores), 1), index), corners[:, 2:] - corners[:, :2]
            columns = [image, corners[:, :2], sides, scores[:, None], labels[:, None]]
            found.append(np.hstack(columns))
    return DetectionResult(boxes.class_names, _precision(boxes, found), boxes.num_images)


def _precision(boxes: BoxSet, found: list[np.ndarray]) -> np.ndarray:
    """Average precision by class and threshold, `(K, 10)`."""
    COCO, COCOeval = _import_coco()
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": index} for index in range(boxes.num_images)],
        "categories": [{"id": index} for index in range(boxes.num_classes)],
        "annotations": [],
    }
    # Identifiers begin with 1, because 0 would count as unmatched.
    for number, (image, row) in enumerate(np.argwhere(boxes.labels != NO_BOX).tolist(), 1):
        left, top, right, bottom = boxes.boxes[image, row].tolist()
        sides = (right - left, bottom - top)
        truth.dataset["annotations"].append(
            {
                "id": number,
                "image_id": image,
                "category_id": int(boxes.labels[image, row]),
                "bbox": [left, top, *sides],
                "area": sides[0] * sides[1],
                "iscrowd": 0,
            }
        )
    rows = np.concatenate(found)
    if not len(rows) or not truth.dataset["annotations"]:
        counts = np.bincount(boxes.labels[boxes.labels != NO_BOX], minlength=boxes.num_classes)
        return np.tile(np.where(counts > 0, 0.0, np.nan)[:, None], (1, 10))
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (10, recalls, K), all areas
    values = np.where(precision < 0, np.nan, precision)
    return values.mean(axis=1).T


def _import_coco() -> tuple[Any, Any]:
    with needing("detection", "The mAP of COCO needs pycocotools"):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    return COCO, COCOeval
