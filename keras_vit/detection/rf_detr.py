"""RF-DETR: detection and instance segmentation in real time on DINOv2 with windows."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from keras_vit.checks import check_positive, pair
from keras_vit.families import dino, keys
from keras_vit.models.real_time import RealTimeDetector, build_real_time_detector
from keras_vit.networks.network_file import NetworkFile
from keras_vit.runtime.model import Model

_ACTIVATION = keys.Only(("relu", "silu", "gelu"), "another activation")
_KEYS: keys.Rules = {
    "activation_function": _ACTIVATION,
    "decoder_activation_function": _ACTIVATION,
    "segmentation_head_activation_function": _ACTIVATION,
    "num_feature_levels": keys.Only((1,), "feature maps of several scales"),
    "attention_bias": keys.Only((True,), "attention of queries without biases"),
    "backbone_config": keys.Part({
        **keys.COMMON,
        **dict.fromkeys(dino.DINOV2_KEYS),
        "model_type": keys.Only(("rf_detr_dinov2",), "another backbone"),
        "num_register_tokens": keys.Only((0,), "registers"),
        "use_swiglu_ffn": keys.Only((False,), "gated MLPs"),
        "reshape_hidden_states": keys.Only((True,), "tokens in place of feature maps"),
        **keys.harmless("num_windows window_block_indexes"),
    }),
    **keys.harmless(
        "hidden_expansion c2f_num_blocks dropout decoder_ffn_dim decoder_n_points decoder_layers "
        "decoder_self_attention_heads decoder_cross_attention_heads num_queries attention_dropout "
        "activation_dropout group_detr init_std disable_custom_kernels class_cost bbox_cost "
        "giou_cost class_loss_coefficient dice_loss_coefficient bbox_loss_coefficient "
        "giou_loss_coefficient eos_coefficient focal_alpha auxiliary_loss d_model layer_norm_eps "
        "mask_loss_coefficient mask_point_sample_ratio mask_downsample_ratio "
        "mask_class_loss_coefficient mask_dice_loss_coefficient intermediate_size"
    ),
}  # fmt: skip
_DEFAULTS = {
    "d_model": 256, "num_queries": 300, "group_detr": 13, "decoder_layers": 3,
    "decoder_self_attention_heads": 8, "decoder_cross_attention_heads": 16, "decoder_n_points": 4,
    "decoder_ffn_dim": 2048, "hidden_expansion": 0.5, "c2f_num_blocks": 3, "layer_norm_eps": 1e-5,
    "dropout": 0.1, "activation_function": "silu", "decoder_activation_function": "relu",
    "segmentation_head_activation_function": "gelu", "intermediate_size": 1024,
    "mask_downsample_ratio": 4,
}  # fmt: skip
_VIT_DEFAULTS: dict[str, Any] = {
    **dino.DINOV2_DEFAULTS, "num_hidden_layers": 12, "image_size": 224, "patch_size": 14,
    "num_windows": 4, "apply_layernorm": True,
}  # fmt: skip
# Of a file that describes no backbone.
_SMALL: dict[str, Any] = {
    "model_type": "rf_detr_dinov2", "num_attention_heads": 6, "hidden_size": 384,
    "image_size": 518, "out_features": ["stage2", "stage5", "stage8", "stage11"],
}  # fmt: skip
_BACKBONE = "backbone.0.encoder.encoder."
_PROJECTOR = "backbone.0.projector.stages.0"
_DECODER_LAYER = {
    "attention": "self_attn.in_proj_", "attention_output": "self_attn.out_proj",
    "values": "cross_attn.value_proj", "offsets": "cross_attn.sampling_offsets",
    "weights": "cross_attn.attention_weights", "output": "cross_attn.output_proj",
} | {name: name for name in ("linear1", "linear2", "norm1", "norm2", "norm3")}  # fmt: skip


def load_rf_detr(file: NetworkFile, **options: Any) -> RealTimeDetector:
    """RF-DETR (https://arxiv.org/abs/2511.09554), with masks or without.

    Nothing reads blocks after the last feature map: a written file has new ones. The size of images
    is what `preprocessor_config.json` states, and else that of the positions, in whole windows.
    """
    file.config["backbone_config"] = vit = file.config.get("backbone_config") or _SMALL
    file.check(_KEYS)
    config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
    vit = {**_VIT_DEFAULTS, **{k: v for k, v in vit.items() if v is not None}}
    depth, windows = vit["num_hidden_layers"], vit.pop("num_windows")
    stages = vit.get("out_indices") or [
        0 if name == "stem" else int(name[5:])
        for name in vit.get("out_features") or [f"stage{depth}"]
    ]
    stages = [stage % (depth + 1) for stage in stages]
    inside = vit.pop("window_block_indexes", {*range(depth)} - {*stages})
    vit["model_type"] = "dinov2"
    size = file.processor.get("size")
    side = vit["patch_size"] * windows
    side = -(-pair("image_size", vit["image_size"])[0] // side) * side
    shape = (side, side, 3)
    if isinstance(size, dict) and "height" in size:
        shape = (size["height"], size["width"], 3)
    options["input_shape"] = options.get("input_shape") or shape
    backbone = file.backbone(file.after(_BACKBONE), vit, position_resize="bicubic", **options)
    if file.architecture != "RfDetrForInstanceSegmentation":
        config["mask_downsample_ratio"] = None
    model = build_real_time_detector(
        backbone, stages, [x for x in range(depth) if x not in inside], windows,
        len(file.class_names), SimpleNamespace(**config), vit["apply_layernorm"],
    )  # fmt: skip
    file.finish(model, _heads(config))
    return model


def build_rf_detr(
    backbone: Model,
    classes: int,
    num_queries: int = 300,
    num_groups: int = 13,
    num_windows: int = 1,
) -> RealTimeDetector:
    """Builds RF-DETR with a new decoder on a Vision Transformer, whose weights it shares.

    The decoder has the sizes of RF-DETR's base model, and its initial values. Set
    `backbone.trainable = False` before to train on frozen features.

    Args:
        backbone: A Vision Transformer for square images of one size.
        classes: Number of classes.
        num_queries: Most objects of an image, at most as many as patches.
        num_groups: Groups of queries in training: more learn faster, in slower steps.
        num_windows: Windows along each axis, in which all but each fourth part's last block attend.

    Returns:
        A model that trains with plain `compile(optimizer)` and `fit` on the batches of
        `keras_vit.detection.box_batches`; `predict_boxes` gives boxes.

    Raises:
        ValueError: If an argument is not positive, images are not square or no whole number of
            windows, or there are fewer patches than queries.

    Example:

    >>> backbone = keras_vit.ViTTi16(
    ...     weights=None, include_top=False, pooling=None, input_shape=(224, 224, 3))
    >>> detector = keras_vit.detection.build_rf_detr(backbone, classes=3, num_queries=60)
    >>> detector.compile(keras_vit.train.AdamW(5e-4))
    """
    for name, value in {"classes": classes, "num_queries": num_queries, "num_groups": num_groups,
                        "num_windows": num_windows}.items():  # fmt: skip
        check_positive(name, value)
    depth = sum(layer.name.startswith("block_") for layer in backbone.layers)
    stages = sorted({max(depth * part // 4, 1) for part in range(1, 5)})
    config = {**_DEFAULTS, "num_queries": num_queries, "group_detr": num_groups, "dropout": 0.0,
              "decoder_n_points": 2, "mask_downsample_ratio": None}  # fmt: skip
    options = SimpleNamespace(**config)
    return build_real_time_detector(backbone, stages, stages[:-1], num_windows, classes, options)


def _heads(decoder: Mapping[str, Any]) -> dict[str, str]:
    """Names of layers, and what stands before their arrays in the file."""
    heads = {
        "proposals": "", "decoder_norm": "transformer.decoder.norm", "class_head": "class_embed",
        "projector_norm": f"{_PROJECTOR}.1", "masks": "segmentation_head",
        "mask_projection": "segmentation_head.spatial_features_proj",
    }  # fmt: skip
    heads |= {f"box_{step}": f"bbox_embed.layers.{step}" for step in range(3)}
    parts = [f"m.{index}." for index in range(decoder["c2f_num_blocks"])]
    for part in ["cv1", "cv2", *(f"{x}{y}" for x in parts for y in ("cv1", "cv2"))]:
        ours = f"projector_{part.replace('.', '_')}"
        heads[ours] = f"{_PROJECTOR}.0.{part}.conv"
        heads[f"{ours}_norm"] = f"{_PROJECTOR}.0.{part}.bn"
    for index in range(decoder["decoder_layers"]):
        theirs = f"transformer.decoder.layers.{index}"
        heads |= {f"decoder_{index}_{k}": f"{theirs}.{v}" for k, v in _DECODER_LAYER.items()}
        for part in ("dwconv", "norm", "pwconv1"):
            heads[f"mask_block_{index}_{part}"] = f"segmentation_head.blocks.{index}.{part}"
    return heads
