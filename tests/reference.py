"""The paper's equations in float64 NumPy, written from the paper: an oracle of its own."""

from __future__ import annotations

import math

import numpy as np

_erf = np.vectorize(math.erf)


def gelu(x, form="tanh"):
    if form == "exact":
        return 0.5 * x * (1 + _erf(x / np.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, gamma, beta, epsilon=1e-6):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def patches(images, patch_size):
    """Images (B, H, W, C) as rows of pixels (B, N, P * P * C)."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    x = images.reshape(batch, rows, patch_size, columns, patch_size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, -1)


def attention(x, w, prefix, num_heads, sizes=None):
    """Output and scores of multi-head self-attention, one head at a time (Eq. 5 to 8).

    A token of size s counts as s tokens that are alike.
    """
    width = x.shape[-1]
    head_dim = width // num_heads
    qkv = x @ w[f"{prefix}/qkv/kernel"] + w[f"{prefix}/qkv/bias"]
    outputs, scores = [], []
    for head in range(num_heads):
        columns = slice(head * head_dim, (head + 1) * head_dim)
        q, k, v = (qkv[..., i * width : (i + 1) * width][..., columns] for i in range(3))
        odds = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(head_dim))
        odds = odds if sizes is None else odds * sizes[:, None]
        scores.append(odds / odds.sum(-1, keepdims=True))
        outputs.append(scores[-1] @ v)
    x = np.concatenate(outputs, -1) @ w[f"{prefix}/output/kernel"] + w[f"{prefix}/output/bias"]
    return x, np.stack(scores, 1)


def mlp(x, w, prefix, form):
    x = gelu(x @ w[f"{prefix}/hidden/kernel"] + w[f"{prefix}/hidden/bias"], form)
    return x @ w[f"{prefix}/output/kernel"] + w[f"{prefix}/output/bias"]


def block(x, w, prefix, num_heads, form="tanh", epsilon=1e-6):
    """Eq. 2 and 3."""

    def norm(x, name):
        return layer_norm(x, w[f"{prefix}/{name}/gamma"], w[f"{prefix}/{name}/beta"], epsilon)

    x = x + attention(norm(x, "attention_norm"), w, f"{prefix}/attention", num_heads)[0]
    return x + mlp(norm(x, "mlp_norm"), w, f"{prefix}/mlp", form)


def vit(w, images, patch_size, num_heads, form="tanh", epsilon=1e-6):
    """Every stage of a ViT on images that are already in the model's range.

    Returns a dictionary with the names of the golden files' stages.
    """
    kernel = w["patch_encoder/projection/kernel"]
    x = patches(images, patch_size) @ kernel.reshape(-1, kernel.shape[-1])
    x = x + w["patch_encoder/projection/bias"]
    stages = {"embedding": x}
    has_class_token = "class_token/token" in w
    if has_class_token:
        token = np.broadcast_to(w["class_token/token"], (len(x), 1, x.shape[-1]))
        x = np.concatenate([token, x], axis=1)
    x = x + w["position_embedding/embedding"]
    stages["positions"] = x
    depth = len({path.split("/")[0] for path in w if path.startswith("block_")})
    for index in range(depth):
        x = block(x, w, f"block_{index}", num_heads, form, epsilon)
        stages[f"block_{index}"] = x
    x = layer_norm(x, w["encoder_norm/gamma"], w["encoder_norm/beta"], epsilon)
    stages["encoder_norm"] = x
    x = x[:, 0] if has_class_token else x.mean(axis=1)
    if "pre_logits/kernel" in w:
        x = np.tanh(x @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    stages["logits"] = x @ w["head/kernel"] + w["head/bias"]
    return stages
