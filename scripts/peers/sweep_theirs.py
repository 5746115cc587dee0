"""Writes tests/golden/sweep.json.gz: small models of every plain-ViT name of timm, and classes.

The first half of `scripts/sweep`, run with PyTorch, timm and transformers. Every model has two
blocks (a head of 10 classes where its project allows one), and the number of heads, the activation
and the options of its name. The sidecar files are those that the projects write. Words on the
command line choose titles that contain them, "new" those that the record lacks; the others stay.
"""

from __future__ import annotations

import gzip
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import torch

from scripts.peers.parity_theirs import (  # first: it makes timm importable
    config_of,
    load_saved,
    save_names,
    transformers,
)
from tests.sweep import RECORD, images, patches_of, read_record, values

import timm  # isort: skip
from timm.models._hub import save_config_for_hf  # isort: skip

MODULES = (
    "vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos",
    "vision_transformer_sam", "deit", "eva", "beit", "naflexvit",
)  # fmt: skip
BIT = "resnetv2_50x1_bit"
HEAD = {"num_classes": 10}
TINY, BEIT = "vit_tiny_patch16_224", "beit_base_patch16_224"
SMALL = {"depth": 2, "embed_dim": 24, "img_size": 48, **HEAD}
# Options of timm, one by one: what `create_model` gets besides the name.
TIMM_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"act_layer": act} for act in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")),
    *({"global_pool": pool} for pool in ("avg", "max", "avgmax", "map", "", "prr")),
    {"global_pool": "avg", "fc_norm": False}, {"global_pool": "token", "fc_norm": True},
    {"global_pool": "avg", "fc_norm": False, "pool_include_prefix": True},
    {"global_pool": "avg", "class_token": False}, {"global_pool": "map", "class_token": False},
    {"global_pool": "map", "reg_tokens": 2}, {"global_pool": "map", "pool_include_prefix": True},
    {"global_pool": "map", "class_token": False, "reg_tokens": 2},
    *({"norm_layer": norm} for norm in ("layernorm", "rmsnorm", "layernormfp32")),
    {"num_heads": 6}, {"num_heads": 2, "mlp_ratio": 2}, {"qkv_bias": False}, {"proj_bias": False},
    {"qk_norm": True}, {"scale_attn_norm": True}, {"scale_mlp_norm": True}, {"pre_norm": True},
    {"final_norm": False}, {"init_values": 0.1}, {"reg_tokens": 3}, {"no_embed_class": True},
    {"no_embed_class": True, "reg_tokens": 3}, {"pos_embed": "none"}, {"dynamic_img_size": True},
    {"in_chans": 1}, {"img_size": (32, 64)}, {"num_classes": 0}, {"attn_layer": "diff"},
    {"attn_layer": "attn"}, {"qk_norm": True, "norm_layer": "rmsnorm"},
    {"qk_norm": True, "scale_attn_norm": True}, {"qk_norm": True, "qkv_bias": False},
    {"qk_norm": True, "num_heads": 1}, {"norm_layer": "rmsnormfp32"}, {"norm_layer": "simplenorm"},
    {"norm_layer": "rmsnorm", "global_pool": "map", "class_token": False},
    {"norm_layer": "rmsnorm", "pre_norm": True, "global_pool": "avg"},
    {"norm_layer": "rmsnorm", "scale_attn_norm": True, "scale_mlp_norm": True},
    {"norm_layer": "rmsnorm", "proj_bias": False, "qkv_bias": False, "init_values": 0.1},
    {"embed_norm_layer": "layernorm"}, {"embed_norm_layer": "rmsnorm"},
    {"embed_norm_layer": "rmsnorm", "norm_layer": "rmsnorm"},
    {"global_pool": "avg", "pool_include_prefix": True},
    {"global_pool": "avg", "pool_include_prefix": True, "class_token": False, "reg_tokens": 2},
    {"global_pool": "avg", "pool_include_prefix": True, "class_token": False},
    {"global_pool": "token", "pool_include_prefix": True},
    {"global_pool": "max", "pool_include_prefix": True}, {"global_pool": "", "num_classes": 0},
    {"global_pool": "", "fc_norm": True},
    {"global_pool": "", "class_token": False, "reg_tokens": 2},
    {"global_pool": "", "pool_include_prefix": True}, {"global_pool": "avg", "num_classes": 0},
    {"global_pool": "avg", "final_norm": False},
    {"global_pool": "avg", "class_token": False, "reg_tokens": 3},
    {"global_pool": "avg", "class_token": False, "reg_tokens": 3, "no_embed_class": True},
    {"global_pool": "avg", "reg_tokens": 1, "final_norm": False, "pre_norm": True},
    {"pos_embed": "none", "reg_tokens": 2}, {"pos_embed": ""},
    {"init_values": 0.1, "no_embed_class": True, "fc_norm": True},
    {"mlp_ratio": 1.6, "patch_size": 8},
    {"weight_init": "moco", "fix_init": True, "drop_path_rate": 0.1},
)  # fmt: skip
DISTILLED = "deit_tiny_distilled_patch16_224"
DISTILLED_OPTIONS: tuple[dict[str, Any], ...] = (
    {"qkv_bias": False}, {"qk_norm": True}, {"norm_layer": "rmsnorm"}, {"init_values": 0.1},
    {"reg_tokens": 2}, {"num_classes": 0},
)  # fmt: skip
# Models of `eva.py`, with rotary positions.
EVA_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "vit_small_patch16_dinov3": (
        {"num_reg_tokens": 0}, {"num_reg_tokens": 2}, {"class_token": False},
        {"class_token": False, "num_reg_tokens": 0}, {"global_pool": "token"},
        {"global_pool": ""}, {"global_pool": "map"}, {"global_pool": "max"},
        {"qkv_bias": True}, {"qkv_bias": True, "qkv_fused": False}, {"swiglu_mlp": True},
        {"scale_mlp": True}, {"scale_attn_inner": True}, {"qk_norm": True},
        {"init_values": None}, {"attn_only_layer_scale": True}, {"use_abs_pos_emb": True},
        {"use_abs_pos_emb": True, "num_reg_tokens": 0}, {"use_rot_pos_emb": False},
        {"use_abs_pos_emb": True, "no_embed_class": True}, {"use_fc_norm": True},
        {"use_post_transformer_norm": False}, {"use_pre_transformer_norm": True},
        {"rope_temperature": 50.0}, {"rope_rotate_half": False}, {"rope_grid_offset": 1.0},
        {"rope_rescale_coords": 2.0}, {"use_post_norm": True}, {"attn_type": "rope"},
        {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": 2}, {"img_size": (32, 64)},
        {"num_classes": 0},
    ),
    "vit_small_patch16_dinov3_qkvb": ({"num_reg_tokens": 0}, {"qkv_bias": False}),
    "vit_pe_core_small_patch16_384": (
        {"attn_pool_num_heads": 2}, {"attn_pool_mlp_ratio": 2.0}, {"global_pool": "avg"},
        {"num_reg_tokens": 1}, {"ref_feat_shape": 7}, {"rope_grid_indexing": "ij"},
    ),
    "eva02_tiny_patch14_224": (
        {"num_reg_tokens": 1}, {"scale_mlp": True}, {"swiglu_mlp": False},
        {"use_abs_pos_emb": False}, {"global_pool": "token"},
    ),
}  # fmt: skip
BEIT_OPTIONS: tuple[dict[str, Any], ...] = (
    {"global_pool": "token"}, {"init_values": None, "qkv_bias": False}, {"img_size": (32, 64)},
    {"use_abs_pos_emb": True}, {"use_abs_pos_emb": True, "use_rel_pos_bias": False},
    {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
    {"use_abs_pos_emb": True, "global_pool": "token", "qkv_bias": False},
    {"use_abs_pos_emb": True, "img_size": (32, 64)}, {"use_fc_norm": False}, {"global_pool": ""},
    {"num_classes": 0}, {"swiglu_mlp": True}, {"scale_mlp": True},
    {"swiglu_mlp": True, "scale_mlp": True},
)  # fmt: skip
# At another image size, too.
RESIZED_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (TINY, {"qk_norm": True}),
    (TINY, {"norm_layer": "rmsnorm"}),
    (TINY, {"global_pool": "avg", "pool_include_prefix": True}),
    (TINY, {"class_token": False, "reg_tokens": 3, "global_pool": "avg"}),
    (BEIT, {"use_abs_pos_emb": True}),
    ("beitv2_base_patch16_224", {"use_abs_pos_emb": True}),
    ("vit_small_patch16_dinov3_qkvb", {"num_reg_tokens": 0}),
)
ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "num_labels": 10, "mlp_ratio": 2,
}  # fmt: skip
TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "vocab_size": 20, "max_position_embeddings": 8, "projection_size": 16,
}  # fmt: skip
TOWER = {key: value for key, value in ENCODER.items() if key not in ("mlp_ratio", "num_labels")}
TWO_TOWERS = {"vision_config": TOWER, "text_config": TEXT, "num_labels": 10}
UPERNET = {"use_relative_position_bias": True, "num_hidden_layers": 5, "out_indices": [2, 3, 4, 5]}
# Class, changes of its configuration. Backbones have the files of their models.
CLASSES: tuple[tuple[str, dict[str, Any]], ...] = tuple(
    (name, changes)
    for names, changes in (
        (
            "ViTModel ViTForImageClassification ViTForMaskedImageModeling DeiTModel "
            "DeiTForImageClassification DeiTForImageClassificationWithTeacher "
            "DeiTForMaskedImageModeling ViTMSNModel ViTMSNForImageClassification IJepaModel "
            "IJepaForImageClassification Dinov2Model Dinov2ForImageClassification "
            "Dinov2WithRegistersModel Dinov2WithRegistersForImageClassification "
            "SiglipVisionModel Siglip2VisionModel CLIPVisionModel CLIPVisionModelWithProjection "
            "MetaClip2VisionModel MetaClip2VisionModelWithProjection AltCLIPVisionModel "
            "ChineseCLIPVisionModel BlipVisionModel Blip2VisionModel InstructBlipVisionModel "
            "GitVisionModel InternVLVisionModel PixioModel PixtralVisionModel VitDetModel "
            "DPTModel VideoMAEModel VivitModel ASTModel", {},
        ),
        (
            "SiglipModel SiglipForImageClassification Siglip2ForImageClassification CLIPModel "
            "CLIPForImageClassification MetaClip2ForImageClassification", {"two": True},
        ),
        (
            "BeitModel BeitForImageClassification BeitForMaskedImageModeling Data2VecVisionModel "
            "Data2VecVisionForImageClassification", {"use_relative_position_bias": True},
        ),
        ("BeitForSemanticSegmentation Data2VecVisionForSemanticSegmentation", UPERNET),
        ("ViTMAEModel ViTMAEForPreTraining", {"mask_ratio": 0.0}),
        (
            "BitModel BitForImageClassification",
            {"hidden_sizes": [256, 512], "depths": [1, 2], "image_size": 64},
        ),
        ("DINOv3ViTModel", {"num_register_tokens": 2}),
        ("Aimv2VisionModel", {"use_head": False}),
        ("YolosModel YolosForObjectDetection", {"image_size": [32, 32]}),
        ("SamVisionModel", {"mlp_ratio": 2.0}),
        ("VitPoseBackbone", {"image_size": [32, 32], "patch_size": [8, 8]}),
    )
    for name in names.split()
)  # fmt: skip
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu", "quick_gelu",
               "gelu_10")  # fmt: skip
