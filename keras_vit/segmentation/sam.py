"""Segment Anything (https://arxiv.org/abs/2304.02643): its two models, and their files."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_whole_patches
from keras_vit.config import Preprocessing
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.families import keys
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.decomposed import DecomposedPositions, PaddedWindowAttention
from keras_vit.layers.float32 import Float32Policy, float32_dense, float32_norm
from keras_vit.layers.layer import Tensor
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.prompts import CrossAttention, FewKeys, FewQueries, FourierPositions
from keras_vit.layers.queries import MaskLogits
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken
from keras_vit.models.pyramid import conv, exact_gelu, up_conv
from keras_vit.networks.network_file import NetworkFile
from keras_vit.resize import resize_matrix, resize_positions
from keras_vit.runtime.model import Model, Normalization

# Values of the configuration classes of transformers, for keys that a file lacks.
DEFAULTS: dict[str, dict[str, Any]] = {
    "vision_config": {
        "hidden_size": 768, "output_channels": 256, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 1024, "patch_size": 16, "layer_norm_eps": 1e-6,
        "attention_dropout": 0.0, "qkv_bias": True, "mlp_ratio": 4.0, "use_rel_pos": True,
        "window_size": 14, "global_attn_indexes": (2, 5, 8, 11), "num_pos_feats": 128,
        "mlp_dim": None,
    },
    "prompt_encoder_config": {
        "hidden_size": 256, "image_size": 1024, "patch_size": 16, "mask_input_channels": 16,
        "layer_norm_eps": 1e-6,
    },
    "mask_decoder_config": {
        "hidden_size": 256, "mlp_dim": 2048, "num_hidden_layers": 2, "num_attention_heads": 8,
        "attention_downsample_rate": 2, "num_multimask_outputs": 3, "iou_head_depth": 3,
        "iou_head_hidden_dim": 256, "layer_norm_eps": 1e-6,
    },
}  # fmt: skip
# Further keys of each part that change nothing, and those that are checked.
_RULES: dict[str, tuple[str, keys.Rules]] = {
    "vision_config": ("dropout scale intermediate_size projection_dim", {
        "hidden_act": keys.Only(("gelu",), "another activation"),
        "use_abs_pos": keys.Only((True,), "no absolute positions"),
        "num_channels": keys.Only((3,), "other images than RGB"),
    }),
    "prompt_encoder_config": ("image_embedding_size", {
        "hidden_act": keys.Only(("gelu",), "another activation"),
        "num_point_embeddings": keys.Only((4,), "other kinds of points"),
    }),
    "mask_decoder_config": ("", {"hidden_act": keys.Only(("relu",), "another activation")}),
}  # fmt: skip
_KEYS: keys.Rules = {
    part: keys.Part({**keys.COMMON, **keys.harmless(f"{' '.join(DEFAULTS[part])} {more}"), **rules})
    for part, (more, rules) in _RULES.items()
}
_PROCESSOR = {"image_processor_type": "SamImageProcessor", "resample": 2}
_FLOAT32: dict[str, Any] = {"dtype": Float32Policy()}
_SHARED = "shared_image_embedding.positional_embedding"
_TIED = "prompt_encoder.shared_embedding.positional_embedding"  # the same array
# Labels of tokens for points: outside and inside of an object, and two corners of a box.
OUTSIDE, INSIDE, UPPER_LEFT, LOWER_RIGHT, NO_POINT = 0, 1, 2, 3, -1
_LABELS = {NO_POINT: "not_a_point_embed", **{label: f"point_embed.{label}" for label in range(4)}}
# Layers of a block, and what stands before their arrays in the file.
_BLOCK = {
    "attention_norm": "layer_norm1", "attention": "attn", "attention/qkv": "attn.qkv",
    "attention/output": "attn.proj", "mlp_norm": "layer_norm2", "mlp/hidden": "mlp.lin1",
    "mlp/output": "mlp.lin2",
}  # fmt: skip
# By the last word of their names in the file.
_ATTENTIONS = {"attn": CrossAttention, "image": FewQueries, "token": FewKeys}
Names = dict[str, str]  # paths of layers, and what stands before their arrays in the file


def load_sam(
    file: NetworkFile,
    input_shape: tuple[int, int, int] | None = None,
    include_preprocessing: bool = True,
) -> tuple[Model, Model]:
    """Builds and loads the encoder and the decoder of `SamModel`: see `load_promptable`."""
    file.check(_KEYS)
    file.processor = {**_PROCESSOR, **file.processor}
    vision, prompt, decoder = (
        {**values, **{k: v for k, v in (file.config.get(part) or {}).items() if v is not None}}
        for part, values in DEFAULTS.items()
    )
    shape = input_shape or (vision["image_size"], vision["image_size"], 3)
    patch = vision["patch_size"]
    check_whole_patches(shape[:2], (patch, patch))
    _check_sizes(file, vision, prompt, decoder)
    size, grid = shape[:2], (shape[0] // patch, shape[1] // patch)
    preprocessing = file.preprocessing if include_preprocessing else None
    encoder, names = build_encoder(vision, size, preprocessing)
    masks, more = build_decoder(prompt, decoder, size, grid)
    if _SHARED not in file.file.entries:
        more["prompt_positions"] = _TIED
    fit = functools.partial(_resized, ((vision["image_size"] // patch,) * 2, grid))
    file.config, file.processor = _with_size(file, size)
    return file.finish(encoder, {**names, **more}, (_TIED,), (masks,), fit), masks


def build_encoder(
    config: Mapping[str, Any], size: tuple[int, int], preprocessing: Preprocessing | None
) -> tuple[Model, Names]:
    """The image encoder, and names of its layers in files.

    Args:
        config: `vision_config`, complete.
        size: Pixels along (height, width).
        preprocessing: Normalisation of pixels in [0, 255]; `None` leaves it to the data.

    Returns:
        A model from images `(B, H, W, 3)` to float32 maps `(B, rows, columns, channels)`.
    """
    patch, width, heads = (config[x] for x in ("patch_size", "hidden_size", "num_attention_heads"))
    epsilon, grid = config["layer_norm_eps"], (size[0] // patch, size[1] // patch)
    names = {
        "patch_encoder/projection": "patch_embed.projection", "position_embedding": "pos_embed",
    }  # fmt: skip
    images = x = keras.Input((*size, 3), name="images")
    if preprocessing is not None:
        x = Normalization(preprocessing, 3, **_FLOAT32, name="preprocessing")(x)
    x = PatchEncoder(patch, width, name="patch_encoder")(x)  # (B, N, D)
    x = AddPositionEmbedding(grid, 0, name="position_embedding")(x)
    options = {
        "num_heads": heads,
        "mlp_dim": config["mlp_dim"] or int(width * config["mlp_ratio"]),
        "norm_epsilon": epsilon,
        "gelu": "exact",
        "attention_dropout_rate": config["attention_dropout"],
        "without_bias": () if config["qkv_bias"] else ("query", "key", "value"),
    }
    for index in range(config["num_hidden_layers"]):
        is_global = index in config["global_attn_indexes"] or not config["window_size"]
        window = grid if is_global else (config["window_size"],) * 2
        make = functools.partial(PaddedWindowAttention, grid=grid, window_size=window)
        attention = (SelfAttention if is_global else make)(
            **options,
            name="attention",
            positions=DecomposedPositions(window) if config["use_rel_pos"] else None,
        )
        x = TransformerBlock(**options, attention=attention, name=f"block_{index}")(x)
        for ours, theirs in _BLOCK.items():
            names[f"block_{index}/{ours}"] = f"layers.{index}.{theirs}"
    x = keras.layers.Reshape((*grid, width), name="maps")(x)
    for step, kernel in ((1, 1), (2, 3)):
        x = conv(config["output_channels"], kernel, f"neck_conv_{step}", use_bias=False)(x)
        x = float32_norm(f"neck_norm_{step}")(x)
        names[f"neck_conv_{step}"] = f"neck.conv{step}"
        names[f"neck_norm_{step}"] = f"neck.layer_norm{step}"
    names = {ours: f"vision_encoder.{theirs}" for ours, theirs in names.items()}
    return Model(images, x, name="sam_encoder"), names


def build_decoder(
    prompt: Mapping[str, Any],
    config: Mapping[str, Any],
    size: tuple[int, int],
    grid: tuple[int, int],
) -> tuple[Model, Names]:
    """The prompt encoder and the mask decoder as one model, and names of its layers in files.

    Args:
        prompt: `prompt_encoder_config`, complete.
        config: `mask_decoder_config`, complete.
        size: Pixels along (height, width) of the encoder's images.
        grid: Patches along (height, width).

    Returns:
        A model from a dict to a dict: see `PromptableSegmenter`.
    """
    names: Names = {"prompt_positions": _SHARED}
    width = prompt["hidden_size"]
    inputs = {
        "image_embeddings": keras.Input((*grid, width), name="image_embeddings"),
        "points": keras.Input((None, 2), name="points"),
        "labels": keras.Input((None,), dtype="int32", name="labels"),
        "previous_mask": keras.Input((4 * grid[0], 4 * grid[1]), name="previous_mask"),
        "has_previous_mask": keras.Input((), name="has_previous_mask"),
    }
    maps, points, labels, mask, has_mask = inputs.values()
    positions = FourierPositions(size, grid, width // 2, name="prompt_positions")
    tokens, centres = positions(points, labels)  # (B, P, D), (1, N, D)
    for label, theirs in _LABELS.items():
        name = f"prompt_{theirs.replace('.', '_')}"
        tokens += _vector_where(ops.equal(labels, label), width, name)
        names[name] = f"prompt_encoder.{theirs}.weight"
    tokens = ClassToken(config["num_multimask_outputs"] + 1, **_FLOAT32, name="mask_tokens")(tokens)
    tokens = ClassToken(**_FLOAT32, name="score_token")(tokens)  # (B, 5 + P, D)
    names |= {"mask_tokens": "mask_decoder.mask_tokens.weight"}
    names |= {"score_token": "mask_decoder.iou_token.weight"}
    x = maps + _embed_mask(mask, has_mask, prompt, names)
    x = ops.reshape(x, (-1, math.prod(grid), width))  # (B, N, D)
    tokens, x = _attend_both_ways(tokens, x, centres, config, names)
    x = ops.reshape(x, (-1, *grid, width))
    for step, channels in ((1, width // 4), (2, width // 8)):
        name = f"upscale_{step}"
        names[name] = f"mask_decoder.upscale_conv{step}"
        x = up_conv(channels, 2, name, **_FLOAT32)(x)
        x = float32_norm("upscale_norm")(x) if step == 1 else x
        x = keras.layers.Activation(exact_gelu, **_FLOAT32, name=f"{name}_gelu")(x)
    names["upscale_norm"] = "mask_decoder.upscale_layer_norm"
    filters = [
        _mlp(tokens[:, 1 + index], (width, width, width // 8), f"filter_{index}",
             f"mask_decoder.output_hypernetworks_mlps.{index}", names)
        for index in range(config["num_multimask_outputs"] + 1)
    ]  # fmt: skip
    sizes = (config["iou_head_hidden_dim"],) * (config["iou_head_depth"] - 1) + (len(filters),)
    outputs = {
        "masks": MaskLogits(**_FLOAT32, name="masks")(ops.stack(filters, axis=1), x),
        "scores": _mlp(tokens[:, 0], sizes, "score", "mask_decoder.iou_prediction_head", names),
    }
    return Model(inputs, outputs, name="sam_decoder"), names


def _vector_where(is_there: Tensor, width: int, name: str) -> Tensor:
    """A learned vector where booleans `(...)` are true, and 0 elsewhere, of shape `(..., D)`."""
    x = keras.layers.Embedding(1, width, **_FLOAT32, name=name)(ops.zeros_like(is_there, "int32"))
    return x * ops.cast(is_there, x.dtype)[..., None]


def _embed_mask(mask: Tensor, is_given: Tensor, config: Mapping[str, Any], names: Names) -> Tensor:
    """Maps `(B, rows, columns, D)` of the logits of a mask, or one vector where none is given."""
    x, channels, width = mask[..., None], config["mask_input_channels"], config["hidden_size"]
    for step, filters in ((1, channels // 4), (2, channels)):
        x = conv(filters, 2, f"prompt_mask_conv_{step}", strides=2, padding="valid", **_FLOAT32)(x)
        x = float32_norm(f"prompt_mask_norm_{step}", config["layer_norm_eps"])(x)
        x = keras.layers.Activation(exact_gelu, **_FLOAT32, name=f"prompt_mask_gelu_{step}")(x)
        names[f"prompt_mask_norm_{step}"] = f"prompt_encoder.mask_embed.layer_norm{step}"
    x = conv(width, 1, "prompt_mask_conv_3", **_FLOAT32)(x)
    names |= {f"prompt_mask_conv_{n}": f"prompt_encoder.mask_embed.conv{n}" for n in (1, 2, 3)}
    names["prompt_no_mask"] = "prompt_encoder.no_mask_embed.weight"
    is_given = ops.reshape(is_given, (-1, 1, 1))
    return x * is_given[..., None] + _vector_where(ops.equal(is_given, 0), width, "prompt_no_mask")


def _attend_both_ways(
    tokens: Tensor, x: Tensor, centres: Tensor, config: Mapping[str, Any], names: Names
) -> tuple[Tensor, Tensor]:
    """Tokens `(B, T, D)` attend to patches `(B, N, D)`, and patches to tokens: Figure 14."""
    first, transformer = tokens, "mask_decoder.transformer"
    width, heads, epsilon = (
        config[key] for key in ("hidden_size", "num_attention_heads", "layer_norm_eps")
    )
    narrow = width // config["attention_downsample_rate"]

    def attend(name: str, theirs: str, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        for ours, part in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            names[f"{name}/{ours}"] = f"{transformer}.{theirs}.{part}_proj"
        kind = _ATTENTIONS[theirs.rpartition("_")[2]]
        inner = width if kind is CrossAttention else narrow
        return kind(heads, inner, name=name)(queries, keys, values)

    for index in range(config["num_hidden_layers"]):
        ours, theirs = f"two_way_{index}", f"layers.{index}"
        for number in range(1, 5):
            names[f"{ours}_norm_{number}"] = f"{transformer}.{theirs}.layer_norm{number}"
        names[f"{ours}_hidden"] = f"{transformer}.{theirs}.mlp.lin1"
        names[f"{ours}_output"] = f"{transformer}.{theirs}.mlp.lin2"
        queries = tokens + first if index else tokens
        y = attend(f"{ours}_tokens", f"{theirs}.self_attn", queries, queries, tokens)
        tokens = float32_norm(f"{ours}_norm_1", epsilon)(tokens + y if index else y)
        name = f"{theirs}.cross_attn_token_to_image"
        y = attend(f"{ours}_to_image", name, tokens + first, x + centres, x)
        tokens = float32_norm(f"{ours}_norm_2", epsilon)(tokens + y)
        y = float32_dense(config["mlp_dim"], f"{ours}_hidden", "relu")(tokens)
        y = float32_dense(width, f"{ours}_output")(y)
        tokens = float32_norm(f"{ours}_norm_3", epsilon)(tokens + y)
        name = f"{theirs}.cross_attn_image_to_token"
        y = attend(f"{ours}_to_tokens", name, x + centres, tokens + first, tokens)
        x = float32_norm(f"{ours}_norm_4", epsilon)(x + y)
    y = attend("last_to_image", "final_attn_token_to_image", tokens + first, x + centres, x)
    names["last_norm"] = f"{transformer}.layer_norm_final_attn"
    return float32_norm("last_norm", 1e-5)(tokens + y), x


def _mlp(x: Tensor, sizes: tuple[int, ...], name: str, theirs: str, names: Names) -> Tensor:
    """Dense layers with ReLU between them."""
    last = len(sizes) - 1
    for index, size in enumerate(sizes):
        part = {0: "proj_in", last: "proj_out"}.get(index, f"layers.{index - 1}")
        names[f"{name}_{index}"] = f"{theirs}.{part}"
        x = float32_dense(size, f"{name}_{index}", None if index == last else "relu")(x)
    return x


def _check_sizes(
    file: NetworkFile, vision: dict[str, Any], prompt: dict[str, Any], decoder: dict[str, Any]
) -> None:
    """Raises an error where parts of the files do not fit together."""
    side, width = vision["image_size"], vision["output_channels"]
    wanted = {
        "do_resize": True, "do_pad": True, "size": {"longest_edge": side},
        "pad_size": {"height": side, "width": side},
    }  # fmt: skip
    rows = [
        ("hidden_size of prompt_encoder_config", prompt["hidden_size"], width),
        ("hidden_size of mask_decoder_config", decoder["hidden_size"], width),
        ("2 num_pos_feats of vision_config", 2 * vision["num_pos_feats"], width),
        *((f"{key} of prompt_encoder_config", prompt[key], vision[key])
          for key in ("image_size", "patch_size")),
        *((f"{key} of preprocessor_config.json", file.processor.get(key, value), value)
          for key, value in wanted.items()),
    ]  # fmt: skip
    for text, found, expected in rows:
        if found != expected:
            raise CheckpointError(
                f"{file.file.path}: image_size, patch_size or output_channels of vision_config ask "
                f"for another value. Received: {text} = {found}, expected {expected}."
            )
    arrays = [file.file.read(name) for name in (_SHARED, _TIED) if name in file.file.entries]
    if any(not np.array_equal(arrays[0], other) for other in arrays[1:]):
        raise CheckpointMismatchError(
            f"{file.file.path}: {_SHARED} and {_TIED} are one array. Received: two that differ."
        )


def _with_size(file: NetworkFile, size: tuple[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a file, and its image processor, for images of a size."""
    config = dict(file.config)
    for part in ("vision_config", "prompt_encoder_config"):
        config[part] = {**(config.get(part) or {}), "image_size": max(size)}
        config[part].pop("image_embedding_size", None)  # transformers computes it
    pad = {"height": size[0], "width": size[1]}
    return config, {**file.processor, "size": {"longest_edge": max(size)}, "pad_size": pad}


def _resized(
    grids: tuple[tuple[int, int], tuple[int, int]],
    name: str,
    array: np.ndarray,
    shape: tuple[int, ...],
) -> np.ndarray:
    """An array of the file for another grid, where it depends on that.

    Positions of patches as ViTDet resizes them, distances between them as Segment Anything does.
    """
    old, new = grids
    if name.endswith("pos_embed") and array.shape[1:3] == old:
        table = array.reshape(1, math.prod(old), -1)
        return resize_positions(table, old, new, "bicubic_plain").reshape(1, *new, -1)
    sides = {"rel_pos_h": (old[0], new[0]), "rel_pos_w": (old[1], new[1])}
    before, after = sides.get(name.rpartition(".")[2], (0, 0))
    if (len(array), shape[0]) == (2 * before - 1, 2 * after - 1):
        return (resize_matrix(len(array), shape[0], "bilinear") @ array).astype("float32")
    return array
