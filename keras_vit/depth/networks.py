"""Depth Anything and DPT: depth of every pixel by a DPT head on a Vision Transformer."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.families import keys
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Tensor
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.dpt import DptHead, dpt_names, fuse_dpt
from keras_vit.models.graph import single_input
from keras_vit.models.pyramid import conv
from keras_vit.networks.dpt_file import LAST, NAMED, UNUSED, maps_of_backbone, read_dpt
from keras_vit.networks.network_file import ANY_SIZE, NetworkFile
from keras_vit.runtime.model import Model

_KEYS: keys.Rules = {
    "head_in_index": LAST,
    "backbone": NAMED,
    **keys.harmless(
        "backbone_config patch_size reassemble_hidden_size reassemble_factors neck_hidden_sizes "
        "fusion_hidden_size head_hidden_size depth_estimation_type max_depth use_timm_backbone "
        "use_pretrained_backbone backbone_kwargs"
    ),
}
_DEFAULTS = {
    "reassemble_factors": (4, 2, 1, 0.5), "neck_hidden_sizes": (48, 96, 192, 384),
    "fusion_hidden_size": 64, "head_hidden_size": 32, "depth_estimation_type": "relative",
    "max_depth": 1,
}  # fmt: skip


def load_depth_anything(file: NetworkFile, **options: Any) -> Model:
    """Depth Anything V1 and V2 (https://arxiv.org/abs/2401.10891, 2406.09414)."""
    file.check(_KEYS)
    options["input_shape"] = options.get("input_shape") or ANY_SIZE
    config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
    maps, levels, _ = maps_of_backbone(file, **options)
    widths, factors = tuple(config["neck_hidden_sizes"]), tuple(config["reassemble_factors"])
    head = DptHead(config["fusion_hidden_size"], widths, factors, batch_norm=False, bias=True)
    x = fuse_dpt(levels, [], head)
    x = conv(head.channels // 2, 3, "depth_conv_1")(x)
    x = ResizeMaps(method="align_corners", name="depth_resize")(x, maps.inputs[0])
    x = conv(config["head_hidden_size"], 3, "depth_conv_2", activation="relu")(x)
    is_metric = config["depth_estimation_type"] == "metric"
    model = _to_depth(maps, x, "sigmoid" if is_metric else "relu", float(config["max_depth"]))
    theirs = {f"depth_conv_{step}": f"head.conv{step}" for step in (1, 2, 3)}
    return file.finish(model, {**dpt_names(head), **theirs}, UNUSED)


def load_dpt(file: NetworkFile, **options: Any) -> Model:
    """DPT (https://arxiv.org/abs/2103.13413), on a ViT of the paper or on DINOv2."""
    options["input_shape"] = options.get("input_shape") or ANY_SIZE
    maps, x, head = read_dpt(file, **options)
    if file.config.get("add_projection"):
        x = conv(head.channels, 3, "depth_projection", activation="relu")(x)
    x = conv(head.channels // 2, 3, "depth_conv_1")(x)
    x = ResizeMaps(method="align_corners", factor=2, name="depth_resize")(x)
    x = conv(32, 3, "depth_conv_2", activation="relu")(x)
    theirs = {
        "depth_projection": "head.projection", "depth_conv_1": "head.head.0",
        "depth_conv_2": "head.head.2", "depth_conv_3": "head.head.4",
    }  # fmt: skip
    return file.finish(_to_depth(maps, x, "relu", 1.0), {**dpt_names(head), **theirs}, UNUSED)


def _to_depth(maps: Model, x: Tensor, activation: str, scale: float) -> Model:
    """A model to depth of shape `(B, H, W)` in float32."""
    options = {"activation": activation, "dtype": Float32Policy()}
    x = conv(1, 1, "depth_conv_3", **options)(x)
    x = keras.ops.squeeze(x, -1)
    x = keras.layers.Rescaling(scale, dtype=Float32Policy(), name="predicted_depth")(x)
    return Model(single_input(maps), {"predicted_depth": x}, name=maps.name.replace("_maps", ""))
