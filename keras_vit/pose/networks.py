"""ViTPose: a heatmap for every joint of one person, by a small decoder on a plain ViT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.families import keys
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Tensor
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.dpt import NORM
from keras_vit.models.graph import single_input
from keras_vit.models.pyramid import conv, feature_maps
from keras_vit.networks.dpt_file import NAMED
from keras_vit.networks.network_file import NetworkFile
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import run_graph

_BACKBONE: keys.Rules = {
    **keys.VIT,
    **keys.BACKBONE,
    "model_type": keys.Only(("vitpose_backbone",), "another backbone"),
    **keys.harmless("mlp_ratio num_experts part_features"),
}
_KEYS: keys.Rules = {
    "backbone": NAMED,
    "backbone_config": keys.Part(_BACKBONE),
    **keys.harmless(
        "scale_factor use_simple_decoder edges use_timm_backbone use_pretrained_backbone "
        "backbone_kwargs"
    ),
}
_DEFAULTS = {"scale_factor": 4, "use_simple_decoder": True, "backbone_config": {}}
_SHIFT = 2  # pixels of zeros before the first patch: `padding=2` of the patches' convolution
_CHANNELS = 256  # of the classic decoder


def load_vitpose(file: NetworkFile, dataset_index: int = 0, **options: Any) -> Model:
    """ViTPose (https://arxiv.org/abs/2204.12484) and ViTPose+ (https://arxiv.org/abs/2212.04246).

    Args:
        file: The checkpoint.
        dataset_index: Which expert of a ViTPose+ the MLPs end in: 0 is that of COCO. Its rows are
            joined to those of all experts, so that the model is a plain ViT.
        **options: As for `NetworkFile.backbone`.

    Returns:
        A model to `heatmaps` of shape `(B, joints, rows, columns)` in float32.

    Raises:
        ValueError: If there is no such expert, or the file asks for another network.
    """
    file.check(_KEYS)
    config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
    described, names = config["backbone_config"], file.after("backbone.")
    experts = {name for name in names if ".mlp.experts." in name}
    count = len({name.split(".")[5] for name in experts}) or 1
    if not 0 <= dataset_index < count:
        raise ValueError(
            f"`dataset_index` must be less than {count}, the number of experts in "
            f"{file.file.path}. Received: {dataset_index}."
        )
    vit = {"image_size": (256, 192), **described, "model_type": "vit"}
    vit = {key: value for key, value in vit.items() if key in keys.VIT}
    backbone = file.backbone(_plain_names(file, names, dataset_index), vit, **options)
    indices = [f"stage{index}" for index in described.get("out_indices") or ()]
    stages = described.get("out_features") or indices
    last = f"block_{int(stages[-1][5:] or 0) - 1}" if stages else -1  # "stem" is no block
    maps = feature_maps(_shift_patches(backbone), [last])
    (x,) = maps.output.values()  # (B, rows, columns, D)
    simple = config["use_simple_decoder"]
    if simple:
        x = keras.layers.ReLU(name="pose_relu")(x)
        x = ResizeMaps(factor=config["scale_factor"], name="pose_resize")(x)
    else:
        x = _enlarge(x)
    policy = {"dtype": Float32Policy()}
    x = conv(len(file.class_names), 3 if simple else 1, "pose_conv", **policy)(x)
    x = keras.layers.Permute((3, 1, 2), name="heatmaps", **policy)(x)
    model = Model(single_input(maps), {"heatmaps": x}, name=backbone.name)
    if experts:  # the model is of one
        described = {**described, "num_experts": 1}
        file.config = {**file.config, "backbone_config": described}
    theirs = {f"pose_{part}_{step}": f"head.{name}{step}" for step in (1, 2)
              for part, name in (("up", "deconv"), ("norm", "batchnorm"))}  # fmt: skip
    unused = tuple(f"backbone.{name}" for name in experts)
    return file.finish(model, {**theirs, "pose_conv": "head.conv"}, unused)


def load_vitpose_back(arrays: dict[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    """The computed arrays by their names in the file: see `keras_vit.networks.saving`."""
    found = {}
    for name, array in arrays.items():
        if name.endswith("position_embeddings"):
            array = np.pad(array, ((0, 0), (1, 0), (0, 0)))  # nothing is added to all
        found["backbone." + name.replace("output.dense", "mlp.fc2")] = array
    return found


def _plain_names(file: NetworkFile, names: dict[str, str], expert: int) -> dict[str, Any]:
    """The arrays of a plain ViT by transformers' names: those of the file, and computed ones."""
    found: dict[str, Any] = {}
    for name, theirs in names.items():
        ours = name.replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")
        shape, rest = file.file.entries[theirs].shape, theirs.replace("fc2", f"experts.{expert}")
        if name == "embeddings.position_embeddings":
            found[ours] = (1, shape[1] - 1, shape[2]), _positions(file, theirs)
        elif rest != theirs and rest in file.file.entries:
            rows = shape[0] + file.file.entries[rest].shape[0]
            found[ours] = (rows, *shape[1:]), _joined(file, theirs, rest)
        elif ".mlp.experts." not in name:
            found[ours] = theirs
    return found


def _positions(file: NetworkFile, name: str) -> Callable[[], np.ndarray]:
    """A function to the positions of patches, with that of a class token added to all."""
    return lambda: file.read(name)[:, 1:] + file.read(name)[:, :1]  # (1, N, D)


def _joined(file: NetworkFile, *names: str) -> Callable[[], np.ndarray]:
    """A function to the rows of several arrays."""
    return lambda: np.concatenate([file.read(name) for name in names])


def _shift_patches(backbone: Model) -> Model:
    """The backbone with patches that begin two pixels before the image, above and at the left."""
    encoder, last = backbone.get_layer("patch_encoder"), {"data_format": "channels_last"}
    pad = keras.layers.ZeroPadding2D(((_SHIFT, 0), (_SHIFT, 0)), **last, name="patch_padding")
    crop = keras.layers.Cropping2D(((0, _SHIFT), (0, _SHIFT)), **last, name="patch_cropping")

    def function_of(call: Any) -> Callable[..., Any]:
        is_encoder = call.operation is encoder
        return (lambda x: encoder(crop(pad(x)))) if is_encoder else call.operation

    tensors = run_graph(backbone, backbone.inputs, backbone.outputs, function_of)
    return Model(single_input(backbone), tensors[id(backbone.outputs[0])], name=backbone.name)


def _enlarge(x: Tensor) -> Tensor:
    """The classic decoder before its last convolution: maps of four times the size."""
    for step in (1, 2):
        x = keras.layers.Conv2DTranspose(
            _CHANNELS, 4, 2, "same", data_format="channels_last", use_bias=False,
            name=f"pose_up_{step}",
        )(x)  # fmt: skip
        x = keras.layers.BatchNormalization(**NORM, name=f"pose_norm_{step}")(x)
        x = keras.layers.ReLU(name=f"pose_relu_{step}")(x)
    return x
