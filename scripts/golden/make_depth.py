"""Writes tests/golden/depth.json: depth of pictures of scikit-image, as transformers computes it.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_depth.py

The network is "depth anything" of tests/golden/networks.json; images are prepared by its image
processor on Pillow, and depth is resized back to the size of each picture.
"""

from __future__ import annotations

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers

from scripts.golden.network_formula import chosen_values, network_arrays
from scripts.golden.pictures import PICTURES, picture_of
from scripts.peers.parity_theirs import load_saved  # first: it makes torchvision importable

from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil  # isort: skip

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
PROCESSOR = {
    "do_normalize": True, "do_rescale": True, "do_resize": True, "ensure_multiple_of": 14,
    "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "DPTImageProcessor",
    "image_std": [0.229, 0.224, 0.225], "keep_aspect_ratio": True, "resample": 3,
    "rescale_factor": 0.00392156862745098, "size": {"height": 84, "width": 84},
}  # fmt: skip
SIZES = ((480, 640), (641, 427), (300, 451), (37, 1000), (518, 518), (5, 9), (700, 20))


def main() -> None:
    """Makes the file."""
    case = json.loads((GOLDEN / "networks.json").read_text())["depth anything"]
    kind = transformers.DepthAnythingForDepthEstimation
    model = kind(kind.config_class(**case["config"]))
    arrays = network_arrays(case["shapes"])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        model, _ = load_saved(model, folder, state)
    processor, rows = DPTImageProcessorPil(**PROCESSOR), {}
    for name in PICTURES:
        picture = picture_of(name)
        inputs = processor(picture, return_tensors="pt")
        with torch.inference_mode():
            outputs = model.eval()(**inputs)
        (found,) = processor.post_process_depth_estimation(outputs, [picture.shape[:2]])
        depth = found["predicted_depth"].numpy()
        side = list(inputs["pixel_values"].shape[2:])
        pixels = chosen_values(inputs["pixel_values"].numpy().transpose(0, 2, 3, 1))
        rows[name] = {"size": side, "pixels": pixels, "depth": chosen_values(depth)}
        print(name, picture.shape, side)
    large = DPTImageProcessorPil(**{**PROCESSOR, "size": {"height": 518, "width": 518}})
    sizes = []
    for size in SIZES:
        array = large(np.zeros((*size, 3), "uint8"), return_tensors="np")["pixel_values"][0]
        sizes.append([size, list(np.shape(array)[1:])])
    text = json.dumps({"processor": PROCESSOR, "pictures": rows, "sizes": sizes})
    (GOLDEN / "depth.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