BOTH_POSITIONS = {"use_absolute_position_embeddings": True, "use_relative_position_bias": True}
# Options of transformers, one by one.
CLASS_OPTIONS: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    (
        "ViTForImageClassification",
        (
            *({"hidden_act": act} for act in ACTIVATIONS), {"layer_norm_eps": 1e-3},
            {"num_attention_heads": 8}, {"image_size": [32, 64]}, {"num_channels": 1},
            {"num_labels": 3},
        ),
    ),
    (
        "ViTForImageClassification ViTModel ViTForMaskedImageModeling "
        "DeiTForImageClassificationWithTeacher DeiTForImageClassification "
        "ViTMSNForImageClassification IJepaForImageClassification "
        "Dinov2ForImageClassification Dinov2WithRegistersModel", ({"qkv_bias": False},),
    ),
    ("ViTMAEModel", ({"qkv_bias": False, "mask_ratio": 0.0},)),
    (  # the configurations of the tests of transformers
        "ViTForImageClassification ViTModel DeiTForImageClassification",
        ({"image_size": 30, "patch_size": 2, "intermediate_size": 37, "num_labels": 3},),
    ),
    ("ViTModel", ({"pooler_act": "relu"},)),
    (
        "Dinov2Model",
        ({"use_swiglu_ffn": True}, {"layerscale_value": 0.5, "hidden_act": "gelu_new"}),
    ),
    (
        "DINOv3ViTModel",
        (
            {"num_register_tokens": 0}, {"hidden_act": "relu"},
            {"use_gated_mlp": True, "hidden_act": "silu"},
            {"use_gated_mlp": True, "hidden_act": "gelu"},
            {"rope_theta": 50.0, "key_bias": True}, {"value_bias": False, "proj_bias": False},
            {"mlp_bias": False, "image_size": [32, 48]},
        ),
    ),
    (
        "BeitModel",
        (
            {"use_relative_position_bias": False}, {"use_absolute_position_embeddings": True},
            {"use_mean_pooling": False, "use_relative_position_bias": True},
            {"use_shared_relative_position_bias": True},
        ),
    ),
    ("BeitModel Data2VecVisionModel", (BOTH_POSITIONS,)),
    (
        "BeitForImageClassification Data2VecVisionForImageClassification",
        (BOTH_POSITIONS, {**BOTH_POSITIONS, "use_mean_pooling": False}),
    ),
    (
        "BeitForImageClassification",
        (
            {"layer_scale_init_value": 0.0},
            {"use_mean_pooling": False, "use_relative_position_bias": True,
             "image_size": [32, 48]},
        ),
    ),
    ("Data2VecVisionModel", ({"use_mean_pooling": False},)),
    ("CLIPVisionModel", ({"hidden_act": "gelu"},)),
    (
        "Aimv2VisionModel",
        (
            {"use_head": True}, {"use_head": False, "is_native": True},
            {"use_head": False, "qkv_bias": True}, {"use_head": False, "mlp_bias": True},
        ),
    ),
    (
        "SiglipVisionModel",
        ({"hidden_act": "gelu", "layer_norm_eps": 1e-4}, {"vision_use_head": False}),
    ),
    (
        "BitForImageClassification",
        ({"global_padding": "SAME", "depths": [1, 1], "hidden_sizes": [256, 512],
          "image_size": 64},),
    ),
)  # fmt: skip
MEMORY = ("ViTForImageClassification", "DeiTForImageClassification", "IJepaForImageClassification",
          "Dinov2ForImageClassification", "SiglipVisionModel", "ViTMAEModel",
          "CLIPVisionModelWithProjection", "DINOv3ViTModel",
          "BeitForImageClassification")  # fmt: skip


