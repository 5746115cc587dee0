"""Writes tests/golden/torch_outputs.json: outputs of small models of timm and transformers.

Run with the interpreter of `scripts/parity`'s environment:
`PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_torch.py`, and with
`PYTHONPATH=.:.venv-parity/transformers-4` for the case that version 5 dropped. "timm vit5", the
code of its authors, needs a checkout of github.com/wangf3014/ViT-5 at `VIT5_CODE`. Weights follow a
formula, so that the tests make them again and the file holds names, shapes and outputs alone. Words
on the command line name the cases to make; the others stay.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch

from scripts.golden.eval_cases import formula_arrays
from scripts.peers.parity_theirs import (  # first: it makes timm importable
    build,
    gradient,
    load_saved,
    run,
    save_names,
    vit5_code,
)

from timm.layers import StdConv2d  # isort: skip
from timm.models import resnetv2  # isort: skip
from timm.models import vision_transformer_hybrid as hybrid  # isort: skip
from timm.models import beit, eva, vision_transformer  # isort: skip

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "torch_outputs.json"

TIMM = {
    "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2,
    "num_classes": 5,
}  # fmt: skip
HEADLESS = {**TIMM, "num_classes": 0}
STEM = {name: value for name, value in TIMM.items() if name != "img_size"}
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "num_labels": 5,
}  # fmt: skip
DINO = {**SMALL, "mlp_ratio": 2}
HYBRID_STEM = {
    "model_type": "bit", "layer_type": "bottleneck", "depths": [1, 2], "out_features": ["stage2"],
    "embedding_dynamic_padding": True, "global_padding": "same",
}  # fmt: skip
HYBRID = {
    **SMALL, "image_size": 64, "patch_size": 1, "backbone_config": HYBRID_STEM,
    "backbone_featmap_shape": [1, 512, 8, 8],
}  # fmt: skip
BIT = {"embedding_size": 64, "hidden_sizes": [256, 512], "depths": [1, 2]}

# Name: project, model, options, side of the image, output without a head.
CASES: dict[str, tuple[str, str, dict, int, str]] = {
    f"timm {name}": ("timm", model, options, side, "")
    for name, model, options, side in (
        ("vit", "vit_tiny_patch16_224", TIMM, 32),
        ("mean", "vit_tiny_patch16_224", {**TIMM, "global_pool": "avg"}, 32),
        ("distilled", "deit_tiny_distilled_patch16_224", TIMM, 32),
        ("deit3", "deit3_small_patch16_224", TIMM, 32),
        ("dinov2", "vit_small_patch14_dinov2", HEADLESS, 32),
        ("registers", "vit_small_patch14_reg4_dinov2", HEADLESS, 32),
        ("siglip", "vit_base_patch16_siglip_224", HEADLESS, 32),
        ("flexivit", "flexivit_small", TIMM, 32),
        ("root", "vit_tiny_r_s16_p8_224", {**TIMM, "img_size": 64, "patch_size": 4}, 64),
        ("hybrid", "hybrid", {**STEM, "img_size": 64, "patch_size": 1}, 64),
        ("bit", "bit", {"num_classes": 5}, 64),
        ("clip", "vit_base_patch16_clip_224", TIMM, 32),
        ("quick clip", "vit_base_patch16_clip_quickgelu_224", TIMM, 32),
        ("dinov3", "vit_small_patch16_dinov3", TIMM, 32),
        ("biased dinov3", "vit_small_patch16_dinov3_qkvb", TIMM, 32),
        ("gated dinov3", "vit_small_plus_patch16_dinov3_qkvb", TIMM, 32),
        ("eva02", "eva02_tiny_patch14_224", TIMM, 32),
        ("split eva02", "eva02_base_patch14_224", TIMM, 32),
        ("eva02 clip", "eva02_base_patch16_clip_224", TIMM, 32),
        ("perception", "vit_pe_core_base_patch16_224", {**TIMM, "attn_pool_mlp_ratio": 2}, 32),
        ("language perception", "vit_pe_lang_large_patch14_448", TIMM, 32),
        ("gigantic perception", "vit_pe_core_gigantic_patch14_448",
         {**TIMM, "attn_pool_num_heads": 8, "attn_pool_mlp_ratio": 3}, 32),
        ("aimv2", "aimv2_large_patch14_224", TIMM, 32),
        ("beit", "beit_base_patch16_224", TIMM, 32),
        ("token beit", "beitv2_base_patch16_224",
         {**TIMM, "global_pool": "token", "init_values": None}, 32),
        ("vit5", "vit5", {**TIMM, "qkv_bias": False}, 32),
        ("gated dinov2", "vit_giant_patch14_reg4_dinov2", TIMM, 32),
    )
}  # fmt: skip
CASES |= {
    f"transformers {name}": ("transformers", kind, options, side, output)
    for name, kind, options, side, output in (
        ("vit", "ViTForImageClassification", SMALL, 32, ""),
        ("deit", "DeiTForImageClassificationWithTeacher", SMALL, 32, ""),
        ("dinov2", "Dinov2Model", DINO, 32, "token"),
        ("registers", "Dinov2WithRegistersModel", DINO, 32, "token"),
        ("mae", "ViTMAEModel", {**SMALL, "mask_ratio": 0.0}, 32, "token"),
        ("siglip", "SiglipVisionModel", SMALL, 32, "pooler"),
        ("clip", "CLIPVisionModelWithProjection", {**SMALL, "projection_dim": 5}, 32, ""),
        ("dinov3", "DINOv3ViTModel", {**SMALL, "num_register_tokens": 2}, 32, "token"),
        ("gated dinov3", "DINOv3ViTModel",
         {**SMALL, "num_register_tokens": 2, "use_gated_mlp": True, "hidden_act": "silu"},
         32, "token"),
        ("beit", "BeitForImageClassification",
         {**SMALL, "use_relative_position_bias": True}, 32, ""),
        ("token beit", "BeitForImageClassification",
         {**SMALL, "use_relative_position_bias": True, "use_mean_pooling": False}, 32, ""),
        ("gated dinov2", "Dinov2Model", {**DINO, "use_swiglu_ffn": True}, 32, "token"),
        ("hybrid", "ViTHybridForImageClassification", HYBRID, 64, ""),
        ("bit", "BitForImageClassification", {**BIT, "num_labels": 5}, 64, ""),
    )
}  # fmt: skip


# The same weights at another size of images, resized by the project: not square where it can.
RESIZED = {
    "timm vit": (48, 24),
    "timm deit3": (24, 24),
    "timm registers": (24, 48),
    "transformers vit": (48, 24),
    "transformers deit": (24, 24),
    "transformers dinov2": (48, 24),
    "transformers registers": (24, 16),
    "transformers siglip": (24, 48),
    "timm clip": (24, 48),
    "timm dinov3": (48, 24),
    "timm eva02": (48, 24),
    "timm perception": (24, 48),
    "timm language perception": (48, 24),
    "timm gigantic perception": (24, 48),
    "timm aimv2": (48, 24),
    "timm vit5": (24, 24),  # its authors have squares alone
    "timm beit": (48, 24),
    "timm token beit": (24, 24),
    "transformers beit": (24, 48),
    "transformers clip": (24, 48),
    "transformers dinov3": (48, 24),
}
# What newer families compute otherwise in the backward pass: rotations, gates, norms.
GRADIENTS = ("timm clip", "timm gated dinov3", "timm split eva02", "timm aimv2", "timm beit",
             "timm vit5", "timm language perception", "transformers clip",
             "transformers dinov3")  # fmt: skip


def small_hybrid(case: dict) -> torch.nn.Module:
    """timm's hybrid with stages of one and two units, which it has no name for."""
    return hybrid._create_vision_transformer_hybrid(
        "vit_base_r50_s16_224", backbone=hybrid._resnetv2((1, 2)), **case["options"]
    ).eval()


