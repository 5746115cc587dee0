"""How far bfloat16 moves logits from float32: ours beside timm under autocast.

    PYTHONPATH=. .venv-parity/bin/python scripts/peers/bfloat16_error.py FOLDER --theirs
    PYTHONPATH=. python scripts/peers/bfloat16_error.py FOLDER

The first command, in the environment of `scripts/parity`, writes random weights, images and timm's
logits; the second loads the weights and prints what docs/architecture.md states. A minute each.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np

# Title: timm's name, our variant, patch and image size, timm's other options.
_TOKEN = {"global_pool": "token", "num_classes": 1000}
MODELS = {
    "Ti/8 at 64": ("vit_tiny_patch16_224", "vit_ti16", 8, 64, {}),
    "Ti/16 at 224": ("vit_tiny_patch16_224", "vit_ti16", 16, 224, {}),
    "S/16 at 112": ("vit_small_patch16_224", "vit_s16", 16, 112, {}),
    "DINOv3-S/16 at 112": ("vit_small_patch16_dinov3_qkvb", "dinov3_s16", 16, 112, _TOKEN),
    "EVA-02-Ti/14 at 112": ("eva02_tiny_patch14_224", "eva02_ti14", 14, 112, {"num_classes": 1000}),
}


def write_theirs(folder: pathlib.Path) -> None:
    import safetensors.torch
    import torch

    from scripts.peers.parity_theirs import build, fill

    for number, (name, _, patch_size, size, more) in enumerate(MODELS.values()):
        options = {"img_size": size, "patch_size": patch_size, **more}
        model = build({"project": "timm", "model": name, "options": options})
        fill(model, seed=0)
        state = {key: value.contiguous() for key, value in model.state_dict().items()}
        safetensors.torch.save_file(state, folder / f"{number}.safetensors")
        images = np.random.default_rng(0).uniform(-1, 1, (16, size, size, 3)).astype("float32")
        x = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        with torch.inference_mode():
            exact = model(x).numpy()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                half = model(x).float().numpy()
        np.savez(folder / f"{number}.npz", images=images, exact=exact, half=half)


def compare_ours(folder: pathlib.Path) -> None:
    import keras

    import keras_vit
    from scripts.peers.parity_cases import NEWER, untold

    print("| model | timm under autocast | ours | ratio of largest | ratio of RMS |")
    print("|---|---|---|---|---|")
    for number, (title, (_, variant, patch_size, size, _)) in enumerate(MODELS.items()):
        stored = np.load(folder / f"{number}.npz")
        keras.config.set_dtype_policy("mixed_bfloat16")
        model = keras_vit.create_model(
            variant,
            weights=folder / f"{number}.safetensors",
            input_shape=(size, size, 3),
            patch_size=patch_size,
            include_preprocessing=False,
            **(untold(variant) if variant in NEWER else {}),
        )
        scale = np.abs(stored["exact"]).max()
        theirs = stored["half"] - stored["exact"]
        ours = np.asarray(model(stored["images"]), "float32") - stored["exact"]
        largest = [np.abs(x).max() for x in (theirs, ours)]
        print(
            f"| {title} | {largest[0] / scale:.2%} | {largest[1] / scale:.2%} "
            f"| {largest[1] / largest[0]:.2f} | {ours.std() / theirs.std():.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--theirs", action="store_true", help="write timm's side")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    (write_theirs if options.theirs else compare_ours)(options.folder)


if __name__ == "__main__":
    main()
