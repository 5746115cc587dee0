"""Writes tests/golden/detection.json: losses, boxes and pixels of detectors of transformers.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_detection.py

with the environment of `scripts/parity`. Made with transformers 5.24.0, torch 2.13 and Pillow 13.
Photographs are those of scikit-image 0.26, by their names.
"""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import skimage.data
import torch

import scripts.peers.parity_theirs  # noqa: F401  first: it makes transformers importable

from transformers import YolosConfig  # isort: skip
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss  # isort: skip
from transformers.models.yolos.image_processing_pil_yolos import (  # isort: skip
    YolosImageProcessorPil,
    get_size_with_aspect_ratio_yolos,
)

from scripts.golden.network_formula import chosen_values

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "detection.json"
IMAGE, CLASSES, QUERIES = (64, 96), 5, 7  # height and width in pixels, classes, predictions
OTHER = {
    "class_cost": 2, "bbox_cost": 3, "giou_cost": 1, "bbox_loss_coefficient": 2,
    "giou_loss_coefficient": 4, "eos_coefficient": 0.3,
}  # fmt: skip
# Boxes of the images of a batch, and weights. 9 boxes are more than predictions.
LOSSES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "plain": ([3, 0, 5], {}),
    "other weights": ([2, 4], OTHER),
    "more boxes than predictions": ([9, 1], {}),
    "no boxes": ([0, 0], {}),
}
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")
SIZES = ({"shortest_edge": 800, "longest_edge": 1333}, {"shortest_edge": 96, "longest_edge": 128})


def make_loss(counts: list[int], weights: dict[str, Any], seed: int) -> dict[str, Any]:
    """Inputs, the loss and its gradients; boxes are left, top, right and bottom in pixels."""
    random = np.random.default_rng(seed)
    shape = (len(counts), QUERIES)
    logits = torch.tensor(random.normal(0, 2, (*shape, CLASSES + 1)).round(3).astype("float32"))
    pairs = random.uniform(0.05, 0.9, (*shape, 4)).round(4).astype("float32")
    predicted = torch.tensor(pairs)
    boxes, labels, targets = [], [], []
    sides = np.array([*IMAGE[::-1]] * 2, "float32")
    for count in counts:
        first = random.uniform(0, 0.6, (count, 2)) * sides[:2]
        last = first + random.uniform(0.1, 0.4, (count, 2)) * sides[:2]
        corners = np.hstack([first, last]).round(2).astype("float32")
        classes = random.integers(0, CLASSES, count)
        ends = corners[:, :2], corners[:, 2:]
        centred = np.hstack([(ends[0] + ends[1]) / 2, ends[1] - ends[0]])
        targets.append({"class_labels": torch.tensor(classes),
                        "boxes": torch.tensor(centred / sides)})  # fmt: skip
        boxes.append(corners.tolist())
        labels.append(classes.tolist())
    config = YolosConfig(id2label={n: str(n) for n in range(CLASSES)}, **weights)
    logits.requires_grad_(), predicted.requires_grad_()
    loss, _, _ = ForObjectDetectionLoss(logits, targets, "cpu", predicted, config)
    loss.backward()
    rows = {"logits": logits, "predicted": predicted, "logits_gradient": logits.grad,
            "predicted_gradient": predicted.grad}  # fmt: skip
    arrays = {name: value.detach().numpy().tolist() for name, value in rows.items()}
    return {**arrays, "boxes": boxes, "labels": labels, "weights": weights, "loss": loss.item()}


def make_boxes() -> dict[str, Any]:
    """Outputs, and the boxes that are made of them."""
    random = np.random.default_rng(9)
    logits = random.normal(0, 3, (2, 20, CLASSES + 1)).round(3).astype("float32")
    predicted = random.uniform(0, 1, (2, 20, 4)).round(4).astype("float32")
    outputs = SimpleNamespace(logits=torch.tensor(logits), pred_boxes=torch.tensor(predicted))
    sizes = [(480, 640), (333, 201)]
    found = YolosImageProcessorPil().post_process_object_detection(outputs, 0.4, sizes)
    rows = [{key: value.tolist() for key, value in row.items()} for row in found]
    return {"logits": logits.tolist(), "predicted": predicted.tolist(), "sizes": sizes,
            "found": rows}  # fmt: skip


def make_pixels(name: str, size: dict[str, int]) -> dict[str, Any]:
    """The resized pixels of a photograph, in [0, 255]."""
    processor = YolosImageProcessorPil(size=size, do_rescale=False, do_normalize=False)
    found = processor(getattr(skimage.data, name)(), return_tensors="np")["pixel_values"][0]
    return {"name": name, "size": size, **chosen_values(found.transpose(1, 2, 0))}


def main() -> None:
    """Makes all."""
    random = np.random.default_rng(5)
    sides = random.integers(16, 2000, (60, 2)).tolist()
    sides += [[800, 1000], [1000, 800], [800, 800], [600, 1333], [17, 2000], [512, 864], [16, 9]]
    cases = enumerate(LOSSES.items())
    rows = {
        "losses": {name: make_loss(*case, seed) for seed, (name, case) in cases},
        "boxes": make_boxes(),
        "sides": [
            [side, limits, get_size_with_aspect_ratio_yolos(side, *limits)]
            for side in sides
            for limits in ((800, 1333), (512, 864))
        ],
        "pixels": [make_pixels(name, size) for name in PHOTOGRAPHS for size in SIZES],
    }
    OUT.write_text(json.dumps({"image_size": IMAGE, **rows}) + "\n")


if __name__ == "__main__":
    main()
