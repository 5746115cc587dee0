"""Writes tests/golden/naflex.json: SigLIP 2 NaFlex of transformers, its image processor and model.

Run with the interpreter of `scripts/parity`'s environment:
`PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_naflex.py`. Weights, images and patches
follow formulas, so that the tests make them again.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import torch

from scripts.golden.eval_cases import formula_arrays
from scripts.peers.parity_theirs import transformers  # first: it makes transformers importable

from transformers.models.siglip2 import (  # isort: skip
    image_processing_pil_siglip2 as processing,
)

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "naflex.json"
CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_patches": 16,
    "patch_size": 4,
}
GRIDS = [[2, 7], [5, 3], [4, 5], [1, 20], [4, 4]]  # larger and smaller than the table of 4 x 4
LIMIT = 20
SIZES = [(480, 640), (640, 480), (224, 224), (1, 10_000), (3000, 17), (100, 333), (1080, 1920)]
IMAGE = (23, 61, 3)


def patches() -> np.ndarray:
    i = np.arange(len(GRIDS) * LIMIT * 48, dtype="int64")
    return (((3 * i**2 + 101 * i) % 509) / 254 - 1).astype("float32").reshape(-1, LIMIT, 48)


def image() -> np.ndarray:
    i = np.arange(np.prod(IMAGE), dtype="int64")
    return ((7 * i**2 + 13 * i) % 256).astype("uint8").reshape(IMAGE)


def main() -> None:
    sizes = [
        [*size, limit, *processing.get_image_size_for_max_num_patches(*size, 16, limit)]
        for size in SIZES
        for limit in (64, 256, 1024)
    ]
    processor = processing.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=LIMIT)
    batch = processor(images=[image()], return_tensors="np")
    pixels = np.rint((batch["pixel_values"][0] * 0.5 + 0.5) * 255).astype(int)
    config = transformers.Siglip2VisionConfig(**CONFIG)
    config._attn_implementation = "eager"
    model = transformers.Siglip2VisionModel(config).eval()
    state = model.state_dict()
    arrays = formula_arrays({name: value.shape for name, value in state.items()})
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    x = torch.from_numpy(patches()).requires_grad_()
    mask = torch.tensor([[int(i < h * w) for i in range(LIMIT)] for h, w in GRIDS])
    output = model(x, mask, torch.tensor(GRIDS)).pooler_output
    weights = torch.cos(torch.arange(output.numel(), dtype=x.dtype)).reshape(output.shape)
    (output * weights).sum().backward()
    golden = {
        "config": CONFIG,
        "grids": GRIDS,
        "sizes": sizes,
        "image_grid": np.asarray(batch["spatial_shapes"][0]).tolist(),
        "image_patches": pixels.tolist(),
        "shapes": {name: list(value.shape) for name, value in state.items()},
        "outputs": output.detach().numpy().round(6).tolist(),
        "gradient": x.grad.numpy()[:, ::3, ::7].round(7).tolist(),
    }
    OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(len(state), "arrays, largest output", output.abs().max().item())


if __name__ == "__main__":
    main()
