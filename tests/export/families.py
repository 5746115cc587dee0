"""Small models of all families for exports, and sets of options that cover all pairs."""

from __future__ import annotations

import itertools

import keras

from keras_vit.config import IMAGENET_STATISTICS, ResNetConfig, ResNetStem, RotaryPositions
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, tiny_config

FAMILIES = {
    "vit": {},
    "exact_gelu": {"gelu": "exact", "preprocessing": IMAGENET_STATISTICS},
    "gap": {"pooling": "gap", "class_token": False, "norm_after_pooling": True},
    "map": {"pooling": "map", "class_token": False},
    "pre_logits": {"pre_logits": 24},
    "registers": {"num_registers": 4, "layer_scale": 0.5, "qk_norm": True},
    "distilled": {"distillation_token": True},
    "relative": {"position_embedding": "relative"},
    "sincos": {"position_embedding": "sincos_2d", "image_size": (32, 48)},
    "grey": {"channels": 1, "include_preprocessing": False},
    "backbone": {"classes": None},
    "hybrid": {"stem": ResNetStem((1, 1)), "patch_size": 1, "image_size": 32},
    "clip": {
        "norm_before_blocks": True,
        "gelu": "quick",
        "without_bias": ("patch",),
        "head_bias": None,
    },
    "dinov3": {
        "rope": RotaryPositions("centered", 100.0, interleaved=False),
        "position_embedding": "none",
        "num_registers": 2,
        "layer_scale": 0.5,
        "without_bias": ("key",),
    },
    "eva02": {
        "rope": RotaryPositions(reference_grid=(2, 2)),
        "swiglu": True,
        "inner_norms": ("attention", "mlp"),
        "image_size": (32, 48),
    },
    "aimv2": {
        "norm": "rms",
        "norm_patches": True,
        "swiglu": True,
        "without_bias": ("query", "key", "value", "projection", "mlp"),
        "pooling": "gap",
        "class_token": False,
    },
    "beit": {
        "position_embedding": "relative_bias",
        "without_bias": ("key",),
        "pooling": "gap",
        "norm_after_pooling": True,
        "layer_scale": 0.5,
        "image_size": (32, 48),
    },
    "vit5": {
        "rope": RotaryPositions(register_base=100.0),
        "num_registers": 4,
        "norm": "rms",
        "qk_norm": True,
        "without_bias": ("query", "key", "value"),
    },
}
MERGING = {"num_merged_tokens": 3, "pooling": "map", "num_registers": 1}
# What can be combined: for every factor, the changes of the configuration that each value makes.
OPTIONS = {
    "head": {
        "linear": {},
        "hidden": FAMILIES["pre_logits"],
        "none": FAMILIES["backbone"],
        "distilled": FAMILIES["distilled"],
    },
    "pooling": {"token": {}, "gap": FAMILIES["gap"], "map": FAMILIES["map"]},
    "tokens": {
        "plain": {},
        "registers": FAMILIES["registers"],
        "merged": {"num_merged_tokens": 3, "num_registers": 1},
    },
    "position": {
        "learned": {},
        "relative": FAMILIES["relative"],
        "sincos": {"position_embedding": "sincos_2d"},
    },
    "image": {
        "square": {},
        "wide": {"image_size": (32, 48), "preprocessing": IMAGENET_STATISTICS},
        "grey": FAMILIES["grey"],
    },
    "format": {"saved_model": {}, "litert": {}, "onnx": {}},
    "gelu": {"tanh": {}, "exact": {"gelu": "exact"}},
    "stem": {"patches": {}, "resnet": {"stem": ResNetStem((1, 1)), "patch_size": 1}},
    "policy": {"float32": {}, "mixed_bfloat16": {}},
}
# Pairs that `ViTConfig` refuses.
EXCLUDED = {
    frozenset(pair)
    for pair in (
        (("pooling", "gap"), ("head", "distilled")),
        (("pooling", "map"), ("head", "distilled")),
        (("tokens", "merged"), ("position", "relative")),
    )
}


def all_pairs(factors, excluded):
    """Pairs of values of two factors, in order, each as a set of `(factor, value)`."""
    values = [[(name, value) for value in values] for name, values in factors.items()]
    pairs = [
        frozenset(pair)
        for a, b in itertools.combinations(values, 2)
        for pair in itertools.product(a, b)
    ]
    return [pair for pair in pairs if pair not in excluded]


def pairwise_cover(factors, excluded=frozenset()):
    """Few rows, dicts of a value for every factor, in which each pair occurs at least once.

    Greedy and deterministic: a row begins with the first pair that is missing, and takes for each
    other factor the value that adds most missing pairs.
    """
    rows, missing = [], dict.fromkeys(all_pairs(factors, excluded))
    while missing:
        row = dict(sorted(next(iter(missing))))
        for name in factors:
            if name in row:
                continue
            candidates = {}
            for value in factors[name]:
                new = [frozenset([(name, value), other]) for other in row.items()]
                if excluded.isdisjoint(new):
                    candidates[value] = sum(pair in missing for pair in new)
            row[name] = max(candidates, key=candidates.get)
        for pair in itertools.combinations(row.items(), 2):
            missing.pop(frozenset(pair), None)
        rows.append({name: row[name] for name in factors})
    return rows


def build_family(name):
    """The model of one family, with random weights."""
    if name == "bit":
        model = build_resnet(ResNetConfig((1, 1), image_size=32, classes=10))
    else:
        model = build_vit(tiny_config(**FAMILIES[name]))
    fill_random(model)
    return model


def build_options(row):
    """The model of one row of options, with random weights, under the row's dtype policy."""
    changes = {}
    for factor, value in row.items():
        changes |= OPTIONS[factor][value]
    keras.config.set_dtype_policy(row["policy"])
    try:
        model = build_vit(tiny_config(**changes, depth=1))
    finally:
        keras.config.set_dtype_policy("float32")
    fill_random(model)
    return model
