"""YOLOS: boxes of objects from tokens of their own in a Vision Transformer."""

from __future__ import annotations

import math
import re
from typing import Any

import keras
import numpy as np

from keras_vit.errors import CheckpointMismatchError
from keras_vit.families import keys
from keras_vit.layers.layer import Tensor
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.models.graph import calls_of, perceptron, single_input
from keras_vit.models.set_prediction import LOSS_DEFAULTS, DetectionTransformer
from keras_vit.networks.network_file import ANY_SIZE, NetworkFile
from keras_vit.resize import resize_positions
from keras_vit.runtime.model import Model

_KEYS: keys.Rules = {
    **keys.VIT,
    "auxiliary_loss": keys.Only((False,), "losses of the blocks before the last"),
    **keys.harmless(f"num_detection_tokens use_mid_position_embeddings {' '.join(LOSS_DEFAULTS)}"),
}
_DEFAULTS = {**keys.DEFAULTS, "image_size": (512, 864), "patch_size": 16}
_TRANSFORMER, _RESIZE = "vit.", "bicubic_plain"
_TOKENS = "vit.embeddings.detection_tokens"
_POSITIONS = "vit.embeddings.position_embeddings"
_MID_POSITIONS = "vit.encoder.mid_position_embeddings"
# Names of YOLOS, and those of DINOv2 with registers: detection tokens are registers with positions.
_NAMES = {
    "layernorm_before": "norm1", "layernorm_after": "norm2", "intermediate.dense": "mlp.fc1",
    r"(\d)\.output\.dense": r"\1.mlp.fc2",
}  # fmt: skip


def load_yolos(file: NetworkFile, **options: Any) -> DetectionTransformer:
    """YOLOS (https://arxiv.org/abs/2106.00666).

    Its detection tokens stand before the patches here, and after them there: to attention it is
    the same.
    """
    file.check(_KEYS)
    config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
    tokens, positions = file.read(_TOKENS), file.read(_POSITIONS)
    count = tokens.shape[1]
    own = {
        "embeddings.register_tokens": tokens + positions[:, -count:],
        "embeddings.position_embeddings": positions[:, :-count],
    }
    names: dict[str, Any] = {
        _plain_name(name): theirs
        for name, theirs in file.after(_TRANSFORMER).items()
        if theirs not in (_TOKENS, _POSITIONS, _MID_POSITIONS)
    }
    names |= {name: (array.shape, lambda array=array: array) for name, array in own.items()}
    vit = {key: config[key] for key in keys.without("intermediate_size", keys.VIT) if key in config}
    patch = config["patch_size"]
    grid = [side // patch for side in np.broadcast_to(config["image_size"], 2).tolist()]
    vit |= {"model_type": "dinov2_with_registers", "image_size": [side * patch for side in grid]}
    options["input_shape"] = options.get("input_shape") or ANY_SIZE
    backbone = file.backbone(names, vit, position_resize=_RESIZE, **options)
    x = backbone.output
    if config.get("use_mid_position_embeddings", True):
        x = _with_mid_positions(backbone, file, grid, count)
    x = x[:, 1 : 1 + count]
    outputs = {
        "logits": perceptron(x, "class", len(file.class_names) + 1, "relu"),
        "pred_boxes": perceptron(x, "box", 4, "relu", "sigmoid"),
    }
    model = DetectionTransformer(single_input(backbone), outputs, name=backbone.name)
    heads = {"class": "class_labels_classifier", "box": "bbox_predictor"}
    file.finish(
        model, {f"{ours}_{i}": f"{heads[ours]}.layers.{i}" for ours in heads for i in range(3)}
    )
    return model


def load_yolos_back(arrays: dict[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    """The computed arrays by their names in the file: see `keras_vit.networks.saving`."""
    tokens = arrays["embeddings.register_tokens"]
    count = tokens.shape[1]
    table = np.pad(arrays["embeddings.position_embeddings"], ((0, 0), (0, count), (0, 0)))
    found = {_TOKENS: tokens, _POSITIONS: table}  # of which the tokens have theirs
    mid = [x for x in model.variables if x.path.startswith("mid_position_")]
    if mid:
        tables = np.stack([keras.ops.convert_to_numpy(x) for x in mid])
        parts = tables[:, :, :1], tables[:, :, 1 + count :], tables[:, :, 1 : 1 + count]
        found[_MID_POSITIONS] = np.concatenate(parts, axis=2)
    return found


def _plain_name(name: str) -> str:
    for theirs, plain in _NAMES.items():
        name = re.sub(theirs, plain, name)
    return name


def _with_mid_positions(
    backbone: Model, file: NetworkFile, grid: list[int], num_tokens: int
) -> Tensor:
    """Tokens after the last norm, with positions that are added after each block but the last."""
    layers = {layer.name: layer for layer in backbone.layers}
    depth = sum(name.startswith("block_") for name in layers)
    calls = calls_of(backbone)
    encoder = next(layer for layer in layers.values() if isinstance(layer, PatchEncoder))
    maps = [calls[encoder].outputs[0]] if encoder.any_size else []
    first = layers["position_embedding"]
    tables = file.read(_MID_POSITIONS)
    expected = (depth - 1, 1, 1 + num_tokens + math.prod(grid), backbone.output.shape[-1])
    if tables.shape != expected:
        raise CheckpointMismatchError(
            f"{_MID_POSITIONS} in {file.file.path} has the shape {tables.shape}, not {expected}."
        )
    tables = tables[:, 0]  # (blocks - 1, T, D)
    prefix = np.concatenate([tables[:, :1], tables[:, -num_tokens:]], axis=1)
    patches = resize_positions(tables[:, 1:-num_tokens], grid, first.grid, _RESIZE)
    x = calls[layers["block_0"]].input_tensors[0]
    for index in range(depth):
        x = layers[f"block_{index}"](x)
        if index < depth - 1:
            add = AddPositionEmbedding(
                first.grid, 1 + num_tokens, resize=_RESIZE, name=f"mid_position_{index}"
            )
            x = add(x, *maps)
            add.embedding.assign(np.concatenate([prefix[index], patches[index]])[None])
            file.loaded.append(add.embedding.path)
    return layers["encoder_norm"](x)