def fill(model: torch.nn.Module) -> dict[str, list[int]]:
    """Gives every array the values of its name; returns their shapes."""
    state = model.state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            value.copy_(torch.from_numpy(values(name, tuple(value.shape))))
    return {name: list(v.shape) for name, v in state.items() if v.is_floating_point()}


def run_timm(model: torch.nn.Module, size: tuple[int, int], channels: int) -> list[Any] | None:
    return listed(model.double()(pixels_of(size, channels)))


def pixels_of(size: tuple[int, int], channels: int) -> torch.Tensor:
    """The images in float64: in float32 timm's hybrids are 2e-5 from their own float64."""
    return torch.from_numpy(images(size, channels).transpose(0, 3, 1, 2).copy()).double()


def listed(output: torch.Tensor) -> list[Any] | None:
    """Outputs of a vector an image or a token, rounded; others have no place here."""
    rounded = np.round(output.numpy().astype("float64"), 6)
    return rounded.tolist() if output.ndim in (2, 3) else None


def timm_case(name: str, options: dict[str, Any], change: Callable[..., Any] | None = None) -> dict:
    model = timm.create_model(name, **options).eval()
    if change is not None:
        change(model)
    shapes = fill(model)
    size = model.pretrained_cfg["input_size"][1:]
    if hasattr(model, "patch_embed") and getattr(model.patch_embed, "img_size", None):
        size = model.patch_embed.img_size
    with tempfile.TemporaryDirectory() as folder:
        save_config_for_hf(model, f"{folder}/config.json")
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    case = {"config": config, "shapes": shapes}
    if name == BIT:  # for images of any size
        size = (64, 64)
        case["ours"] = {"input_shape": [64, 64, 3]}
    if name.startswith("naflexvit"):  # 24 x 24 patches, of which SigLIP's model takes any number
        siglip = name.endswith("siglip")
        case["ours"] = {"max_num_patches": 576} if siglip else {"input_shape": [*size, 3]}
    outputs = run_timm(model, tuple(size), options.get("in_chans", 3))
    return {**case, "size": list(size), "outputs": outputs}


