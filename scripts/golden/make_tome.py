"""Writes tests/golden/tome.npz: a small timm model with token merging by its authors' code.

Run with the interpreter of `scripts/parity`'s environment and a clone of
github.com/facebookresearch/ToMe (made with its commit af95e4b, torch 2.13.0, timm 1.0.31):

    PYTHONPATH=.:CLONE .venv-parity/bin/python scripts/golden/make_tome.py

The file holds the weights by timm's names, images in [-1, 1] as timm takes them, and for some
numbers of merged tokens the logits and how many patches each last token stands for.
"""

from __future__ import annotations

import pathlib

import numpy as np
import torch

import scripts.peers.parity_theirs  # noqa: F401  first: it makes timm importable

from timm.models.vision_transformer import VisionTransformer  # isort: skip
from tome.patch.timm import apply_patch  # isort: skip

OUT = pathlib.Path(__file__).parents[2] / "tests/golden/tome.npz"


def main():
    random = np.random.default_rng(0)
    model = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=16, depth=3, num_heads=2, mlp_ratio=2, num_classes=5
    )
    model.eval()
    arrays: dict = {}
    for name, parameter in model.state_dict().items():
        mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        value = random.normal(mean, 0.2, tuple(parameter.shape)).astype("float32")
        parameter.copy_(torch.from_numpy(value))
        arrays[f"weights/{name}"] = value
    arrays["images"] = random.uniform(-1, 1, (3, 32, 32, 3)).astype("float32")
    images = torch.from_numpy(arrays["images"].transpose(0, 3, 1, 2))
    apply_patch(model)
    with torch.no_grad():
        for merged in (0, 7, 20):
            model.r = merged
            arrays[f"logits/{merged}"] = model(images).numpy()
            if merged:
                sizes = model._tome_info["size"][..., 0].numpy()
                arrays[f"sizes/{merged}"] = sizes.astype("int32")
    np.savez_compressed(OUT, **arrays)
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
