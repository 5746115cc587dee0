"""Published networks for semantic segmentation: DPT, and BEiT under UPerNet."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from keras_vit.errors import CheckpointError
from keras_vit.families import keys
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Tensor
from keras_vit.layers.queries import CLASSES, MASKS
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.dpt import NORM, dpt_names
from keras_vit.models.graph import single_input
from keras_vit.models.pyramid import conv, exact_gelu, feature_maps, up_conv
from keras_vit.networks.dpt_file import UNUSED, read_dpt
from keras_vit.networks.network_file import NetworkFile, stated_size
from keras_vit.runtime.model import Model
from keras_vit.train.mask_trainer import PredictedSegmenter

_AUXILIARY = "auxiliary_head."  # which helps training alone
_BEIT: keys.Rules = {
    **keys.ENCODER,
    **keys.BACKBONE,
    **keys.harmless(
        "use_absolute_position_embeddings use_relative_position_bias use_mean_pooling vocab_size "
        "use_shared_relative_position_bias layer_scale_init_value pool_scales use_auxiliary_head "
        "add_fpn auxiliary_loss_weight auxiliary_channels auxiliary_num_convs "
        "auxiliary_concat_input semantic_loss_ignore_index"
    ),
}


def load_dpt_segmenter(file: NetworkFile, **options: Any) -> Model:
    """DPT for segmentation (https://arxiv.org/abs/2103.13413), in the size of its processor."""
    if file.processor:
        options["input_shape"] = options.get("input_shape") or (*stated_size(file.processor), 3)
    maps, x, head = read_dpt(file, **options)
    x = conv(head.channels, 3, "segmentation_fuse", use_bias=False)(x)
    x = keras.layers.BatchNormalization(**NORM, name="segmentation_norm")(x)
    x = keras.layers.ReLU(name="segmentation_relu")(x)
    rate = file.config.get("semantic_classifier_dropout", 0.1)
    x = keras.layers.Dropout(rate, name="segmentation_dropout")(x)
    x = _classify(file, x)
    x = ResizeMaps(method="align_corners", factor=2, dtype=Float32Policy(), name="resize")(x)
    names = {"segmentation_fuse": "head.head.0", "segmentation_norm": "head.head.1",
             "segmentation_head": "head.head.4"}  # fmt: skip
    model = _to_logits(file, maps, x)
    return file.finish(model, {**dpt_names(head), **names}, (*UNUSED, _AUXILIARY))


def load_beit_segmenter(file: NetworkFile, **options: Any) -> Model:
    """BEiT (https://arxiv.org/abs/2106.08254) under UPerNet (https://arxiv.org/abs/1807.10221)."""
    file.check(_BEIT)
    backbone = file.backbone(file.after("beit."), file.config, **options)
    blocks = [index - 2 for index in file.config["out_indices"]]  # 1 is the input of the first
    if len(blocks) != 4 or min(blocks) < 0:
        raise CheckpointError(
            f"{file.file.path}: UPerNet reads four blocks from the first on. Received: out_indices="
            f"{file.config['out_indices']} in config.json, of which 2 is the first block."
        )
    maps = feature_maps(backbone, blocks, norm=False)
    width, names = backbone.output_shape[-1], {}

    def unit(x: Tensor, name: str, theirs: str, kernel: int) -> Tensor:
        """A convolution, a batch norm and ReLU."""
        x = conv(width, kernel, name, use_bias=False)(x)
        x = keras.layers.BatchNormalization(**NORM, name=f"{name}_norm")(x)
        names[name], names[f"{name}_norm"] = f"{theirs}.conv", f"{theirs}.bn"
        return keras.layers.ReLU(name=f"{name}_relu")(x)

    levels = _pyramid(list(maps.output.values()), width, names)
    coarsest, scales = levels[-1], file.config.get("pool_scales", (1, 2, 3, 6))
    pooled = [coarsest]
    for number, scale in enumerate(scales):
        x = ResizeMaps(scale, "adaptive_mean", name=f"pool_{scale}")(coarsest)
        x = unit(x, f"pool_{scale}_conv", f"decode_head.psp_modules.{number}.1", 1)
        pooled.append(ResizeMaps(name=f"pool_{scale}_resize")(x, coarsest))
    x = keras.layers.Concatenate(name="pools")(pooled)
    sums = [unit(x, "pools_conv", "decode_head.bottleneck", 3)]
    for number in (2, 1, 0):
        own = unit(levels[number], f"lateral_{number}", f"decode_head.lateral_convs.{number}", 1)
        up = ResizeMaps(name=f"down_{number}")(sums[0], own)
        sums.insert(0, keras.layers.Add(name=f"add_{number}")([own, up]))
    outs = [
        unit(x, f"smooth_{number}", f"decode_head.fpn_convs.{number}", 3)
        for number, x in enumerate(sums[:-1])
    ]
    outs.append(sums[-1])
    outs[1:] = [
        ResizeMaps(name=f"out_{number}")(x, outs[0]) for number, x in enumerate(outs[1:], 1)
    ]
    x = keras.layers.Concatenate(name="outs")(outs)
    x = _classify(file, unit(x, "segmentation_fuse", "decode_head.fpn_bottleneck", 3))
    names["segmentation_head"] = "decode_head.classifier"
    return file.finish(_to_logits(file, maps, x), names, (_AUXILIARY, "beit.pooler."))


# Segmenters of networks, which are built and traced once.
_SEGMENTERS: weakref.WeakKeyDictionary[Any, Model] = weakref.WeakKeyDictionary()


def is_network(model: keras.Model) -> bool:
    """Whether a model is EoMT, or a published network with logits of another size than images."""
    outputs = model.output if hasattr(model, "output_names") else None
    names = outputs.keys() if isinstance(outputs, dict) else set()
    is_published = getattr(model, "published", None) is not None
    return names == {MASKS, CLASSES} or (names == {"logits"} and is_published)


def as_segmenter(model: Model) -> Model:
    """A published network as `build_segmenter` builds models, with the same weights.

    Args:
        model: A network of `from_pretrained` for semantic segmentation, or EoMT.

    Returns:
        A model to float32 logits of shape `(B, H, W, K)`, in the size of the images, for `fit`,
        `evaluate_masks`, `export_segmenter` and sliding windows. Of EoMT they are sums of products
        of probabilities over the queries, and `fit` is an error. Other models stay as they are.
    """
    if not is_network(model) or model in _SEGMENTERS:
        return _SEGMENTERS.get(model, model)
    outputs, exact = model.output, {"dtype": Float32Policy()}
    x = outputs["logits"] if "logits" in outputs else outputs[MASKS]
    x = keras.layers.Permute((2, 3, 1), **exact, name="logits_last")(x)
    x = ResizeMaps(**exact, name="logits_of_pixels")(x, model.inputs[0])
    if CLASSES in outputs:
        classes = keras.layers.Softmax(**exact)(outputs[CLASSES])[:, None, :, :-1]  # (B, 1, Q, K)
        x = keras.layers.Activation("sigmoid", **exact)(x)  # (B, H, W, Q)
        x = keras.ops.matmul(x, classes)
    kind = PredictedSegmenter if CLASSES in outputs else Model
    segmenter = _SEGMENTERS[model] = kind(single_input(model), x, name=model.name)
    segmenter.published, segmenter.load_report = model.published, model.load_report
    segmenter.class_names = model.class_names
    return segmenter


def _pyramid(maps: list[Tensor], width: int, names: dict[str, str]) -> list[Tensor]:
    """Maps at 4, 2, 1 and 1/2 times the grid of patches."""
    names |= {"fpn_1": "fpn1.0", "fpn_1_norm": "fpn1.1", "fpn_1_again": "fpn1.3", "fpn_2": "fpn2.0"}
    x = up_conv(width, 2, "fpn_1")(maps[0])
    x = keras.layers.BatchNormalization(**NORM, name="fpn_1_norm")(x)
    x = keras.layers.Activation(exact_gelu, name="fpn_1_gelu")(x)
    finest = up_conv(width, 2, "fpn_1_again")(x)
    fine = up_conv(width, 2, "fpn_2")(maps[1])
    pool = keras.layers.MaxPooling2D(2, data_format="channels_last", name="fpn_4")
    return [finest, fine, maps[2], pool(maps[3])]


def _classify(file: NetworkFile, x: Tensor) -> Tensor:
    return conv(len(file.class_names), 1, "segmentation_head", dtype=Float32Policy())(x)


def _to_logits(file: NetworkFile, maps: Model, x: Tensor) -> Model:
    """A model to logits of shape `(B, K, rows, columns)`, with the names of the classes."""
    logits = keras.layers.Permute((3, 1, 2), dtype=Float32Policy(), name="logits")(x)
    name = maps.name.replace("_maps", "_segmenter")
    return Model(single_input(maps), {"logits": logits}, name=name)
