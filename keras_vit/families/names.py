"""Sizes that families share, and names of their models in other projects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_vit.families.keys import Fields

# Width, blocks, heads and hidden dimension of the MLP. Table 1 of https://arxiv.org/abs/2010.11929
# (b, l, h); Table 2 of https://arxiv.org/abs/2106.10270 (ti, s); Table 2 of
# https://arxiv.org/abs/2106.04560 (giant, gigantic); m is DeiT III's
# (https://arxiv.org/abs/2204.07118), so400m and giantopt are SigLIP's, in
# https://github.com/google-research/big_vision.
SIZES = {
    "ti": (192, 12, 3, 768),
    "s": (384, 12, 6, 1536),
    "m": (512, 12, 8, 2048),
    "b": (768, 12, 12, 3072),
    "l": (1024, 24, 16, 4096),
    "so400m": (1152, 27, 16, 4304),
    "h": (1280, 32, 16, 5120),
    "giantopt": (1536, 40, 16, 6144),
    "giant": (1408, 40, 16, 6144),
    "gigantic": (1664, 48, 16, 8192),
    "wee": (256, 14, 4, 1280),  # from here on timm's
    "xsmall": (256, 10, 4, 1024),
    "little": (320, 14, 5, 1792),
    "mediumd": (512, 20, 8, 2048),
    "betwixt": (640, 12, 10, 2560),
    "so150m": (896, 18, 14, 2304),
    "so150m2": (832, 21, 13, 2176),
    "1b": (2048, 24, 16, 5632),  # AIMv2's
    "3b": (3072, 24, 24, 8192),
}
# The words for them in names of other projects.
WORDS = {size: size for size in SIZES} | {
    "ti": "tiny", "s": "small", "m": "medium", "b": "base", "l": "large", "h": "huge",
}  # fmt: skip
_OF_WORD = {word: SIZES[size] for size, word in WORDS.items()}

EXACT: Fields = {"gelu": "exact"}
NO_KEY_BIAS: Fields = {"without_bias": ("key",)}
NO_QKV_BIAS: Fields = {"without_bias": ("query", "key", "value")}
GAP: Fields = {"pooling": "gap", "class_token": False}
MAP: Fields = {"pooling": "map", "class_token": False, "map_prefix_tokens": False}
NORM_LAST: Fields = {"norm_after_pooling": True}
# Positions of the patches alone.
PATCHES: Fields = {"position_on_class_token": False}
# Layer scale starts at 1e-5 in timm.
SCALED: Fields = {**EXACT, "layer_scale": 1e-5}


class Name(NamedTuple):
    """A name of a model in the paper, timm or on the Hugging Face hub, without an image size.

    Args:
        variant: The architecture; `None` for one that has no other name.
        fields: Fields of the configuration in which the name differs from it; all, if it has none.
        timm: The name with an image size that timm has, if it is one of timm's.
        settings: Fields in which files of timm with this name differ from the configuration.
    """

    variant: str | None
    fields: Mapping[str, Any] = MappingProxyType({})
    timm: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})


Names = dict[str, Name]


def sized(size: str | tuple[int, int, int, int], patch: int, *families: Fields) -> Fields:
    """Fields of a size with those of its family.

    Args:
        size: A name of `SIZES`, or width, blocks, heads and hidden dimension of the MLP.
        patch: Height and width of a patch in pixels.
        *families: Further fields; later ones override.
    """
    values = SIZES[size] if isinstance(size, str) else size
    fields = dict(zip(("width", "depth", "num_heads", "mlp_dim"), values, strict=True))
    merged: Fields = {"patch_size": patch, **fields}
    for family in families:
        merged.update(family)
    return merged


def of_timm(
    name: str,
    variant: str | None,
    fields: Mapping[str, Any] = MappingProxyType({}),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Names:
    """A name of timm. Its last number is the image size, which a caller may change.

    Args:
        name: The name, as timm has it.
        variant: As in `Name`, and so are the others.
        fields: With an `image_size`, the name keeps its number.
        settings: As in `Name`.
    """
    stem = name if "image_size" in fields else re.sub(r"_\d{3}$", "", name)
    return {stem: Name(variant, fields, name, settings)}


def joined(tables: Iterable[Names]) -> Names:
    """One table of several, of which later ones override."""
    return {name: value for table in tables for name, value in table.items()}


def architectures(
    name: str, words: str, *families: Fields, settings: Mapping[str, Any] = MappingProxyType({})
) -> Names:
    """Names of timm that are architectures of their own.

    Args:
        name: The name with `{}` for its size.
        words: Words for the sizes.
        *families: Fields; later ones override.
        settings: As in `Name`.
    """
    patch = re.search(r"patch(\d+)", name)
    names: Names = {}
    for word in words.split():
        fields = sized(_OF_WORD[word], int(patch[1]) if patch else 16, *families)
        names.update(of_timm(name.format(word), None, fields, settings))
    return names