def small_options(name: str) -> dict[str, Any]:
    """Two blocks, narrow ones with as many heads as the name has, and images of nine patches."""
    whole = timm.create_model(name, depth=1)
    blocks = getattr(whole, "blocks", None)
    if blocks is None or "mci" in name:
        return {"depth": 2, **HEAD}
    numbers = [getattr(part, "num_heads", None) for part in blocks.modules()]
    heads = next((number for number in numbers if isinstance(number, int)), 4)
    patch = getattr(whole, "patch_embed", None)
    options = {"depth": 2, "embed_dim": 8 * heads, **HEAD}
    grid = getattr(patch, "grid_size", None)
    if patch is not None and grid is not None:
        step = patch.img_size[0] // grid[0]
        options["img_size"] = (4 if "sam" in name else 3) * step
    return options


def named_case(name: str) -> dict:
    return timm_case(name, small_options(name))


def eva_sizes(name: str) -> dict[str, Any]:
    return {**SMALL, "img_size": 42 if "14" in name else 48, "num_heads": 2}


def timm_cases() -> Iterator[tuple[str, Callable[[], dict]]]:
    names = [name for module in MODULES for name in timm.list_models(module=module)]
    for name in dict.fromkeys(names):
        yield f"timm {name}", partial(named_case, name)
    for name, sizes, choices in (
        (BIT, HEAD, ({}, {"act_layer": "silu"}, {"output_stride": 16})),
        (TINY, SMALL, TIMM_OPTIONS),
        (DISTILLED, SMALL, DISTILLED_OPTIONS),
        (BEIT, {**SMALL, "embed_dim": 48}, BEIT_OPTIONS),
        *((name, eva_sizes(name), choices) for name, choices in EVA_OPTIONS.items()),
    ):
        for options in choices:
            title = f"timm {name} {shown(options)}".strip()
            yield title, partial(timm_case, name, {**sizes, **options})
    for pool in ("avg", "max"):
        change = methodcaller("reset_classifier", 10, pool)
        yield f"timm {TINY} reset to {pool}", partial(timm_case, TINY, SMALL, change)
    options = {"depth": 1, "embed_dim": 24, "img_size": 112, **HEAD}
    title = "timm vit_base_r26_s32_224 img_size=112"
    yield title, partial(timm_case, "vit_base_r26_s32_224", options)
    yield from resized_cases()


