"""Writes tests/golden/masked_autoencoder.json: transformers' ViTMAEForPreTraining.

Names and shapes of its arrays, predicted pixels, masks, losses and gradients of small networks,
whose weights, images and noise follow formulas, with pixels as they are and normalised by patch.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_masked_autoencoder.py

with the environment of `scripts/parity`.
"""

from __future__ import annotations

import json
import pathlib
import tempfile

import torch
import transformers

from scripts.golden.network_formula import chosen_values, images_of, network_arrays, noise_of
from scripts.peers.parity_theirs import load_saved, save_names

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "masked_autoencoder.json"
SIZES = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "layer_norm_eps": 1e-6,
    "decoder_hidden_size": 24, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 3,
    "decoder_intermediate_size": 48,
}  # fmt: skip
# Names of variables whose gradients are kept; 8 of 16 patches are hidden in one of the cases.
GRADIENTS = (
    "vit.embeddings.cls_token", "vit.embeddings.patch_embeddings.projection.weight",
    "vit.encoder.layer.0.attention.attention.query.weight", "decoder.mask_token",
    "decoder.decoder_layers.1.output.dense.weight", "decoder.decoder_pred.bias",
)  # fmt: skip
CASES = {
    "pixels": {"norm_pix_loss": False, "mask_ratio": 0.75},
    "normalized": {"norm_pix_loss": True, "mask_ratio": 0.5, "qkv_bias": False},
}


def make(changes: dict) -> dict:
    """What one network gives."""
    config = transformers.ViTMAEConfig(**SIZES, **changes)
    model = transformers.ViTMAEForPreTraining(config)
    with tempfile.TemporaryDirectory() as folder:
        shapes = save_names(model, folder)
        stated = json.loads((pathlib.Path(folder) / "config.json").read_text())
        state = {key: torch.tensor(x) for key, x in network_arrays(shapes).items()}
        loaded, info = load_saved(model, folder, state)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (
        info
    )
    images = torch.tensor(images_of((32, 32)).transpose(0, 3, 1, 2))
    outputs = loaded(images, noise=torch.tensor(noise_of(2, 16)))
    outputs.loss.backward()
    variables = {key: each for key, each in loaded.named_parameters() if each.grad is not None}
    found = {key: variables[_in_memory(key, variables)].grad for key in GRADIENTS}
    return {
        "config": stated,
        "shapes": shapes,
        "loss": outputs.loss.item(),
        "patches": chosen_values(outputs.logits.detach().numpy()),
        "mask": outputs.mask.int().tolist(),
        "gradients": {key: chosen_values(each.numpy()) for key, each in found.items()},
    }


def _in_memory(name: str, variables: dict) -> str:
    """The name of a variable in memory, where transformers 5 has shorter ones."""
    if name in variables:
        return name
    short = name.replace("vit.encoder.layer.", "vit.layers.").replace(
        ".attention.attention.query.", ".attention.q_proj."
    )
    return short.replace(".output.dense.", ".mlp.fc2.")


def main() -> None:
    """Writes the file."""
    rows = {name: make(changes) for name, changes in CASES.items()}
    print({name: row["loss"] for name, row in rows.items()})
    GOLDEN.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
