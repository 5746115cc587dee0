"""Features of other Transformers that this package does not compute, told by names of arrays."""

from __future__ import annotations

import re
from collections.abc import Collection

# Patterns of names, and what they belong to.
_PRESENT = (
    (r"(^|\.)norm_pre\.|pre_layrnorm|pre_layernorm|ln_pre\.", "a norm before the blocks (CLIP)"),
    (r"mlp\.(fc1_[gx]|w12|w3|gate_proj|weights_in|gate_up_proj)\b", "gated MLPs (SwiGLU)"),
    (r"mlp\.norm\.|ffn_layernorm", "a norm inside the MLP"),
    (r"attn\.norm\.|inner_attn_ln", "a norm inside the attention"),
    (r"(attn|attention|self_attn)\.(q_norm|k_norm)\.", "a norm of queries and keys"),
    (r"attn\.(lambda_|sub_norm)|\.lambda_[aq]", "differential attention"),
    (r"\.(in_proj\.weight|in_norm\.)", "attention and MLP side by side (parallel blocks)"),
    (r"\.(attns|ffns)\.\d+\.", "several attentions in a block (parallel blocks)"),
    (r"rel_pos|relative_position", "relative positions in the attention (BEiT, SAM)"),
    (r"(attn|attention)\.[qv]_bias$", "separate biases of queries and values (BEiT, EVA)"),
    (r"(^|\.)rope|freqs_cis|rotary", "rotary positions"),
    (r"patch_embed\.norm\.", "a norm of the patches"),
    (r"patch_embed\.backbone\.(conv1|bn1|layer\d|stages\.\d+\.\d)", "a stem of another network"),
    (r"\.(gamma|lambda)_[12]$", "layer scales of BEiT and CaiT"),
)
# Layers with a weight that have no bias anywhere.
_BIASES = (
    (
        r"attn\.qkv|attention\.attention\.query|attention\.query|\.q_proj",
        "queries, keys and values without bias",
    ),
    (r"\.norm1|layernorm_before|layer_norm1", "norms without bias (RMSNorm)"),
)


def foreign_features(names: Collection[str]) -> list[str]:
    """Names the features of a file that no model of this package has.

    Args:
        names: Names of the arrays of the image model.

    Returns:
        What the features are called.
    """
    found = [what for pattern, what in _PRESENT if any(re.search(pattern, name) for name in names)]
    for pattern, what in _BIASES:
        layers = [
            name.removesuffix(".weight")
            for name in names
            if re.search(rf"({pattern})\.weight$", name)
        ]
        if layers and not any(f"{layer}.bias" in names for layer in layers):
            found.append(what)
    return found