def resized_cases() -> Iterator[tuple[str, Callable[[], dict]]]:
    """The same weights at another image or patch size, as timm itself loads them."""
    for name in ("flexivit_small", TINY, BEIT):
        sizes = ({"img_size": 64}, {"img_size": 32}, {"img_size": 48, "patch_size": 12})
        for more in sizes[: 2 if name == BEIT else 3]:
            yield f"timm {name} to {shown(more)}", partial(resized, name, more)
    more = {"img_size": 64}
    for name, options in RESIZED_OPTIONS:
        title = f"timm {name} {shown(options)} to {shown(more)}"
        yield title, partial(resized, name, more, options)


def resized(name: str, more: dict[str, Any], fields: dict[str, Any] | None = None) -> dict:
    options = {**SMALL, "embed_dim": 48, **(fields or {})}
    case = timm_case(name, options)
    with tempfile.TemporaryDirectory() as folder:
        source = timm.create_model(name, **options).eval()
        fill(source)
        torch.save(source.state_dict(), f"{folder}/x.pth")
        overlay = {"file": f"{folder}/x.pth", **HEAD}
        model = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay=overlay, **{**options, **more}
        ).eval()
    size = (more["img_size"],) * 2
    case["outputs"] = run_timm(model, size, 3)
    ours = {"input_shape": [*size, 3]}
    if "patch_size" in more:
        ours["patch_size"] = more["patch_size"]
    return {**case, "ours": ours, "size": list(size)}


