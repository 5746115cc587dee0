"""Writes tests/golden/eomt_segments.npz and eomt_loss.json: transformers on EoMT.

What its processor makes of the queries on photographs; the loss on fixed logits and of a network in
training with masked attention, and gradients. Points of masks are random in transformers: here they
follow a formula (`points_of`), in place of `torch.rand`.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_eomt.py FOLDER

with the environment of `scripts/parity`, and the folder `skimage/data` of scikit-image. The network
is the case "eomt" of `make_networks.py` with queries that differ more. It prints the share of equal
pixels where torchvision resizes the photographs instead of Pillow.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.eomt.image_processing_pil_eomt import EomtImageProcessorPil

from scripts.golden.network_formula import (
    SCALES,
    SEGMENT_TASKS,
    chosen_values,
    images_of,
    mask_labels_of,
    mask_logits_of,
    network_arrays,
    photographs_of,
    points_of,
)
from scripts.peers.parity_theirs import load_saved, save_names

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"


def load_network() -> torch.nn.Module:
    """The small network."""
    case = json.loads((GOLDEN / "networks.json").read_text())["eomt"]
    config = transformers.EomtConfig.from_dict(case["config"])
    model = transformers.EomtForUniversalSegmentation(config)
    with tempfile.TemporaryDirectory() as folder:
        arrays = network_arrays(save_names(model, folder), case["fixed"])
        for key, factor in SCALES.items():
            arrays[key] *= factor
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        return load_saved(model, folder, state)[0].eval()


def predict(model: torch.nn.Module, kind: type, image: np.ndarray, case: dict) -> Any:
    """The result of one image."""
    size = {"shortest_edge": 64, "longest_edge": None if case["splits"] else 64}
    processor = kind(size=size, do_split_image=case["splits"], do_pad=not case["splits"])
    inputs = processor([image], return_tensors="pt")
    with torch.inference_mode():
        outputs = model(inputs["pixel_values"])
    outputs.patch_offsets = [tuple(each.tolist()) for each in inputs.get("patch_offsets") or []]
    function = getattr(processor, f"post_process_{case['task']}_segmentation")
    return function(outputs, [image.shape[:2]], size=size, **case["theirs"])[0]


def make_losses(model: torch.nn.Module) -> dict[str, Any]:
    """Losses and gradients on fixed logits, and in training."""
    masks, labels = mask_labels_of(16)
    known = labels >= 0
    targets = {
        "mask_labels": [
            torch.tensor(each[is_it]) for each, is_it in zip(masks, known, strict=True)
        ],
        "class_labels": [
            torch.tensor(each[is_it]) for each, is_it in zip(labels, known, strict=True)
        ],
    }
    logits = [torch.tensor(each, requires_grad=True) for each in mask_logits_of()]
    model.criterion.empty_weight.fill_(1.0)[-1] = model.config.no_object_weight  # as initialised
    model.criterion.num_points = model.criterion.matcher.num_points = 100
    with mock.patch.object(torch, "rand", lambda *shape, **_: torch.tensor(points_of(shape))):
        loss = model.get_loss(model.get_loss_dict(*logits, **targets, auxiliary_predictions=None))
        loss.backward()
        rows = {"logits": {"loss": loss.item(), "masks": chosen_values(logits[0].grad.numpy()),
                           "classes": chosen_values(logits[1].grad.numpy())}}  # fmt: skip
        model.train()
        model.attn_mask_probs.fill_(1.0)
        images = torch.tensor(images_of((64, 64)).transpose(0, 3, 1, 2))
        loss = model(images, **targets).loss
        loss.backward()
        gradients = {name: getattr(*GRADIENTS_OF[name](model)).grad for name in GRADIENTS_OF}
    found = {name: chosen_values(each.numpy()) for name, each in gradients.items()}
    return {**rows, "training": {"loss": loss.item(), **found}}


GRADIENTS_OF = {
    "queries": lambda model: (model.query, "weight"),
    "patches": lambda model: (model.embeddings.patch_embeddings.projection, "bias"),
    "upscale": lambda model: (model.upscale_block.block[0].conv2, "weight"),
}


def main() -> None:
    """Writes the files."""
    losses = make_losses(load_network())
    print({name: row["loss"] for name, row in losses.items()})
    (GOLDEN / "eomt_loss.json").write_text(json.dumps(losses) + "\n")
    model = load_network()
    folder = pathlib.Path(sys.argv[1])
    photographs = photographs_of(lambda name: np.array(Image.open(folder / name).convert("RGB")))
    rows: dict[str, Any] = {}
    for name, case in SEGMENT_TASKS.items():
        for photograph, image in photographs.items():
            results = [
                predict(model, kind, image, case)
                for kind in (EomtImageProcessorPil, transformers.EomtImageProcessor)
            ]
            maps = [np.asarray(x["segmentation"] if isinstance(x, dict) else x) for x in results]
            rows[f"{name}/{photograph}"] = maps[0].astype("int8")
            info = results[0]["segments_info"] if isinstance(results[0], dict) else []
            rows[f"{name}/{photograph}/segments"] = np.array(json.dumps(info))
            share = (maps[0] == maps[1]).mean()
            print(name, photograph, maps[0].shape, np.unique(maps[0]), info, f"{share:.4%}")
    np.savez_compressed(GOLDEN / "eomt_segments.npz", **rows)


if __name__ == "__main__":
    main()
