"""Writes tests/golden/segmentation.json: class maps of pictures, as transformers computes them.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_segmentation.py

The networks are those of tests/golden/networks.json. Of each map the file holds the number of
pixels of each class, weighted sums of its rows, and how many pixels have two classes of nearly the
same logit, which rounding may exchange.
"""

from __future__ import annotations

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers

from scripts.golden.network_formula import network_arrays
from scripts.golden.pictures import PICTURES, picture_of
from scripts.peers.parity_theirs import load_saved  # first: it makes torchvision importable

from transformers.models.beit.image_processing_pil_beit import BeitImageProcessorPil  # isort: skip
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil  # isort: skip

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
COMMON = {
    "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098,
}  # fmt: skip
CASES = {
    "dpt segmentation": (DPTImageProcessorPil, "DPTImageProcessor", {"resample": 2}, 64),
    "beit segmentation": (
        BeitImageProcessorPil,
        "BeitImageProcessor",
        {"resample": 3, "do_center_crop": False, "do_reduce_labels": True},
        96,
    ),
}


def main() -> None:
    """Makes the file."""
    networks, rows = json.loads((GOLDEN / "networks.json").read_text()), {}
    for name, (kind, title, options, side) in CASES.items():
        case = networks[name]
        network = getattr(transformers, case["config"]["architectures"][0])
        model = network(network.config_class(**case["config"]))
        arrays = network_arrays(case["shapes"])
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            state = {key: torch.tensor(array) for key, array in arrays.items()}
            model, _ = load_saved(model, folder, state)
        settings = {**COMMON, **options, "size": {"height": side, "width": side}}
        processor, pictures = kind(**settings), {}
        for picture in PICTURES:
            pixels = picture_of(picture)
            with torch.inference_mode():
                outputs = model.eval()(**processor(pixels, return_tensors="pt"))
            size = [pixels.shape[:2]]
            (found,) = processor.post_process_semantic_segmentation(outputs, size)
            found = found.numpy()
            logits = torch.nn.functional.interpolate(
                outputs.logits, size=size[0], mode="bilinear", align_corners=False
            )
            best = torch.topk(logits[0], 2, dim=0).values
            unsure = int((best[0] - best[1] < 1e-5 * logits.abs().max()).sum())
            sums = [int((found[i::7] * np.arange(1, found.shape[1] + 1)).sum()) for i in range(7)]
            counts = np.bincount(found.ravel(), minlength=5).tolist()
            pictures[picture] = {"counts": counts, "rows": sums, "unsure": 2 * unsure}
            print(name, picture, counts, unsure)
        rows[name] = {
            "processor": {**settings, "image_processor_type": title}, "pictures": pictures
        }  # fmt: skip
    (GOLDEN / "segmentation.json").write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
