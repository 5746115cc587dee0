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
ENCODER = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
DPT = {
    **ENCODER, "num_hidden_layers": 4, "image_size": 64, "patch_size": 16,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 12, 16, 20], "fusion_hidden_size": 16,
}  # fmt: skip
VITPOSE = {
    "model_type": "vitpose_backbone", "hidden_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "mlp_ratio": 2, "image_size": [64, 48], "patch_size": [16, 16],
    "out_features": ["stage3"],
}  # fmt: skip
POSE = {"backbone_config": VITPOSE, "id2label": {str(n): f"joint {n}" for n in range(6)}}
YOLOS = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": [64, 96], "patch_size": 16, "num_detection_tokens": 7, "id2label": LABELS,
}  # fmt: skip
EOMT = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 64,
    "patch_size": 16, "num_queries": 10, "num_blocks": 2, "id2label": LABELS,
}  # fmt: skip
RF_DINOV2 = {
    "model_type": "rf_detr_dinov2", "hidden_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "mlp_ratio": 2, "image_size": 56, "patch_size": 14, "num_windows": 2,
    "out_features": ["stage2", "stage4"],
}  # fmt: skip
RF_DETR = {
    "backbone_config": RF_DINOV2, "d_model": 32, "decoder_ffn_dim": 48, "decoder_layers": 2,
    "decoder_self_attention_heads": 4, "decoder_cross_attention_heads": 8, "decoder_n_points": 2,
    "num_queries": 6, "group_detr": 2, "dropout": 0.0, "intermediate_size": 40, "id2label": LABELS,
    "c2f_num_blocks": 1,
}  # fmt: skip
# Name: class, options of its configuration, height and width of the images.
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "depth anything": ("DepthAnythingForDepthEstimation", ANYTHING, (56, 84)),
    "metric depth anything": (
        "DepthAnythingForDepthEstimation",
        {**ANYTHING, "depth_estimation_type": "metric", "max_depth": 20},
        (56, 56),
    ),
    "dpt": ("DPTForDepthEstimation", DPT, (64, 64)),
    "dpt of another size": ("DPTForDepthEstimation", DPT, (96, 96)),
    "dpt on dinov2": (
        "DPTForDepthEstimation",
        {**DPT, "backbone_config": {**DINOV2, "apply_layernorm": False},
         "use_bias_in_fusion_residual": False},
        (42, 56),
    ),
    "dpt segmentation": (
        "DPTForSemanticSegmentation",
        {**DPT, "id2label": LABELS, "use_batch_norm_in_fusion_residual": True},
        (64, 64),
    ),
    "beit segmentation": (
        "BeitForSemanticSegmentation",
        {**ENCODER, "num_hidden_layers": 5, "image_size": 96, "patch_size": 16, "id2label": LABELS,
         "out_indices": [2, 3, 4, 5], "use_relative_position_bias": True, "auxiliary_channels": 16},
        (96, 96),
    ),
    "vitpose": ("VitPoseForPoseEstimation", POSE, (64, 48)),
    "classic vitpose": (
        "VitPoseForPoseEstimation", {**POSE, "use_simple_decoder": False}, (64, 48),
    ),
    "vitpose of an earlier block": (
        "VitPoseForPoseEstimation",
        {**POSE, "backbone_config": {**VITPOSE, "out_features": ["stage2"]}, "scale_factor": 2},
        (64, 48),
    ),
    "vitpose of experts": (
        "VitPoseForPoseEstimation",
        {**POSE, "backbone_config": {**VITPOSE, "num_experts": 3, "part_features": 8}},
        (64, 48),
    ),
    "yolos": ("YolosForObjectDetection", YOLOS, (64, 96)),
    "yolos of another size": ("YolosForObjectDetection", YOLOS, (80, 128)),
    "yolos without mid positions": (
        "YolosForObjectDetection", {**YOLOS, "use_mid_position_embeddings": False}, (80, 64)
    ),
    "eomt": (
        "EomtForUniversalSegmentation", {**EOMT, "mlp_ratio": 2}, (64, 64),
    ),
    "masked eomt": (
        "EomtForUniversalSegmentation",
        {**EOMT, "mlp_ratio": 2, "use_swiglu_ffn": True, "num_upscale_blocks": 1}, (64, 64),
    ),
    "eomt on dinov3": (
        "EomtDinov3ForUniversalSegmentation",
        {**EOMT, "intermediate_size": 64}, (64, 64),
    ),
    "masked eomt on dinov3": (
        "EomtDinov3ForUniversalSegmentation",
        {**EOMT, "intermediate_size": 64, "num_blocks": 3}, (64, 64),
    ),
    "rf-detr": ("RfDetrForObjectDetection", RF_DETR, (56, 56)),
    "rf-detr of another size": (
        "RfDetrForObjectDetection",
        {**RF_DETR, "num_queries": 4, "activation_function": "gelu", "c2f_num_blocks": 2,
         "decoder_activation_function": "silu", "backbone_config": {
             **RF_DINOV2, "num_windows": 3, "out_features": ["stem", "stage1", "stage3"],
             "apply_layernorm": False}},
        (84, 84),
    ),
    "rf-detr on a large map": (
        "RfDetrForObjectDetection",
        {**RF_DETR, "backbone_config": {**RF_DINOV2, "patch_size": 2, "image_size": 8}}, (104, 104),
    ),
    "rf-detr segmentation": ("RfDetrForInstanceSegmentation", RF_DETR, (56, 56)),
}  # fmt: skip
# What their model is called with besides images, and ours loaded with.
CALLS: dict[str, dict[str, int]] = {"vitpose of experts": {"dataset_index": 2}}
# Arrays of one value. Without the bias, nearly all of the depth would be 0.
FIXED = {
    name: {"attn_mask_probs": float(name.startswith("masked"))} for name in CASES if "eomt" in name
}
FIXED |= {name: {"head.head.4.bias": 1.0} for name in ("dpt", "dpt of another size")}


