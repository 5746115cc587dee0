"""Loads the folders of `folders_ours.py` with transformers and timm, without options."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import torch

from scripts.peers.parity_theirs import timm, transformers  # which makes both importable

POOLED = ("Siglip", "CLIP", "MetaClip", "Beit", "Data2Vec", "Aimv2", "Bit")  # what ours return
LIMIT = 3e-5  # of the largest output, in float32


def run(folder: pathlib.Path, pixels: torch.Tensor) -> torch.Tensor:
    """Logits, or what a backbone returns."""
    config = json.loads((folder / "config.json").read_text())
    if "architecture" in config:
        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        stated = timm.data.resolve_data_config({}, model=model)
        assert stated["input_size"][1:] == tuple(pixels.shape[2:]), stated
        return model(pixels)
    transformers.AutoImageProcessor.from_pretrained(folder)
    model, info = getattr(transformers, config["architectures"][0]).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    wrong = {key: value for key, value in info.items() if value}
    missing = {key for key in wrong.pop("missing_keys", ()) if "pooler" not in key}
    assert not wrong and not missing, (wrong, missing)
    output = model.eval()(pixel_values=pixels)
    for name in ("logits", "image_embeds"):
        if hasattr(output, name):
            return getattr(output, name)
    if any(name in type(model).__name__ for name in POOLED) and output.pooler_output is not None:
        return output.pooler_output.flatten(1)
    tokens = output.last_hidden_state
    return tokens.mean(1) if "Aimv2" in type(model).__name__ else tokens[:, 0]


def main() -> None:
    torch.set_grad_enabled(False)
    failed = []
    for folder in sorted(file.parent for file in pathlib.Path(sys.argv[1]).glob("*/expected.npz")):
        expected = np.load(folder / "expected.npz")
        pixels = torch.from_numpy(expected["pixels"].transpose(0, 3, 1, 2).copy())
        try:
            outputs = run(folder, pixels).numpy()
            largest = np.abs(expected["outputs"]).max()
            difference = float(np.abs(outputs - expected["outputs"]).max() / largest)
        except Exception as error:
            difference, outputs = float("inf"), repr(error)[:300]
        print(f"{folder.name}: {difference:.1e}{'' if difference <= LIMIT else f' {outputs}'}")
        if not difference <= LIMIT:
            failed.append(folder.name)
    sys.exit(f"Differ: {'; '.join(failed)}." if failed else None)


if __name__ == "__main__":
    main()
