"""Features of timm's DINOv2 in a precision, in an environment with PyTorch.

    python timm_precision.py WEIGHTS PIXELS OUTPUT PRECISION

WEIGHTS is a file of `keras_vit.save_weights(..., layout="timm")` for 224 pixels, PIXELS an array of
NumPy, (N, 224, 224, 3), as the model of timm takes them. OUTPUT gets an array (N, width), the class
token after the last norm. `benchmarks/precisions.py` calls it.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from contestants.torch_models import declare_torchvision_operators
from safetensors.torch import load_file

BATCH = 8


def main(weights: str, pixels: str, output: str, precision: str) -> None:
    operators = declare_torchvision_operators()  # before timm is imported
    import timm

    kind = getattr(torch, precision)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=224, num_classes=0)
    known = {name: x for name, x in load_file(weights).items() if not name.startswith("head.")}
    model.load_state_dict(known)
    model = model.eval().to(kind)
    images = torch.from_numpy(np.load(pixels).transpose(0, 3, 1, 2).copy()).to(kind)
    with torch.inference_mode():
        features = torch.cat([model(part).float() for part in images.split(BATCH)])
    np.save(output, features.numpy())
    del operators


if __name__ == "__main__":
    main(*sys.argv[1:])
