"""Small checkpoints of two towers, and text towers in NumPy."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.families.clip import CLIP, OPEN_CLIP
from keras_vit.weights.save import file_arrays
from tests.fixtures import fill_random, tiny_config

DEPTH, WIDTH, HEADS, LENGTH, JOINT = 2, 32, 4, 12, 32
MERGES = ("p h", "ph o", "pho t", "phot o</w>", "c a", "ca t</w>", "d o", "do g</w>", "o f</w>")
VOCABULARY = 512 + len(MERGES) + 2
_ERF = np.vectorize(math.erf)
_PRE = "text_model.encoder.layers.{}."
_GELUS = {
    "quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "exact": lambda x: x * 0.5 * (1 + _ERF(x / math.sqrt(2))),
    "tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def write_vocabulary(folder) -> None:
    """open_clip's file of merges, with few."""
    text = "\n".join(["#version: 0.2", *MERGES, ""])
    (folder / "bpe_simple_vocab_16e6.txt.gz").write_bytes(gzip.compress(text.encode()))


def text_arrays(siglip: bool, vocabulary: int = VOCABULARY, seed: int = 0) -> dict[str, np.ndarray]:
    """Random arrays of a text tower in the names of transformers."""
    rng = np.random.default_rng(seed)
    arrays = {
        "text_model.embeddings.token_embedding.weight": rng.normal(0, 0.5, (vocabulary, WIDTH)),
        "text_model.embeddings.position_embedding.weight": rng.normal(0, 0.5, (LENGTH, WIDTH)),
    }
    shapes = {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
    shapes |= {"mlp.fc1": (48, WIDTH), "mlp.fc2": (WIDTH, 48)}
    for index in range(DEPTH):
        for name, shape in shapes.items():
            key = _PRE.format(index) + name
            arrays[f"{key}.weight"] = rng.normal(0, 1.5 / shape[1] ** 0.5, shape)
            arrays[f"{key}.bias"] = rng.normal(0, 0.2, shape[0])
        for name in ("layer_norm1", "layer_norm2"):
            arrays[f"{_PRE.format(index)}{name}.weight"] = rng.normal(1, 0.2, WIDTH)
            arrays[f"{_PRE.format(index)}{name}.bias"] = rng.normal(0, 0.2, WIDTH)
    arrays["text_model.final_layer_norm.weight"] = rng.normal(1, 0.2, WIDTH)
    arrays["text_model.final_layer_norm.bias"] = rng.normal(0, 0.2, WIDTH)
    head = "text_model.head" if siglip else "text_projection"
    arrays[f"{head}.weight"] = rng.normal(0, 0.3, (JOINT, WIDTH))
    if siglip:
        arrays[f"{head}.bias"] = rng.normal(0, 0.3, JOINT)
        arrays["logit_bias"] = np.array([-7.25])
    arrays["logit_scale"] = np.array([2.5]) if siglip else np.array(2.5)
    return {name: array.astype("float32") for name, array in arrays.items()}


def _norm(x, arrays, key, epsilon):
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    return scaled * arrays[f"{key}.weight"] + arrays[f"{key}.bias"]


def _dense(x, arrays, key):
    return x @ arrays[f"{key}.weight"].T + arrays.get(f"{key}.bias", 0.0)


def text_features(arrays, ids, siglip, gelu, positions) -> np.ndarray:
    """Section 2 of facts of CLIP and SigLIP in float64: features of the pooled `positions`."""
    arrays = {key: np.asarray(value, "float64") for key, value in arrays.items()}
    epsilon = 1e-6 if siglip else 1e-5
    x = arrays["text_model.embeddings.token_embedding.weight"][ids]
    x = x + arrays["text_model.embeddings.position_embedding.weight"][: ids.shape[1]]
    mask = 0.0 if siglip else np.triu(np.full((ids.shape[1],) * 2, -np.inf), 1)
    for index in range(DEPTH):
        pre = _PRE.format(index)
        h = _norm(x, arrays, f"{pre}layer_norm1", epsilon)
        q, k, v = (
            _dense(h, arrays, f"{pre}self_attn.{part}_proj")
            .reshape(*ids.shape, HEADS, -1)
            .transpose(0, 2, 1, 3)
            for part in "qkv"
        )
        logits = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + mask
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + _dense(mixed, arrays, f"{pre}self_attn.out_proj")
        h = _GELUS[gelu](
            _dense(_norm(x, arrays, f"{pre}layer_norm2", epsilon), arrays, f"{pre}mlp.fc1")
        )
        x = x + _dense(h, arrays, f"{pre}mlp.fc2")
    x = _norm(x, arrays, "text_model.final_layer_norm", epsilon)[np.arange(len(ids)), positions]
    return _dense(x, arrays, "text_model.head" if siglip else "text_projection")


def image_model(siglip: bool, **changes: Any):
    """A small image tower with random weights."""
    if siglip:
        fields = {"pooling": "map", "class_token": False, "classes": None, "gelu": "tanh"}
    else:
        fields = {**CLIP, "classes": JOINT, "head_bias": None, "gelu": "quick"}
    model = keras_vit.models.build_vit(tiny_config(**{**fields, **changes}))
    fill_random(model)
    return model


def write_transformers(folder, siglip=False, text=None, shards=False, **text_config) -> dict:
    """A checkpoint as transformers saves it; returns the arrays of the text tower."""
    folder.mkdir(parents=True, exist_ok=True)
    text = text_arrays(siglip) if text is None else text
    file = folder / "model.safetensors"
    keras_vit.save_weights(image_model(siglip), file, layout="transformers")
    config = json.loads((folder / "config.json").read_text())
    vision = config.get("vision_config", config)
    kind = "siglip" if siglip else "clip"
    common = {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH,
        "intermediate_size": 48, "max_position_embeddings": LENGTH,
        "vocab_size": len(text["text_model.embeddings.token_embedding.weight"]),
    }  # fmt: skip
    if not siglip:
        common["eos_token_id"] = 2
    config = {
        "model_type": kind, "text_config": {**common, **text_config},
        "vision_config": {key: value for key, value in vision.items() if key != "architectures"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {**load_file(file), **text}
    if not shards:
        save_file(arrays, file)
        return text
    file.unlink()
    names = sorted(arrays)
    parts = {"model-00001-of-00002.safetensors": names[::2],
             "model-00002-of-00002.safetensors": names[1::2]}  # fmt: skip
    for part, keys in parts.items():
        save_file({key: arrays[key] for key in keys}, folder / part)
    weight_map = {key: part for part, keys in parts.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return text


def open_clip_names(text) -> dict[str, np.ndarray]:
    """Arrays of a text tower in the names of open_clip, without prefix."""
    arrays = {
        "token_embedding.weight": text["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": text["text_model.embeddings.position_embedding.weight"],
        "logit_scale": text["logit_scale"].reshape(()),
    }
    names = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc",
             "mlp.fc2": "mlp.c_proj", "self_attn.out_proj": "attn.out_proj"}  # fmt: skip
    for end in ("weight", "bias"):
        arrays[f"ln_final.{end}"] = text[f"text_model.final_layer_norm.{end}"]
        for index in range(DEPTH):
            theirs = f"transformer.resblocks.{index}."
            for ours, name in names.items():
                arrays[f"{theirs}{name}.{end}"] = text[f"{_PRE.format(index)}{ours}.{end}"]
            arrays[f"{theirs}attn.in_proj_{end}"] = np.concatenate(
                [text[f"{_PRE.format(index)}self_attn.{part}_proj.{end}"] for part in "qkv"]
            )
    if "text_projection.weight" in text:
        arrays["text_projection"] = np.ascontiguousarray(text["text_projection.weight"].T)
    else:
        arrays["text_projection.weight"] = text["text_model.head.weight"]
        arrays["text_projection.bias"] = text["text_model.head.bias"]
        arrays["logit_bias"] = text["logit_bias"].reshape(())
    return arrays


def write_open_clip(folder, prefix="", text=None, **model_cfg) -> dict:
    """A checkpoint as open_clip saves CLIP; returns the arrays in transformers' names."""
    folder.mkdir(parents=True, exist_ok=True)
    text = text_arrays(False) if text is None else text
    model = image_model(False)
    arrays = {key: make() for key, (_, make) in file_arrays(model, OPEN_CLIP).items()}
    arrays |= {
        key if key.startswith("logit") else f"{prefix}{key}": value
        for key, value in open_clip_names(text).items()
    }
    save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()},
              folder / "open_clip_model.safetensors")  # fmt: skip
    config = {
        "embed_dim": JOINT, "quick_gelu": True,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 8,
                       "patch_size": 8},
        "text_cfg": {"context_length": LENGTH, "vocab_size": VOCABULARY, "width": WIDTH,
                     "heads": HEADS, "layers": DEPTH},
        **model_cfg,
    }  # fmt: skip
    pixels = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": pixels})
    )
    return text


