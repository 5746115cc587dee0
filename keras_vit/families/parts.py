"""Parts that layouts of PyTorch's projects share, timm and transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_vit.families.rules import CONVOLUTION, LINEAR, SAME, TABLE, Layout, Rule, pairs

OURS_HYBRID, OURS_BIT = "stem_stage_{i}/unit_{j}", "stage_{i}/unit_{j}"
# How PyTorch's ports standardise kernels and norm groups, unlike the official code.
STEM = {"standardization": "torch", "norm_epsilon": 1e-5}


def norm(ours: str, theirs: str, **more: Any) -> Iterator[Rule]:
    """A norm; further arguments are those of `Rule`."""
    return pairs(ours, theirs, (("gamma", ".weight", SAME), ("beta", ".bias", SAME)), **more)


def dense(ours: str, theirs: str, **more: Any) -> Iterator[Rule]:
    """A dense layer; further arguments are those of `Rule`."""
    return pairs(ours, theirs, (("kernel", ".weight", LINEAR), ("bias", ".bias", SAME)), **more)


def patches(theirs: str) -> tuple[Rule, ...]:
    """The convolution of patches."""
    ours = "patch_encoder/projection"
    return conv(ours, theirs), Rule(f"{ours}/bias", (f"{theirs}.bias",))


def conv(ours: str, theirs: str, **more: Any) -> Rule:
    """A convolution without bias."""
    return Rule(f"{ours}/kernel", (f"{theirs}.weight",), CONVOLUTION, **more)


def units(ours: str, theirs: str, shortcut_norm: bool) -> tuple[Rule, ...]:
    """The bottleneck units of a ResNet; their stages and units count from 0."""
    rules = [conv(f"{ours}/shortcut", f"{theirs}.downsample.conv")]
    for number in (1, 2, 3):
        rules.append(conv(f"{ours}/conv_{number}", f"{theirs}.conv{number}"))
        rules += norm(f"{ours}/norm_{number}", f"{theirs}.norm{number}")
    if shortcut_norm:
        rules += norm(f"{ours}/shortcut_norm", f"{theirs}.downsample.norm")
    return tuple(rules)


def gate(path: str, gate: str, value: str, **more: Any) -> tuple[Rule, ...]:
    """One layer from two for both inputs of a gate; silu is applied to the first."""
    return (
        Rule(f"{path}/kernel", (f"{gate}.weight", f"{value}.weight"), LINEAR, **more),
        Rule(f"{path}/bias", (f"{gate}.bias", f"{value}.bias"), **more),
    )


def split_products(
    theirs: str, parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
) -> tuple[Rule, ...]:
    """Queries, keys and values from three layers, of which not all need have a bias."""
    ours = ("query", "key", "value")
    biases = {name: f"{theirs}.{part}.bias" for name, part in zip(ours, parts, strict=True)}
    kernels = tuple(f"{theirs}.{part}.weight" for part in parts)
    return (
        Rule("block_{i}/attention/qkv/kernel", kernels, LINEAR),
        Rule("block_{i}/attention/qkv/bias", tuple(biases.values())),
        *(Rule(f"block_{{i}}/attention/{part}_bias", (key,)) for part, key in biases.items()),
    )


# Positions of both towers of CLIP and its relatives in transformers, and tokens of text towers.
POSITIONS = Rule("position_embedding/embedding", ("embeddings.position_embedding.weight",), TABLE)
TOKENS = Rule("token_embedding/embeddings", ("embeddings.token_embedding.weight",))
# Scale of the similarities in a model of images and texts, a logarithm, and their bias.
LOGITS = (Rule("logit_scale", ("logit_scale",)), Rule("logit_bias", ("logit_bias",)))
UNPREFIXED = ("logit_(scale|bias)$",)
TEXT_PROJECTION = Rule("projection/kernel", ("text_projection.weight",), LINEAR)


def text_layout(name: str, *rules: Rule) -> Layout:
    """A text tower of transformers, by the rules of its blocks and its projection."""
    return Layout(
        name,
        (TOKENS, POSITIONS, *rules, *LOGITS),
        "transformers",
        prefixes=("text_model.",),
        kind="safetensors",
        others=("embeddings\\.position_ids$",),
        unprefixed=("text_projection\\.", *UNPREFIXED),
    )


def torch_layout(
    name: str, rules: tuple[Rule, ...], options: dict[str, Any], **fields: Any
) -> Layout:
    """A layout; its name begins with that of the project."""
    project = name.partition("_")[0]
    common: dict[str, Any] = {
        "kind": "safetensors",
        "resize": "bicubic" if project == "timm" else "bicubic_plain",
        "resize_patches": "bicubic",
        "unwritten": ("pre_logits/",),  # read only: neither project has such a layer today
        "prefixes": ("", "timm_model."),  # the second is how transformers wraps models of timm
        "computes": ("norm_after_pooling",),
    }
    return Layout(name, rules, project, options=options, **{**common, **fields})


def embeddings() -> tuple[Rule, ...]:
    """Patches, class token and positions in transformers."""
    theirs = "embeddings"
    return (
        *patches(f"{theirs}.patch_embeddings.projection"),
        Rule("class_token/token", (f"{theirs}.cls_token",)),
        Rule("position_embedding/embedding", (f"{theirs}.position_embeddings",)),
    )


def self_attention(block: str) -> tuple[Rule, ...]:
    """Self-attention in transformers."""
    return (
        *split_products(f"{block}.attention.attention", ("query", "key", "value")),
        *dense("block_{i}/attention/output", f"{block}.attention.output.dense"),
    )


def branches(
    block: str, norms: tuple[str, str], mlp: tuple[str, str], scales: tuple[str, ...] = ()
) -> tuple[Rule, ...]:
    """Norms, MLP and layer scales of a block, whose attention has rules of its own.

    Args:
        block: What stands before the names of a block.
        norms: Names of the norms of attention and MLP.
        mlp: Names of the hidden layer and of the output.
        scales: Names of the layer scales of attention and MLP, if there are any.
    """
    return (
        *norm("block_{i}/attention_norm", f"{block}.{norms[0]}"),
        *norm("block_{i}/mlp_norm", f"{block}.{norms[1]}"),
        *dense("block_{i}/mlp/hidden", f"{block}.{mlp[0]}"),
        *dense("block_{i}/mlp/output", f"{block}.{mlp[1]}"),
        *(
            Rule(f"block_{{i}}/{branch}_scale/gamma", (f"{block}.{name}",))
            for branch, name in zip(("attention", "mlp"), scales, strict=False)
        ),
    )


def encoder(*heads: tuple[str, str]) -> tuple[Rule, ...]:
    """ViT, DeiT and MAE of transformers, which differ in their heads."""
    block = "encoder.layer.{i}"
    return (
        *embeddings(),
        *self_attention(block),
        *branches(
            block, ("layernorm_before", "layernorm_after"), ("intermediate.dense", "output.dense")
        ),
        *norm("encoder_norm", "layernorm"),
        *dense("pre_logits", "pooler.dense"),
        *(rule for ours, theirs in heads for rule in dense(ours, theirs)),
    )


HF_OPTIONS = {"gelu": "exact", "norm_epsilon": 1e-12}


def attention_in_memory(block: str) -> tuple[tuple[str, str], ...]:
    """Names of self-attention that transformers 5 has in memory, and what its files call them."""
    names = {"q": "attention.query", "k": "attention.key", "v": "attention.value"}
    return tuple(
        (f"{block}.attention.{part}_proj", f"encoder.layer.{{i}}.attention.{name}")
        for part, name in {**names, "o": "output.dense"}.items()
    )


# The same of whole blocks; the longest name that fits is replaced.
IN_MEMORY = (
    ("layers.{i}.mlp.fc1", "encoder.layer.{i}.intermediate.dense"),
    ("layers.{i}.mlp.fc2", "encoder.layer.{i}.output.dense"),
    *attention_in_memory("layers.{i}"),
    ("layers.{i}", "encoder.layer.{i}"),
)
