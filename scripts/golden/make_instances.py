"""Writes tests/golden/instances.json: pixels and objects that transformers finds by RF-DETR.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_instances.py

with the environment of `scripts/parity`, after `make_networks.py`. Photographs are those of
scikit-image 0.26, by their names.
"""

from __future__ import annotations

import json
import pathlib
import tempfile

import numpy as np
import skimage.data
import torch

from scripts.golden.network_formula import chosen_values, network_arrays
from scripts.peers.parity_theirs import load_saved  # first: it makes torchvision importable

from transformers import RfDetrConfig, RfDetrForInstanceSegmentation  # isort: skip
from transformers.models.rf_detr.image_processing_rf_detr import (  # isort: skip
    RfDetrImageProcessor,
)

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
PHOTOGRAPHS = ("astronaut", "coffee", "rocket")


def main() -> None:
    case = json.loads((GOLDEN / "networks.json").read_text())["rf-detr segmentation"]
    side = case["size"][0]
    processor = RfDetrImageProcessor(size={"height": side, "width": side})
    arrays = network_arrays(case["shapes"])
    with tempfile.TemporaryDirectory() as folder:
        model = RfDetrForInstanceSegmentation(RfDetrConfig(**case["config"]))
        model.save_pretrained(folder)
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        model, info = load_saved(model, folder, state)
    assert not any(info.values()), info
    rows = []
    for name in PHOTOGRAPHS:
        image = getattr(skimage.data, name)()
        pixels = processor(image, return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            outputs = model(pixels)
        options = {"threshold": 0.6, "mask_threshold": 0.1, "target_sizes": [image.shape[:2]]}
        (found,) = processor.post_process_instance_segmentation(outputs, **options)
        segmentation = found["segmentation"].numpy()
        counts = np.bincount(segmentation.reshape(-1) + 1).tolist()
        pixels = chosen_values(pixels[0].permute(1, 2, 0).numpy())
        rows.append({"name": name, "pixels": pixels, "segments": found["segments_info"],
                     "counts": counts, "values": chosen_values(segmentation)})  # fmt: skip
        print(name, counts, found["segments_info"])
    (GOLDEN / "instances.json").write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