def write_big_vision(path, scanned=False) -> dict:
    """A checkpoint as big_vision saves SigLIP; returns the arrays in transformers' names."""
    text = text_arrays(True)
    model = image_model(True)
    keras_vit.save_weights(model, path, layout="big_vision")
    arrays = {f"params/img/{key.removeprefix('params/')}": value for key, value in
              np.load(path).items()}  # fmt: skip
    blocks: dict[str, list[np.ndarray]] = {}
    for index in range(DEPTH):
        pre = _PRE.format(index)
        for ours, name in (("layer_norm1", "LayerNorm_0"), ("layer_norm2", "LayerNorm_1")):
            blocks.setdefault(f"{name}/scale", []).append(text[f"{pre}{ours}.weight"])
            blocks.setdefault(f"{name}/bias", []).append(text[f"{pre}{ours}.bias"])
        attention = "MultiHeadDotProductAttention_0"
        for part, name in zip("qkv", ("query", "key", "value"), strict=True):
            kernel = text[f"{pre}self_attn.{part}_proj.weight"].T.reshape(WIDTH, HEADS, -1)
            bias = text[f"{pre}self_attn.{part}_proj.bias"].reshape(HEADS, -1)
            blocks.setdefault(f"{attention}/{name}/kernel", []).append(kernel)
            blocks.setdefault(f"{attention}/{name}/bias", []).append(bias)
        out = text[f"{pre}self_attn.out_proj.weight"].T.reshape(HEADS, -1, WIDTH)
        blocks.setdefault(f"{attention}/out/kernel", []).append(out)
        blocks.setdefault(f"{attention}/out/bias", []).append(text[f"{pre}self_attn.out_proj.bias"])
        for ours, name in (("mlp.fc1", "Dense_0"), ("mlp.fc2", "Dense_1")):
            blocks.setdefault(f"MlpBlock_0/{name}/kernel", []).append(text[f"{pre}{ours}.weight"].T)
            blocks.setdefault(f"MlpBlock_0/{name}/bias", []).append(text[f"{pre}{ours}.bias"])
    for name, values in blocks.items():
        if scanned:
            arrays[f"params/txt/Encoder_0/encoderblock/{name}"] = np.stack(values)
            continue
        for index, value in enumerate(values):
            arrays[f"params/txt/Encoder_0/encoderblock_{index}/{name}"] = value
    positions = text["text_model.embeddings.position_embedding.weight"][None]
    arrays |= {
        "params/txt/Embed_0/embedding": text["text_model.embeddings.token_embedding.weight"],
        "params/txt/pos_embedding": 0.25 * positions if scanned else positions,
        "params/txt/Encoder_0/encoder_norm/scale": text["text_model.final_layer_norm.weight"],
        "params/txt/Encoder_0/encoder_norm/bias": text["text_model.final_layer_norm.bias"],
        "params/txt/head/kernel": text["text_model.head.weight"].T,
        "params/txt/head/bias": text["text_model.head.bias"],
        "params/t": text["logit_scale"], "params/b": text["logit_bias"],
    }  # fmt: skip
    if scanned:  # old files have a second table
        arrays["params/txt/Encoder_0/pos_embedding"] = 0.75 * positions
    np.savez(path, **arrays)
    return text


def expected_logits(towers, text, images, ids, siglip, gelu, positions) -> np.ndarray:
    """Logits from the features of the image tower and those of NumPy."""
    features = text_features(text, ids, siglip, gelu, positions)
    rows = towers.image.predict(images, verbose=0).astype("float64")
    x, y = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, features))
    return math.exp(2.5) * x @ y.T + (-7.25 if siglip else 0.0)
