"""Writes tests/golden/networks.json: outputs of small dense networks of transformers.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_networks.py [CASE ...]

with the environment of `scripts/parity`. Weights and images follow a formula, so that the tests
make them again: the file holds configurations, names, shapes, and 400 values of every output. Words
on the command line name the cases to make; the others stay.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from typing import Any

import torch
import transformers

from scripts.golden.network_formula import chosen_values, images_of, network_arrays
from scripts.peers.parity_theirs import load_saved, save_names

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "networks.json"
LABELS = {str(number): f"kind {number}" for number in range(5)}
DINOV2 = {
    "model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "mlp_ratio": 2, "image_size": 56, "patch_size": 14,
    "out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False,
}  # fmt: skip
ANYTHING = {
    "backbone_config": DINOV2, "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 12, 16, 20],
    "fusion_hidden_size": 16, "head_hidden_size": 8,
}  # fmt: skip
DPT = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 64, "patch_size": 16, "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 12, 16, 20], "fusion_hidden_size": 16,
}  # fmt: skip
EOMT = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 64,
    "patch_size": 16, "num_queries": 10, "num_blocks": 2, "id2label": LABELS,
}  # fmt: skip
MASKED, NOT_MASKED = {"attn_mask_probs": 1.0}, {"attn_mask_probs": 0.0}
# Name: class, options of its configuration, height and width of the images, arrays of one value.
CASES: dict[str, tuple[Any, ...]] = {
    "depth anything": ("DepthAnythingForDepthEstimation", ANYTHING, (56, 84)),
    "metric depth anything": (
        "DepthAnythingForDepthEstimation",
        {**ANYTHING, "depth_estimation_type": "metric", "max_depth": 20},
        (56, 56),
    ),
    "dpt": ("DPTForDepthEstimation", DPT, (64, 64)),
    "dpt on dinov2": (
        "DPTForDepthEstimation",
        {**DPT, "backbone_config": {**DINOV2, "apply_layernorm": False},
         "use_bias_in_fusion_residual": False},
        (42, 56),
    ),
    "eomt": (
        "EomtForUniversalSegmentation", {**EOMT, "mlp_ratio": 2}, (64, 64), NOT_MASKED,
    ),
    "masked eomt": (
        "EomtForUniversalSegmentation",
        {**EOMT, "mlp_ratio": 2, "use_swiglu_ffn": True, "num_upscale_blocks": 1}, (64, 64), MASKED,
    ),
    "eomt on dinov3": (
        "EomtDinov3ForUniversalSegmentation",
        {**EOMT, "intermediate_size": 64}, (64, 64), NOT_MASKED,
    ),
    "masked eomt on dinov3": (
        "EomtDinov3ForUniversalSegmentation",
        {**EOMT, "intermediate_size": 64, "num_blocks": 3}, (64, 64), MASKED,
    ),
}  # fmt: skip


def make(
    kind: str,
    options: dict[str, Any],
    size: tuple[int, int],
    fixed: dict[str, float] | None = None,
) -> dict[str, Any]:
    """The row of a case."""
    config = getattr(transformers, kind).config_class(**options)
    model = getattr(transformers, kind)(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        shapes = save_names(model, folder)
        arrays = network_arrays(shapes, fixed)
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        model, info = load_saved(model, folder, state)
        assert not any(info.values()), info
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
    images = torch.tensor(images_of(size).transpose(0, 3, 1, 2))
    with torch.inference_mode():
        found = model.eval()(images)
    outputs = {
        name: chosen_values(found[name].numpy())
        for name in found
        if name not in ("loss", "hidden_states", "attentions", "last_hidden_state")
    }
    row = {"config": written, "size": size, "shapes": shapes, "outputs": outputs}
    return row if fixed is None else {**row, "fixed": fixed}


def main() -> None:
    """Makes the cases that are named, or all."""
    names = sys.argv[1:] or list(CASES)
    rows = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in names:
        rows[name] = make(*CASES[name])
        shapes = {key: value["shape"] for key, value in rows[name]["outputs"].items()}
        print(name, shapes)
    OUT.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
