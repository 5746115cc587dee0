"""Token merging (https://arxiv.org/abs/2210.09461) in float64 NumPy, one token at a time."""

from __future__ import annotations

import numpy as np

from tests import reference


def merge(tokens, keys, sizes, count, prefix):
    """Tokens (T, D) of one image, keys (T, d), sizes (T,): those after merging `count` pairs."""
    seekers = [place for place in range(prefix, len(tokens)) if place % 2 == 0]
    others = [place for place in range(prefix, len(tokens)) if place % 2 == 1]
    pairs = []
    for seeker in seekers:
        cosines = [
            keys[seeker] @ keys[other] / np.linalg.norm(keys[seeker]) / np.linalg.norm(keys[other])
            for other in others
        ]
        pairs.append((max(cosines), seeker, others[int(np.argmax(cosines))]))
    merged = {seeker: other for _, seeker, other in sorted(pairs, reverse=True)[:count]}
    groups = [[place] for place in range(prefix)]
    groups += [[place] for place in seekers if place not in merged]
    groups += [[other, *(s for s in merged if merged[s] == other)] for other in others]
    mean = [np.average(tokens[group], axis=0, weights=sizes[group]) for group in groups]
    return np.stack(mean), np.array([sizes[group].sum() for group in groups])


def block(x, sizes, w, name, num_heads, count, prefix):
    """A block that merges `count` tokens between attention and MLP."""

    def norm(x, part):
        return reference.layer_norm(x, w[f"{name}/{part}/gamma"], w[f"{name}/{part}/beta"])

    normed = norm(x, "attention_norm")
    x = x + reference.attention(normed, w, f"{name}/attention", num_heads, sizes)[0]
    width = x.shape[-1]
    keys = normed @ w[f"{name}/attention/qkv/kernel"] + w[f"{name}/attention/qkv/bias"]
    keys = keys[..., width : 2 * width].reshape(*x.shape[:2], num_heads, -1).mean(2)
    images = [merge(*parts, count, prefix) for parts in zip(x, keys, sizes, strict=True)]
    x, sizes = (np.stack(part) for part in zip(*images, strict=True))
    return x + reference.mlp(norm(x, "mlp_norm"), w, f"{name}/mlp", "tanh"), sizes
