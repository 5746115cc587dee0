"""Features of other Transformers that this package does not compute, told by names of arrays.

Only of names that the layout does not know: it computes some of these in some projects.
"""

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
    (
        r"^(\w+\.)?(rel_pos_bias|encoder\.relative_position_bias|shared_(rel_pos|position_bias))\b",
        "relative positions that all blocks share (BEiT for masked images, timm's srelpos)",
    ),
    (
        r"\d\.(.*\.)?(rel_pos|relative_position)",
        "relative positions in the attention (SAM, timm's relpos)",
    ),
    (r"(attn|attention)\.[qv]_bias$", "separate biases of queries and values (BEiT, EVA)"),
    (r"\.rope_reg\.", "rotary positions of registers (ViT-5)"),
    (r"^rope\.freqs$", "rotary positions whose frequencies are learned (timm's rope_mixed)"),
    (r"(^|\.)rope(?!_reg|\.freqs$)|\.rope\.freqs$|freqs_cis|rotary", "rotary positions"),
    (
        r"(decode|auxiliary|segmentation)_head\.|(^|\.)fpn\d",
        "a head that segments images (UPerNet, BEiT for segmentation)",
    ),
    (r"patch_embed\.norm\.", "a norm of the patches"),
    (r"patch_embed\.backbone\.(conv1|bn1|layer\d|stages\.\d+\.\d)", "a stem of another network"),
    (r"\.(gamma|lambda)_[12]$", "layer scales of BEiT and CaiT"),
    (
        r"\.(lora_[AB]|lora_embedding_[AB]|base_layer)\.",
        "low-rank updates of PEFT (`load_adapter` reads an adapter's folder; save a model with "
        "updates as `merge_and_unload()` returns it)",
    ),
)


def foreign_features(names: Collection[str]) -> list[str]:
    """Names the features of a file that no model of this package has.

    Args:
        names: Names of the arrays of the image model.

    Returns:
        What the features are called.
    """
    return [what for pattern, what in _PRESENT if any(re.search(pattern, name) for name in names)]
