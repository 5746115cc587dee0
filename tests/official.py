"""The official code's arrays and ours: the test's own reading of the official layout."""

from __future__ import annotations

import pathlib
import re

import numpy as np

GOLDEN = pathlib.Path(__file__).parent / "golden"

# Layer names of the 2020 and AugReg files.
_BLOCK = "Transformer/encoderblock_{}"
_ATTENTION = f"{_BLOCK}/MultiHeadDotProductAttention_1"


def load_golden(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A small official checkpoint, and the official code's images and outputs for it."""
    with np.load(GOLDEN / f"{name}.checkpoint.npz") as checkpoint:
        weights = dict(checkpoint)
    with np.load(GOLDEN / f"{name}.outputs.npz") as outputs:
        return weights, dict(outputs)


def golden_images(height: int, width: int | None = None) -> np.ndarray:
    """The two images in [-1, 1] that golden outputs belong to, float32 of shape `(2, H, W, 3)`."""
    shape = (2, height, width or height, 3)
    i = np.arange(np.prod(shape), dtype="int64")
    return (((3 * i**2 + 101 * i) % 509) / 254 - 1).astype("float32").reshape(shape)


def to_keras(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Official arrays by the paths of our variables, in our shapes."""
    depth = 1 + max(
        int(key.split("/")[1].removeprefix("encoderblock_"))
        for key in arrays
        if "encoderblock_" in key
    )
    ours = {
        "patch_encoder/projection/kernel": arrays["embedding/kernel"],
        "patch_encoder/projection/bias": arrays["embedding/bias"],
        "encoder_norm/gamma": arrays["Transformer/encoder_norm/scale"],
        "encoder_norm/beta": arrays["Transformer/encoder_norm/bias"],
    }
    optional = {
        "class_token/token": "cls",
        "position_embedding/embedding": "Transformer/posembed_input/pos_embedding",
        "pre_logits/kernel": "pre_logits/kernel",
        "pre_logits/bias": "pre_logits/bias",
        "head/kernel": "head/kernel",
        "head/bias": "head/bias",
    }
    ours.update({path: arrays[key] for path, key in optional.items() if key in arrays})
    for index in range(depth):
        for path, array in _block(arrays, index).items():
            ours[f"block_{index}/{path}"] = array
    return ours | _stem(arrays)


# Names within the stem of a hybrid: the official ones, and ours.
_STEM = (
    (r"conv_root/", "stem_root/conv/"),
    (r"gn_root/", "stem_root/norm/"),
    (r"block(\d+)/unit(\d+)/", r"stem_stage_\1/unit_\2/"),
    (r"conv(\d)/", r"conv_\1/"),
    (r"gn(\d)/", r"norm_\1/"),
    (r"conv_proj/", "shortcut/"),
    (r"gn_proj/", "shortcut_norm/"),
    (r"scale$", "gamma"),
    (r"bias$", "beta"),
)


def _stem(arrays):
    ours = {}
    for key, array in arrays.items():
        if not re.match(r"conv_root|gn_root|block\d", key):
            continue
        for pattern, path in _STEM:
            key = re.sub(pattern, path, key)
        ours[key] = array if key.endswith("kernel") else array.reshape(-1)
    return ours


def _block(arrays, index):
    block, attention = _BLOCK.format(index), _ATTENTION.format(index)
    width = arrays["embedding/bias"].size
    parts = ("query", "key", "value")
    kernels = [arrays[f"{attention}/{part}/kernel"].reshape(width, -1) for part in parts]
    biases = [arrays[f"{attention}/{part}/bias"].reshape(-1) for part in parts]
    ours = {
        "attention/qkv/kernel": np.concatenate(kernels, axis=1),
        "attention/qkv/bias": np.concatenate(biases),
        "attention/output/kernel": arrays[f"{attention}/out/kernel"].reshape(-1, width),
        "attention/output/bias": arrays[f"{attention}/out/bias"],
    }
    for norm, official in (("attention_norm", "LayerNorm_0"), ("mlp_norm", "LayerNorm_2")):
        ours[f"{norm}/gamma"] = arrays[f"{block}/{official}/scale"]
        ours[f"{norm}/beta"] = arrays[f"{block}/{official}/bias"]
    for dense, official in (("hidden", "Dense_0"), ("output", "Dense_1")):
        for part in ("kernel", "bias"):
            ours[f"mlp/{dense}/{part}"] = arrays[f"{block}/MlpBlock_3/{official}/{part}"]
    return ours


def from_keras(model) -> dict[str, np.ndarray]:
    """A model's variables by path, as NumPy arrays in float64."""
    return {w.path: np.asarray(w.numpy(), "float64") for w in model.weights}


def assign(model, ours: dict[str, np.ndarray]) -> None:
    """Sets every variable of a model; names and shapes must agree exactly."""
    variables = {w.path: w for w in model.weights}
    assert set(variables) == set(ours), set(variables) ^ set(ours)
    for path, array in ours.items():
        assert variables[path].shape == array.shape, (path, variables[path].shape, array.shape)
        variables[path].assign(array)
