"""Writes tests/golden/group_loss.json: losses of RF-DETR of transformers, and their gradients.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_group_loss.py

with the environment of `scripts/parity`: transformers 5.24.0 and torch 2.13. Points of masks are
random in transformers: here they follow a formula (`points_of`), in place of `torch.rand`.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from scripts.peers.parity_theirs import load_saved, save_names  # makes transformers importable

import transformers  # isort: skip
from transformers import RfDetrConfig, RfDetrImageProcessor  # isort: skip
from transformers.loss.loss_lw_detr import LwDetrForObjectDetectionLoss  # isort: skip
from transformers.loss.loss_rf_detr import RfDetrForSegmentationLoss  # isort: skip

from scripts.golden.network_formula import (
    chosen_values,
    group_masks_of,
    images_of,
    network_arrays,
    points_of,
)

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
OUT = GOLDEN / "group_loss.json"
IMAGE, CLASSES, QUERIES, GROUPS, SETS = (64, 96), 5, 6, 3, 3  # sets: two layers, and proposals
OTHER = {
    "class_cost": 1, "bbox_cost": 3, "giou_cost": 1, "class_loss_coefficient": 3,
    "bbox_loss_coefficient": 2, "giou_loss_coefficient": 4, "focal_alpha": 0.4,
}  # fmt: skip
FEW = {"auxiliary_loss": False}
MASKS = {"mask_class_loss_coefficient": 2.0, "mask_dice_loss_coefficient": 3.0}
TRAINED = (  # ends of names of parameters
    "patch_embeddings.projection.bias", "query_feat.weight", "class_embed.bias",
    "sampling_offsets.bias", "reference_point_embed.weight", "segmentation_bias",
)  # fmt: skip
# Boxes of the images of a batch, fields of the configuration, and whether there are masks.
CASES: dict[str, tuple[list[int], dict[str, Any], bool]] = {
    "plain": ([3, 0, 5], {}, False),
    "other weights": ([2, 4], OTHER, False),
    "the last layer and proposals": ([2, 1], FEW, False),
    "more boxes than predictions": ([9, 1], {}, False),
    "no boxes": ([0, 0], {}, False),
    "masks": ([3, 1], {}, True),
    "masks, other weights": ([2, 4], {**MASKS, "mask_point_sample_ratio": 3}, True),
    "masks, the last layer": ([2, 1], FEW, True),
}


def make_case(counts: list[int], fields: dict[str, Any], has_masks: bool, seed: int) -> dict:
    """Inputs, the loss and its gradients; boxes are left, top, right and bottom in pixels."""
    random = np.random.default_rng(seed)
    shape = (SETS, len(counts), GROUPS * QUERIES)
    arrays = {
        "logits": random.normal(-1, 2, (*shape, CLASSES)).round(3),
        "pred_boxes": random.uniform(0.05, 0.9, (*shape, 4)).round(4),
    }
    predicted, masks = group_masks_of(shape, max(counts))
    if has_masks:
        arrays["pred_masks"] = predicted
    tensors = {
        name: torch.tensor(x.astype("float32"), requires_grad=True) for name, x in arrays.items()
    }
    boxes, labels, targets = make_targets(random, counts, masks)
    names = {n: str(n) for n in range(CLASSES)}
    config = RfDetrConfig(
        id2label=names, decoder_layers=SETS - 1, group_detr=GROUPS, num_queries=QUERIES, **fields
    )
    function = RfDetrForSegmentationLoss if has_masks else LwDetrForObjectDetectionLoss
    last = [tensors[name][-2] for name in arrays]
    layers = [tensors[name][:-1] for name in arrays]
    proposals = [tensors[name][-1] for name in arrays]
    predictions = (*last[1:], config, *layers, *proposals)
    with mock.patch.object(torch, "rand", lambda *shape, **_: torch.tensor(points_of(shape))):
        loss = function(last[0], targets, "cpu", *predictions)[0]
    loss.backward()
    gradients = {name: chosen_values(x.grad.numpy()) for name, x in tensors.items()}
    inputs = {name: arrays[name].tolist() for name in ("logits", "pred_boxes")}
    return {**inputs, "boxes": boxes, "labels": labels, "config": fields, "has_masks": has_masks,
            "loss": loss.item(), "gradients": gradients}  # fmt: skip


def make_targets(random: np.random.Generator, counts: list[int], masks: np.ndarray) -> Any:
    """Boxes in pixels and labels of images, and both as transformers takes them."""
    boxes, labels, targets = [], [], []
    sides = np.array([*IMAGE[::-1]] * 2, "float32")
    for index, count in enumerate(counts):
        first = random.uniform(0, 0.6, (count, 2)) * sides[:2]
        last = first + random.uniform(0.1, 0.4, (count, 2)) * sides[:2]
        corners = np.hstack([first, last]).round(2).astype("float32")
        classes = random.integers(0, CLASSES, count)
        ends = corners[:, :2], corners[:, 2:]
        centred = np.hstack([(ends[0] + ends[1]) / 2, ends[1] - ends[0]])
        targets.append({"class_labels": torch.tensor(classes),
                        "boxes": torch.tensor(centred / sides),
                        "masks": torch.tensor(masks[index, :count])})  # fmt: skip
        boxes.append(corners.tolist())
        labels.append(classes.tolist())
    return boxes, labels, targets


def train(name: str, counts: list[int]) -> dict[str, Any]:
    """The loss of a small network in training, and gradients of some of its arrays."""
    case = json.loads((GOLDEN / "networks.json").read_text())[name]
    config = RfDetrConfig.from_dict(case["config"])
    model = getattr(transformers, case["config"]["architectures"][0])(config)
    with tempfile.TemporaryDirectory() as folder:
        arrays = network_arrays(save_names(model, folder), case.get("fixed"))
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        model = load_saved(model, folder, state)[0].train()
    masks = group_masks_of((1, len(counts), 1), max(counts), (14, 14))[1]
    boxes, labels, targets = make_targets(np.random.default_rng(3), counts, masks)
    images = torch.tensor(images_of(case["size"], len(counts)).transpose(0, 3, 1, 2))
    with mock.patch.object(torch, "rand", lambda *shape, **_: torch.tensor(points_of(shape))):
        loss = model(images, labels=targets).loss
    loss.backward()
    found = dict(model.named_parameters())
    ends = {end: [x for x in found if x.endswith(end)] for end in TRAINED}
    gradients = {
        end: chosen_values(found[names[-1]].grad.numpy()) for end, names in ends.items() if names
    }
    return {"boxes": boxes, "labels": labels, "loss": loss.item(), "gradients": gradients}


def make_boxes() -> dict[str, Any]:
    """Outputs, and the boxes that are made of them."""
    random = np.random.default_rng(9)
    logits = random.normal(-1, 2, (2, 20, CLASSES)).round(3).astype("float32")
    predicted = random.uniform(0, 1, (2, 20, 4)).round(4).astype("float32")
    outputs = SimpleNamespace(logits=torch.tensor(logits), pred_boxes=torch.tensor(predicted))
    sizes = [(480, 640), (333, 201)]
    found = RfDetrImageProcessor().post_process_object_detection(outputs, 0.4, sizes)
    rows = [{key: value.tolist() for key, value in row.items()} for row in found]
    return {"logits": logits.tolist(), "predicted": predicted.tolist(), "sizes": sizes,
            "found": rows}  # fmt: skip


def main() -> None:
    """Makes all."""
    rows = {name: make_case(*case, seed) for seed, (name, case) in enumerate(CASES.items())}
    print({name: row["loss"] for name, row in rows.items()})
    common = {"decoder_layers": SETS - 1, "group_detr": GROUPS, "num_queries": QUERIES}
    trained = {name: train(name, [3, 1]) for name in ("rf-detr", "rf-detr segmentation")}
    print({name: row["loss"] for name, row in trained.items()})
    content = {"common": common, "image_size": IMAGE, "cases": rows, "trained": trained}
    OUT.write_text(json.dumps({**content, "found": make_boxes()}) + "\n")


if __name__ == "__main__":
    main()
