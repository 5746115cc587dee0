"""The parts of DPT's files that depth and segmentation share: the Transformer, and the neck."""

from __future__ import annotations

from typing import Any

from keras_vit.families import keys
from keras_vit.layers.layer import Tensor
from keras_vit.models.dpt import DptHead, fuse_dpt
from keras_vit.models.pyramid import feature_maps
from keras_vit.networks.network_file import NetworkFile
from keras_vit.runtime.model import Model

NAMED = keys.Only((), "a backbone that is named, not described (`backbone_config`)")
LAST = keys.Only((-1,), "another map for the head")
_KEYS: keys.Rules = {
    **keys.VIT,
    "head_in_index": LAST,
    "is_hybrid": keys.Only((False,), "a stem of ResNet stages (DPT-Hybrid)"),
    "readout_type": keys.Only(("project", "ignore"), "another way to read the class token"),
    "backbone": NAMED,
    **keys.harmless(
        "backbone_config backbone_out_indices backbone_featmap_shape neck_ignore_stages "
        "reassemble_factors neck_hidden_sizes fusion_hidden_size add_projection "
        "use_batch_norm_in_fusion_residual use_bias_in_fusion_residual use_auxiliary_head "
        "auxiliary_loss_weight semantic_loss_ignore_index semantic_classifier_dropout "
        "use_timm_backbone use_pretrained_backbone backbone_kwargs"
    ),
}
# Of the coarsest map, which nothing is added to.
UNUSED = ("neck.fusion_stage.layers.0.residual_layer1.",)
_DEFAULTS = {
    "reassemble_factors": (4, 2, 1, 0.5), "neck_hidden_sizes": (96, 192, 384, 768),
    "fusion_hidden_size": 256, "backbone_out_indices": (2, 5, 8, 11), "readout_type": "project",
}  # fmt: skip


def maps_of_backbone(
    file: NetworkFile, prefix_tokens: bool = False, **options: Any
) -> tuple[Model, list[Tensor], list[Tensor]]:
    """The backbone of `backbone_config`: its model, maps, and class tokens if they are read."""
    config = {"model_type": "dinov2", "apply_layernorm": True, **file.config["backbone_config"]}
    backbone = file.backbone(file.after("backbone."), config, **options)
    depth = sum(layer.name.startswith("block_") for layer in backbone.layers)
    stages = config.get("out_indices") or [int(x[5:]) for x in config["out_features"]]
    blocks = [index - 1 if index > 0 else depth + index for index in stages]
    return _read(feature_maps(backbone, blocks, config["apply_layernorm"], prefix_tokens))


def _read(maps: Model) -> tuple[Model, list[Tensor], list[Tensor]]:
    outputs = maps.output
    tokens = [outputs[name][:, 0] for name in outputs if name.endswith("_prefix")]
    return maps, [x for name, x in outputs.items() if not name.endswith("_prefix")], tokens


def read_dpt(file: NetworkFile, **options: Any) -> tuple[Model, Tensor, DptHead]:
    """The backbone of DPT, its fused map, and what its head is like."""
    file.check(_KEYS)
    config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
    reads = config["readout_type"] == "project"
    if config.get("backbone_config"):
        maps, levels, tokens = maps_of_backbone(file, reads, **options)
    else:
        vit = {k: v for k, v in file.config.items() if k in keys.VIT} | {"model_type": "vit"}
        names = file.after("dpt.")
        backbone = file.backbone(names, vit, position_resize="bilinear", **options)
        blocks = list(config["backbone_out_indices"])
        maps, levels, tokens = _read(feature_maps(backbone, blocks, False, reads))
    batch_norm = bool(config.get("use_batch_norm_in_fusion_residual"))
    bias = config.get("use_bias_in_fusion_residual", not batch_norm)
    widths, factors = tuple(config["neck_hidden_sizes"]), tuple(config["reassemble_factors"])
    head = DptHead(config["fusion_hidden_size"], widths, factors, batch_norm, bias, True)
    return maps, fuse_dpt(levels, tokens, head), head