def make(name: str) -> dict[str, Any]:
    """The row of a case."""
    kind, options, size = CASES[name]
    call, fixed = CALLS.get(name, {}), FIXED.get(name)
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
        more = {key: torch.full((len(images),), value) for key, value in call.items()}
        found = model.eval()(images, **more)
    outputs = {
        name: chosen_values(found[name].numpy())
        for name in found
        if name not in ("loss", "hidden_states", "attentions", "last_hidden_state")
        and not name.startswith(("init_", "intermediate_", "enc_outputs", "backbone_features"))
    }
    row = {"config": written, "size": size, "shapes": shapes, "outputs": outputs}
    if kind.startswith("RfDetr"):
        row["training"] = all_predictions(model, images)
    extras = {"options": call, "fixed": fixed}
    return row | {key: value for key, value in extras.items() if value}


def all_predictions(model: Any, images: torch.Tensor) -> dict[str, Any]:
    """What RF-DETR's loss takes: of each decoder layer and of the proposals, of all groups."""
    has_masks = hasattr(model, "segmentation_head")
    detector = model.model if has_masks else model
    with torch.no_grad():
        found = detector.train().model(images)
        states, starts = found.intermediate_hidden_states, found.intermediate_reference_points
        sets = [detector.predict_class_and_boxes(state, starts[-1]) for state in states]
        classes = detector.predict_encoder_class_logits(found.enc_outputs_class)
        sets.append((classes, found.enc_outputs_coord_logits))
        names = dict(zip(("logits", "pred_boxes"), zip(*sets, strict=True), strict=True))
        if has_masks:
            given = found.backbone_features, images.shape[-2:]
            masks = model.segmentation_head(given[0], states, given[1])
            own = model.segmentation_head(given[0], found.enc_outputs_class, given[1], True)
            names["pred_masks"] = (*masks, own)
    scores = detector.model.enc_out_class_embed[0](found.enc_outputs_class).amax(-1)
    best = scores[:, : model.config.num_queries]
    assert (best[:, :-1] - best[:, 1:]).min() > 1e-4, "rounding can change the order of proposals"
    return {name: chosen_values(torch.cat(x, 1).numpy()) for name, x in names.items()}


def main() -> None:
    """Makes the cases that are named, or all."""
    names = sys.argv[1:] or list(CASES)
    rows = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in names:
        rows[name] = make(name)
        shapes = {key: value["shape"] for key, value in rows[name]["outputs"].items()}
        print(name, shapes)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
    OUT.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