def small_bit(case: dict) -> torch.nn.Module:
    """timm's BiT with stages of one and two units."""
    return resnetv2.ResNetV2(
        layers=(1, 2),
        channels=(256, 512),
        stem_type="fixed",
        conv_layer=functools.partial(StdConv2d, eps=1e-8),
        **case["options"],
    ).eval()


def small_vit5(case: dict) -> torch.nn.Module:
    """ViT-5 of another size than its authors have names for."""
    code = vit5_code()
    return code.vit_models(
        num_registers=4,
        rope=True,
        reg_theta=100,
        qk_norm=True,
        flash=False,
        norm_layer=functools.partial(code.RMSNorm, eps=1e-6),
        **case["options"],
    ).eval()


BUILDERS = {"hybrid": small_hybrid, "bit": small_bit, "vit5": small_vit5}


def images(height: int, width: int) -> np.ndarray:
    i = np.arange(2 * height * width * 3, dtype="int64")
    return (((3 * i**2 + 101 * i) % 509) / 254 - 1).astype("float32").reshape(2, height, width, 3)


def saved_names(model: torch.nn.Module, project: str) -> dict[str, list[int]]:
    """Names and shapes as the project saves them."""
    if project == "timm":
        return {name: list(value.shape) for name, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        return save_names(model, folder)


def run_resized(case: dict, model: torch.nn.Module, state: dict, size: tuple) -> np.ndarray:
    """Outputs for images of another size, positions resized as the project does it."""
    if case["project"] == "transformers":
        return run({**case, "interpolate": True}, model, images(*size))
    case = {**case, "options": {**case["options"], "img_size": size}}
    if case["model"] == "vit5":
        return run_resized_vit5(case, state, size)
    other = build(case)
    modules = {"Eva": eva, "Beit": beit}
    module = modules.get(type(other).__name__, vision_transformer)
    other.load_state_dict(module.checkpoint_filter_fn(dict(state), other), strict=True)
    return run(case, other, images(*size))


def run_resized_vit5(case: dict, state: dict, size: tuple) -> np.ndarray:
    """As `main.py` of its authors does it: rotary positions count the patches of any grid."""
    other = small_vit5({**case, "options": {**case["options"], "img_size": size[0]}})
    table = state["pos_embed"]  # (1, N, D)
    side, new = (int(len(x[0]) ** 0.5) for x in (table, other.pos_embed))
    table = table.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    table = torch.nn.functional.interpolate(table, (new, new), mode="bicubic")
    state = {**state, "pos_embed": table.permute(0, 2, 3, 1).flatten(1, 2)}
    other.load_state_dict(state, strict=True)
    return run(case, other, images(*size))


def filled_model(title: str) -> tuple[dict, torch.nn.Module, dict[str, torch.Tensor]]:
    """The model of a case with the weights of the formula, and these as they are saved."""
    project, model_name, options, size, output = CASES[title]
    case: dict = {"project": project, "model": model_name, "options": options}
    case.update(output=output, patches=(size // 8) ** 2)
    model = BUILDERS.get(model_name, build)(case)
    shapes = saved_names(model, project)
    arrays = formula_arrays(shapes)
    state = {name: torch.from_numpy(arrays[name]) for name in shapes}
    state.update({n: value for n, value in model.state_dict().items() if n.endswith(".freqs")})
    if project == "timm":
        model.load_state_dict(state, strict=True)
        return case, model, state
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        model, info = load_saved(model, folder, state)
    assert not any(info.values()), info
    return case, model, state


def main() -> None:
    golden = json.loads(OUT.read_text()) if sys.argv[1:] else {}
    apart = ("transformers hybrid", "timm vit5")
    chosen = sys.argv[1:] or [title for title in CASES if title not in apart]
    for title, (*_, size, _) in CASES.items():
        if title not in chosen:
            continue
        case, model, state = filled_model(title)
        outputs = run(case, model, images(size, size))
        shapes = {name: list(value.shape) for name, value in state.items()}
        golden[title] = {"size": size, "shapes": shapes, "outputs": outputs.round(6).tolist()}
        if title in GRADIENTS:
            slope = gradient(case, model, images(size, size))[:, ::5, ::5]
            golden[title]["gradient"] = slope.round(7).tolist()
        if title in RESIZED:
            other = run_resized(case, model, state, RESIZED[title])
            golden[title]["resized"] = {"size": RESIZED[title], "outputs": other.round(6).tolist()}
        print(title, len(shapes), np.abs(outputs).max())
    OUT.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