def shown(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


def class_config(name: str, changes: dict[str, Any]) -> Any:
    """A small configuration, of the fields that its class knows."""
    make = getattr(transformers, config_of(name))
    changes = dict(changes)
    fields = TWO_TOWERS if changes.pop("two", False) else ENCODER
    default = make()
    known = {*vars(default), *getattr(default, "attribute_map", {}), "num_labels"}
    known |= {"vision_config", "text_config"}
    made = make(**{key: value for key, value in fields.items() if key in known} | changes)
    made._attn_implementation = "eager"
    return made


def class_case(name: str, changes: dict[str, Any], memory: bool = False) -> dict:
    settings = class_config(name, changes)
    model = getattr(transformers, name)(settings).eval()
    with tempfile.TemporaryDirectory() as folder:
        shapes = save_names(model, folder)
        config_json = json.loads((pathlib.Path(folder) / "config.json").read_text())
        if memory:
            shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
            fill(model)
        else:
            state = {
                key: torch.from_numpy(values(key, tuple(shape))) for key, shape in shapes.items()
            }
            model, _ = load_saved(model, folder, state)
    case = {"config": config_json, "shapes": shapes, "outputs": None}
    tower = getattr(settings, "vision_config", settings)
    size = getattr(tower, "image_size", 32)
    case["size"] = list(size) if isinstance(size, (list, tuple)) else [size, size]
    channels = changes.get("num_channels", 3)
    pixels = pixels_of(tuple(case["size"]), channels)
    case["outputs"] = class_outputs(name, model.double(), pixels)
    return case


def class_outputs(name: str, model: torch.nn.Module, pixels: torch.Tensor) -> list[Any] | None:
    """Logits; pooled output of SigLIP and CLIP; else the class token, or the mean without one."""
    arguments: dict[str, Any] = {}
    if name == "BeitForMaskedImageModeling":  # its norm belongs to no child with blocks
        return listed(model.layernorm(model.beit(pixels).last_hidden_state)[:, 0])
    if name.endswith(("ForMaskedImageModeling", "ForPreTraining")):
        model = next(model.children())
    if name.startswith("ViTMAE"):
        rows = (pixels.shape[2] // 8) * (pixels.shape[3] // 8)
        arguments["noise"] = torch.arange(rows).expand(len(pixels), -1).float()
    if name == "SiglipModel":
        model = model.vision_model
    if name == "CLIPModel":
        embedding = model.get_image_features(pixel_values=pixels)
        return listed(getattr(embedding, "pooler_output", embedding))
    if name.startswith("Siglip2"):  # patches of images of any aspect ratio, and padding
        patches, grids = patches_of(pixels.numpy().transpose(0, 2, 3, 1), 8, 20)
        pixels = torch.from_numpy(patches).to(pixels.dtype)
        arguments["spatial_shapes"] = torch.from_numpy(grids)
        mask = torch.arange(20) < arguments["spatial_shapes"].prod(1, keepdim=True)
        arguments["pixel_attention_mask"] = mask.int()
    try:
        output = model(pixel_values=pixels, **arguments)
    except Exception as error:  # of another kind of images: refused anyway
        print(f"  no outputs: {error!r:.120}")
        return None
    for field in ("logits", "image_embeds"):
        if hasattr(output, field):
            values = getattr(output, field)
            return listed(values.mean((2, 3)) if values.ndim == 4 else values)
    pooled = getattr(output, "pooler_output", None)  # after the last norm
    is_pooled = "CLIP" in name or name.startswith(("MetaClip", "Beit", "Siglip", "Bit", "Aimv2"))
    if is_pooled and pooled is not None:
        return listed(pooled.flatten(1))
    tokens = getattr(output, "last_hidden_state", None)
    if tokens is None or tokens.ndim != 3:
        return None
    no_token = name.startswith(("IJepa", "Siglip", "Aimv2"))
    return listed(tokens.mean(1) if no_token else tokens[:, 0])


def wrapped_case(name: str) -> dict:
    """A model of timm within transformers."""
    case = timm_case(TINY, SMALL)
    config = transformers.TimmWrapperConfig(
        architecture=TINY, model_args={k: v for k, v in SMALL.items() if k != "num_classes"},
        num_labels=10,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        written = save_names(getattr(transformers, name)(config), folder)
        text = (pathlib.Path(folder) / "config.json").read_text()
    model = timm.create_model(TINY, **SMALL).eval()
    names = {name: name.removeprefix("timm_model.") for name in written}
    shapes = {name: case["shapes"][own] for name, own in names.items()}
    state = {names[n]: torch.from_numpy(values(n, tuple(s))) for n, s in shapes.items()}
    model.load_state_dict(state, strict=False)
    if "head.weight" not in state:
        model.reset_classifier(0)
    outputs = run_timm(model, (48, 48), 3)
    return {**case, "config": json.loads(text), "shapes": shapes, "outputs": outputs}


def transformers_cases() -> Iterator[tuple[str, Callable[[], dict]]]:
    for name, changes in CLASSES:
        yield f"transformers {name}", partial(class_case, name, changes)
    for names, choices in CLASS_OPTIONS:
        for name, changes in itertools.product(names.split(), choices):
            yield f"transformers {name} {shown(changes)}", partial(class_case, name, changes)
    for name in MEMORY:
        title = f"transformers {name} names in memory"
        yield title, partial(class_case, name, dict(CLASSES)[name], memory=True)
    name = "TimmWrapperForImageClassification"
    yield f"transformers {name}", partial(wrapped_case, name)


def main() -> None:
    torch.set_grad_enabled(False)
    words = sys.argv[1:]
    cases = dict((*timm_cases(), *transformers_cases()))
    record = read_record() if words and RECORD.exists() else {}
    record = {title: case for title, case in record.items() if title in cases}
    failed = {}
    for title, make in cases.items():
        if words == ["new"] and title in record:
            continue
        if words not in ([], ["new"]) and not any(word in title for word in words):
            continue
        try:
            record[title] = make()
        except Exception as error:
            failed[title] = f"{error!r:.160}"
    for title, reason in failed.items():
        print(f"not made: {title}: {reason}")
    text = json.dumps(record, separators=(",", ":"), sort_keys=True)
    RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(record)} cases, {len(failed)} not made, {RECORD.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
