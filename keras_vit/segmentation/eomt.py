"""EoMT: universal segmentation by queries among the tokens of a plain Vision Transformer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.checks import check_positive
from keras_vit.errors import CheckpointError
from keras_vit.families import keys
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Tensor
from keras_vit.layers.queries import CLASSES, MASKS, MaskLogits, QueryMask
from keras_vit.layers.rotary import RotaryTable
from keras_vit.layers.tokens import ClassToken
from keras_vit.models.attention import geometry_of
from keras_vit.models.graph import calls_of, find_blocks, single_input, token_norm
from keras_vit.models.pyramid import exact_gelu
from keras_vit.networks.network_file import Names, NetworkFile
from keras_vit.runtime.model import Model

_LAST = "channels_last"  # whatever `keras.config.image_data_format()` is
_EPSILON = 1e-6  # of the upscaling, whatever `layer_norm_eps` is
_VIT_KEYS = (
    "hidden_size num_hidden_layers num_attention_heads hidden_act layer_norm_eps image_size "
    "patch_size num_channels mlp_ratio intermediate_size use_swiglu_ffn use_gated_mlp"
)
_KEYS: keys.Rules = {
    **keys.harmless(
        f"{_VIT_KEYS} attention_dropout hidden_dropout_prob drop_path_rate layerscale_value "
        "num_register_tokens num_blocks num_queries num_upscale_blocks class_weight mask_weight "
        "dice_weight no_object_weight train_num_points oversample_ratio importance_sample_ratio "
        "query_bias key_bias value_bias proj_bias mlp_bias pos_embed_jitter pos_embed_rescale "
        "pos_embed_shift rope_theta"
    ),
    "hidden_act": keys.Only(("gelu",), "another activation in the heads"),
    "rope_parameters": keys.Part({
        "rope_type": keys.Only(("default",), "other rotary positions"),
        "rope_theta": keys.HARMLESS,
    }),
}  # fmt: skip
_DEFAULTS = {
    "num_attention_heads": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "image_size": 640,
    "patch_size": 16, "num_blocks": 4, "num_queries": 200, "num_upscale_blocks": 2,
}  # fmt: skip
# Parts of names: in the file, and in the layout of the Transformer.
_ON_DINOV2 = (
    ("layers.", "encoder.layer."), (".attention.out_proj.", ".attention.output.dense."),
    (".attention.q_proj.", ".attention.attention.query."),
    (".attention.k_proj.", ".attention.attention.key."),
    (".attention.v_proj.", ".attention.attention.value."),
    (".mlp.down_proj.", ".mlp.weights_out."),
)  # fmt: skip
_ON_DINOV3 = (("layers.", "layer."), ("layernorm.", "norm."))
_VIT_PREFIXES = ("embeddings.", "layers.", "layernorm.")
_POSITIONS = "embeddings.position_embeddings.weight"


def load_eomt(file: NetworkFile, **options: Any) -> Model:
    """EoMT (https://arxiv.org/abs/2503.19108), on DINOv2 with registers or on DINOv3."""
    file.check(_KEYS)
    config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
    vit = {key: config[key] for key in _VIT_KEYS.split() if key in config}
    if config["model_type"] == "eomt_dinov3":
        rope = config.get("rope_parameters", config)  # of transformers 4, the number itself
        vit |= {"model_type": "dinov3_vit", "rope_theta": rope.get("rope_theta", 100.0)}
        names: Names = _names(file, _ON_DINOV3)
    else:
        vit["model_type"] = "dinov2_with_registers"
        names = _names_on_dinov2(file)
    backbone = file.backbone(names, vit, **options)
    probabilities = file.read("attn_mask_probs").tolist()
    if not {0.0, 1.0}.issuperset(probabilities):
        raise CheckpointError(
            f"{file.file.path} was saved while masked attention was on for a random share of the "
            f"queries: attn_mask_probs is {probabilities}, and must be 0 or 1 for each block. Set "
            "it to 0, as at the end of training."
        )
    queries, blocks, steps = (config[f"num_{x}"] for x in ("queries", "blocks", "upscale_blocks"))
    masked = [bool(probability) for probability in probabilities]
    model = build_eomt(backbone, len(file.class_names), queries, blocks, steps, masked)
    theirs = {"queries": "query.weight", "class_head": "class_predictor"}
    theirs |= {f"mask_head_{step}": f"mask_head.fc{step}" for step in (1, 2, 3)}
    for step in range(config["num_upscale_blocks"]):
        for ours, part in (("conv", "conv1"), ("depthwise", "conv2"), ("norm", "layernorm2d")):
            theirs[f"upscale_{step}_{ours}"] = f"upscale_block.block.{step}.{part}"
    return file.finish(model, theirs, ("criterion.",))


def _names(file: NetworkFile, parts: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Arrays of the Transformer by the names of its layout."""
    found = (name for name in file.file.entries if name.startswith(_VIT_PREFIXES))
    return {functools.reduce(lambda x, part: x.replace(*part), parts, n): n for n in found}


def _names_on_dinov2(file: NetworkFile) -> Names:
    names = _names(file, _ON_DINOV2)
    count, width = file.file.entries[names.pop(_POSITIONS)].shape  # of patches alone
    names[_POSITIONS.removesuffix(".weight")] = (
        (1, count + 1, width),
        lambda: np.pad(file.read(_POSITIONS), ((1, 0), (0, 0)))[None],
    )
    for gate in [name for name in names if ".mlp.gate_proj." in name]:
        pair = [names.pop(gate), names.pop(gate.replace("gate_proj", "up_proj"))]
        rows, *rest = file.file.entries[pair[0]].shape
        names[gate.replace("gate_proj", "weights_in")] = (
            (2 * rows, *rest),  # one layer for both inputs of the gate
            lambda pair=pair: np.concatenate([file.read(name) for name in pair]),
        )
    return names


def load_eomt_back(arrays: dict[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    """The computed arrays by their names in the file: see `keras_vit.networks.saving`."""
    blocks = range(int(model.published["config"].get("num_blocks", _DEFAULTS["num_blocks"])))
    masked = {layer.name for layer in model.layers}
    probabilities = [f"query_mask_{index}" in masked for index in blocks]
    found = {"attn_mask_probs": np.array(probabilities, "float32")}
    for name, array in arrays.items():
        if name == _POSITIONS.removesuffix(".weight"):  # which the class token has not
            found[_POSITIONS] = array[0, 1:]
            token = keras.ops.convert_to_numpy(model.get_layer("class_token").token)
            found["embeddings.cls_token"] = token + array[:, :1]
        elif "weights_in" in name:
            ours = name.replace("encoder.layer.", "layers.")
            for part, rows in zip(("gate_proj", "up_proj"), np.split(array, 2), strict=True):
                found[ours.replace("weights_in", part)] = rows
    return found


def build_eomt(
    backbone: keras.Model,
    classes: int,
    num_queries: int = 200,
    num_blocks: int = 4,
    num_upscale_blocks: int = 2,
    masked: Sequence[bool] = (),
) -> Model:
    """Builds the encoder-only mask Transformer (https://arxiv.org/abs/2503.19108) on a backbone.

    Learned queries join the tokens before the last blocks. Each of them then predicts a class, and
    a mask: its product with a map of four times the grid of patches, with the defaults. The weights
    of the backbone are shared.

    Args:
        backbone: A Vision Transformer for images of one size. Its head and pooling are left out.
        classes: Number of classes `K`, without the class of no object.
        num_queries: Number of queries `Q`, as many segments of an image at most.
        num_blocks: Blocks that the queries take part in.
        num_upscale_blocks: How many times the map grows to twice its size.
        masked: For each of these blocks, whether queries attend to patches inside their predicted
            masks alone; empty for none, as after training.

    Returns:
        A `keras_vit.Model` to a dict of float32 logits: `masks_queries_logits` of shape
        `(B, Q, rows, columns)` and `class_queries_logits` of shape `(B, Q, K + 1)`, the last of
        them for no object.

    Raises:
        ValueError: If the backbone is a model inside another, has no norm of its tokens or too few
            blocks, or takes images of any size.

    Example:

    >>> backbone = keras_vit.ViTTi16(weights=None, include_top=False, input_shape=(128, 128, 3))
    >>> model = keras_vit.segmentation.build_eomt(backbone, classes=10, num_queries=20)
    >>> {name: tuple(x.shape) for name, x in model.output.items()}["masks_queries_logits"]
    (None, 20, 32, 32)
    """
    check_positive("classes", classes)
    check_positive("num_queries", num_queries)
    chain, blocks = find_blocks(backbone)
    norm = token_norm(backbone)
    if len(chain) > 1 or norm is None:
        raise ValueError(
            "EoMT needs a Vision Transformer itself, with a norm of its tokens. Received: "
            f"{backbone.name!r}. Build it with include_top=False and pooling=None."
        )
    if not 0 < num_blocks <= len(blocks) or len(masked) not in (0, num_blocks):
        raise ValueError(
            f"{backbone.name!r} has {len(blocks)} blocks, and `masked` a value for each that "
            f"queries take part in. Received: num_blocks={num_blocks}, masked={tuple(masked)}."
        )
    geometry, calls = geometry_of(backbone), calls_of(backbone)
    x = calls[blocks[-num_blocks]].input_tensors[0]
    width, prefix = x.shape[-1], num_queries + geometry.num_prefix_tokens
    rotation = ()
    table = next((layer for layer in calls if isinstance(layer, RotaryTable)), None)
    if table is not None:  # the queries are not turned, as the other tokens before the patches
        fields = {**table.get_config(), "num_prefix_tokens": prefix, "name": "query_rotary_table"}
        rotation = RotaryTable.from_config(fields)(calls[table].input_tensors[0])
    queries = ClassToken(num_queries, stddev=1.0, name="queries")  # as in the official code
    head = _head(width, classes, num_upscale_blocks)
    layers = {layer.name: layer for layer in (norm, queries, *head)}
    x = queries(x)
    masks = [
        QueryMask(x.shape[1], geometry.grid, name=f"query_mask_{index}") if is_masked else None
        for index, is_masked in enumerate(masked or [False] * num_blocks)
    ]
    outputs = decode(layers, blocks[-num_blocks:], x, rotation, masks, geometry.grid)
    return Model(single_input(backbone), outputs[-1], name=f"{backbone.name}_eomt")


def _head(width: int, classes: int, num_upscale_blocks: int) -> list[keras.Layer]:
    dense, exact = keras.layers.Dense, Float32Policy()
    layers = [
        dense(classes + 1, dtype=exact, name="class_head"),
        dense(width, exact_gelu, name="mask_head_1"),
        dense(width, exact_gelu, name="mask_head_2"),
        dense(width, name="mask_head_3"),
        MaskLogits(dtype=exact, name="mask_logits"),
    ]
    grow = {"activation": exact_gelu, "data_format": _LAST}
    smooth = {"padding": "same", "use_bias": False, "data_format": _LAST}
    for step in range(num_upscale_blocks):
        layers += [
            keras.layers.Conv2DTranspose(width, 2, 2, **grow, name=f"upscale_{step}_conv"),
            keras.layers.DepthwiseConv2D(3, **smooth, name=f"upscale_{step}_depthwise"),
            keras.layers.LayerNormalization(epsilon=_EPSILON, name=f"upscale_{step}_norm"),
        ]
    return layers


def decode(
    layers: dict[str, keras.Layer],
    blocks: list[Any],
    x: Tensor,
    rotation: Any,
    masks: Sequence[keras.Layer | None],
    grid: tuple[int, int],
) -> list[dict[str, Tensor]]:
    """Passes tokens, the queries first, through the last blocks.

    Args:
        layers: The norm of the tokens and the layers of the head, by their names.
        blocks: The blocks.
        x: Tokens of shape `(B, T, D)`.
        rotation: Of these tokens, for the blocks; empty without rotary positions.
        masks: The `QueryMask` of each block, or `None`.
        grid: Patches along (height, width).

    Returns:
        Predictions before each block that has a mask, and after the last block.
    """
    given: dict[str, Any] = {"rotation": rotation} if rotation else {}
    predictions = []
    for block, mask in zip(blocks, masks, strict=True):
        attention = {}
        if mask is not None:
            predictions.append(_predict(layers, x, grid))
            attention["attention_mask"] = mask(predictions[-1][MASKS])
        x = block(x, **given, **attention)
    return [*predictions, _predict(layers, x, grid)]


def _predict(layers: dict[str, keras.Layer], x: Tensor, grid: tuple[int, int]) -> dict[str, Tensor]:
    """Mask and class of every query, of tokens before the norm."""
    x = layers["encoder_norm"](x)
    patches = x.shape[1] - grid[0] * grid[1]
    maps = keras.ops.reshape(x[:, patches:], (-1, *grid, x.shape[-1]))
    x = x[:, : layers["queries"].num_tokens]
    classes = layers["class_head"](x)
    for step in (1, 2, 3):
        x = layers[f"mask_head_{step}"](x)
    for name, layer in layers.items():  # in order
        maps = layer(maps) if name.startswith("upscale_") else maps
    return {MASKS: layers["mask_logits"](x, maps), CLASSES: classes}
