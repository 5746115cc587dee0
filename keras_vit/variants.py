"""The table of architectures, their names, and their configurations."""

from __future__ import annotations

import difflib
from typing import Any

from keras_vit.checks import check_names, pair
from keras_vit.config import (
    POOLINGS,
    RESNET_POOLINGS,
    Preprocessing,
    ResNetConfig,
    ResNetStem,
    ViTConfig,
    field_names,
    make_config,
    replace_fields,
)
from keras_vit.families.newer import FAMILIES, FAMILY_NAMES
from keras_vit.timm_architectures import TIMM_ARCHITECTURES

# Fields of the configuration that `create_model` has other arguments for.
_OWN_ARGUMENTS = {
    "image_size": "input_shape=(height, width, channels)",
    "channels": "input_shape=(height, width, channels)",
    "any_size": "input_shape=(None, None, channels)",
}

_SHAPE_ADVICE = (
    "`input_shape` must be (height, width, channels), or (None, None, channels) for images of any "
    "size. Received: {}."
)

# Table 1 of https://arxiv.org/abs/2010.11929 (B, L, H); Table 2 of https://arxiv.org/abs/2106.10270
# (Ti, S); Table 2 of https://arxiv.org/abs/2106.04560 (g, G); M is DeiT III's
# (https://arxiv.org/abs/2204.07118), So400m and g-opt are SigLIP's, in
# https://github.com/google-research/big_vision; patches of 8 and 14 pixels are DINO's and DINOv2's.
# The published fine-tuning configs drop out 0.1 in L/16 and H/14 and nothing elsewhere.
_COLUMNS = ("patch_size", "width", "depth", "num_heads", "mlp_dim", "dropout_rate")
_VIT = {
    "vit_ti16": (16, 192, 12, 3, 768, 0.0),
    "vit_s8": (8, 384, 12, 6, 1536, 0.0),
    "vit_s14": (14, 384, 12, 6, 1536, 0.0),
    "vit_s16": (16, 384, 12, 6, 1536, 0.0),
    "vit_s32": (32, 384, 12, 6, 1536, 0.0),
    "vit_m16": (16, 512, 12, 8, 2048, 0.0),
    "vit_b8": (8, 768, 12, 12, 3072, 0.0),
    "vit_b14": (14, 768, 12, 12, 3072, 0.0),
    "vit_b16": (16, 768, 12, 12, 3072, 0.0),
    "vit_b32": (32, 768, 12, 12, 3072, 0.0),
    "vit_l14": (14, 1024, 24, 16, 4096, 0.0),
    "vit_l16": (16, 1024, 24, 16, 4096, 0.1),
    "vit_l32": (32, 1024, 24, 16, 4096, 0.0),
    "vit_so400m14": (14, 1152, 27, 16, 4304, 0.0),
    "vit_so400m16": (16, 1152, 27, 16, 4304, 0.0),
    "vit_h14": (14, 1280, 32, 16, 5120, 0.1),
    "vit_giantopt16": (16, 1536, 40, 16, 6144, 0.0),
    "vit_giant14": (14, 1408, 40, 16, 6144, 0.0),
    "vit_gigantic14": (14, 1664, 48, 16, 8192, 0.0),
}

# Sections 3.1 and 4.1 of https://arxiv.org/abs/2010.11929 and the configs published with it: the
# transformer, the stages of its stem, and patches on the stem's maps. The number of a name is
# what stem and patch shrink the image by together; but R+Ti/16 shrinks it by 32, in the official
# code as here, for its root has a stride of 4. R50+B/32 and R50+L/16 were trained on JFT and never
# published; their dropout is that of the two published R50.
_HYBRIDS = {
    "r_vit_ti16": ("vit_ti16", (), 8, 0.0),
    "r26_vit_s32": ("vit_s32", (2, 2, 2, 2), 1, 0.0),
    "r26_vit_b32": ("vit_b32", (2, 2, 2, 2), 1, 0.0),
    "r50_vit_b16": ("vit_b16", (3, 4, 9), 1, 0.1),
    "r50_vit_b32": ("vit_b32", (3, 4, 6, 3), 1, 0.1),
    "r50_vit_l16": ("vit_l16", (3, 4, 9), 1, 0.1),
    "r50_vit_l32": ("vit_l32", (3, 4, 6, 3), 1, 0.1),
}

# Section 3.2 of https://arxiv.org/abs/1912.11370, and the baselines of the ViT paper's Table 6:
# units of the stages, and the width factor.
_BIT = {
    "bit_r50x1": ((3, 4, 6, 3), 1),
    "bit_r50x2": ((3, 4, 6, 3), 2),
    "bit_r50x3": ((3, 4, 6, 3), 3),
    "bit_r101x1": ((3, 4, 23, 3), 1),
    "bit_r101x3": ((3, 4, 23, 3), 3),
    "bit_r152x1": ((3, 8, 36, 3), 1),
    "bit_r152x2": ((3, 8, 36, 3), 2),
    "bit_r152x4": ((3, 8, 36, 3), 4),
    "bit_r200x3": ((3, 24, 36, 3), 3),
}

# The closest relative that the ViT paper names, https://arxiv.org/abs/1911.03584, with the settings
# of https://github.com/epfml/attention-cnn: patches of 2 x 2 pixels of CIFAR-10, 6 layers of 400
# channels, 9 heads of 400 channels each, norms after the sums, no class token. It is "SA learned
# emb. + content" of Table 1; grid_attention="offsets" is "SA learned emb." there, and
# "quadratic" is "SA quadratic emb."
_CORDONNIER = make_config(
    patch_size=(2, 2),
    width=400,
    depth=6,
    num_heads=9,
    head_width=400,
    mlp_dim=512,
    image_size=(32, 32),
    pooling="gap",
    class_token=False,
    position_embedding="none",
    grid_attention="relative_2d",
    gelu="exact",
    post_norm=True,
    norm_epsilon=1e-12,
    dropout_rate=0.1,
    attention_dropout_rate=0.1,
    preprocessing=Preprocessing(
        mean=(125.307, 122.961, 113.8575), std=(51.5865, 50.847, 51.255), interpolation="bilinear"
    ),
)


def _vit(*values: Any) -> ViTConfig:
    return make_config(**dict(zip(_COLUMNS, values, strict=True)))


def _hybrid(transformer: str, stages: tuple[int, ...], patch: int, dropout: float) -> ViTConfig:
    return replace_fields(
        _vit(*_VIT[transformer]),
        patch_size=(patch, patch),
        dropout_rate=dropout,
        stem=ResNetStem(stages),
    )


VARIANTS: dict[str, ViTConfig | ResNetConfig] = {
    **{name: _vit(*values) for name, values in _VIT.items()},
    **{name: _hybrid(*values) for name, values in _HYBRIDS.items()},
    **{name: ResNetConfig(*values) for name, values in _BIT.items()},
    "vit_cordonnier2": _CORDONNIER,
    **{name: make_config(**fields) for name, fields in FAMILIES.items()},
}

# The paper's short names, and timm's. Only the short g/14 and G/14 differ by case alone.
_SHORT = {"ti": "Ti", "so400m": "So400m", "giantopt": "g-opt", "giant": "g", "gigantic": "G"}
_TIMM = {
    "ti": "tiny",
    "s": "small",
    "m": "medium",
    "b": "base",
    "l": "large",
    "h": "huge",
    "so400m": "so400m",
    "giantopt": "giantopt",
    "giant": "giant",
    "gigantic": "gigantic",
}


def _split_name(name: str) -> tuple[str, str, str]:
    """Splits `"vit_b16"` into `b` (size), `B` (the paper's size) and `16` (patch)."""
    size = name.removeprefix("vit_").rstrip("0123456789")
    patch = name.removeprefix(f"vit_{size}")
    return size, _SHORT.get(size, size.upper()), patch


def _vit_aliases(name: str) -> list[str]:
    size, short, patch = _split_name(name)
    return [
        f"{short}/{patch}",
        f"vit_{short if short in 'gG' else size}{patch}",
        f"ViT-{short}/{patch}",
        f"ViT-{short}_{patch}",  # stem of the official file
        f"{short}_{patch}",  # stem of the AugReg files
        f"vit_{_TIMM[size]}_patch{patch}",
    ]


def _hybrid_aliases(name: str) -> list[str]:
    resnet, _, transformer = name.partition("_vit_")
    size, short, patch = _split_name(f"vit_{transformer}")
    stem = resnet.upper()
    timm = f"{resnet}_s16_p8" if resnet == "r" else f"{resnet}_s{patch}"
    return [
        f"{stem}+{short}/{patch}",
        f"{stem}+ViT-{short}/{patch}",
        f"{stem}+ViT-{short}_{patch}",  # stem of the official file
        f"{stem}_{short}_{patch}",  # stem of the AugReg files
        f"vit_{_TIMM[size]}_{timm}",
    ]


def _bit_aliases(name: str) -> list[str]:
    short = name.removeprefix("bit_").replace("r", "R")  # R50x1
    stems = [f"BiT-{short}", f"BiT-S-{short}", f"BiT-M-{short}"]  # of the official files
    return [short, *stems, f"resnetv2_{short.removeprefix('R')}_bit"]


def _aliases() -> dict[str, str]:
    rows = {
        **{name: _vit_aliases(name) for name in _VIT},
        **{name: _hybrid_aliases(name) for name in _HYBRIDS},
        **{name: _bit_aliases(name) for name in _BIT},
    }
    aliases = {alias: name for name, row in rows.items() for alias in row if alias != name}
    return {**aliases, **{name: variant for name, (variant, _) in FAMILY_NAMES.items()}}


ALIASES: dict[str, str] = _aliases()


def list_variants(prefix: str = "") -> list[str]:
    """Lists the names of this package's architectures that start with `prefix`, sorted.

    `create_model` takes those of the paper and of timm's plain ViTs too.
    """
    return sorted(name for name in VARIANTS if name.startswith(prefix))


def find_variant(name: str) -> str:
    """Finds the variant of any of its names: `"B/16"` gives `"vit_b16"`.

    Names of timm that mean no variant are variants of their own, without an image size.

    Raises:
        ValueError: If nothing has that name; the message lists the nearest names.
    """
    stem, _ = _split_image_size(name)
    variant = stem if stem in VARIANTS or stem in TIMM_ARCHITECTURES else ALIASES.get(stem)
    if variant is None:
        names = [*VARIANTS, *ALIASES, *TIMM_ARCHITECTURES]
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
        raise ValueError(
            f"There is no variant {name!r}. {advice}All: {', '.join(list_variants())}."
        )
    return variant


def find_config(name: str) -> ViTConfig | ResNetConfig:
    """Finds the configuration of a named architecture.

    Args:
        name: A name of the table (`"vit_b16"`, `"r50_vit_b16"`, `"bit_r50x1"`), of the paper
            (`"B/16"`, `"R50+B/16"`, `"R50x1"`), of an official file (`"ViT-B_16"`), of timm
            (`"vit_base_patch16_384"`, whose last number is the image size in pixels) or of a
            repository (`"openai/clip-vit-base-patch16"`).

    Returns:
        A `ViTConfig`, with a `stem` for a hybrid, or a `ResNetConfig`.

    Raises:
        ValueError: If nothing has that name; the message lists the nearest names.
    """
    variant = find_variant(name)
    config = VARIANTS.get(variant) or make_config(**TIMM_ARCHITECTURES[variant])
    stem, image_size = _split_image_size(name)
    changes = dict(FAMILY_NAMES[stem][1]) if stem in FAMILY_NAMES else {}
    if image_size is not None:
        changes["image_size"] = image_size
    return replace_fields(config, **changes)


def _split_image_size(name: str) -> tuple[str, tuple[int, int] | None]:
    """Splits `"vit_base_patch16_384"` into `("vit_base_patch16", (384, 384))`."""
    stem, _, size = str(name).rpartition("_")
    if name in TIMM_ARCHITECTURES:  # some sizes are part of the name
        return str(name), None
    if (stem in ALIASES or stem in TIMM_ARCHITECTURES) and size.isdigit():
        return stem, pair("image_size", int(size))
    return str(name), None


def configure(
    variant: str,
    include_top: bool = True,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    **options: Any,
) -> ViTConfig | ResNetConfig:
    """Makes the configuration of `create_model`: the variant's, with the caller's changes.

    Args:
        variant: Name of the architecture.
        include_top: As in `create_model`, and so are the others.
        input_shape: Height and width in pixels, or `None` twice for any size, and channels.
        pooling: How tokens become the input of the head, or the output without a head.
        classes: Outputs of the head.
        classifier_activation: Activation of the head.
        include_preprocessing: Whether the model takes pixels in [0, 255].
        **options: Other fields of the variant's configuration.

    Returns:
        A `ViTConfig` or a `ResNetConfig`.

    Raises:
        ValueError: If the variant or an option is unknown, or values do not fit together.
    """
    config = find_config(variant)
    _check_options(options, config)
    changes: dict[str, Any] = dict(options, include_preprocessing=include_preprocessing)
    if input_shape is not None:
        size, changes["channels"] = split_shape(input_shape)
        if size is None and isinstance(config, ViTConfig):
            changes["any_size"] = True
        else:
            changes["image_size"] = size
    if include_top:
        changes["classes"] = classes
        changes["classifier_activation"] = classifier_activation
    else:
        changes["classes"] = None
    if pooling is not None or not include_top:
        _check_pooling(pooling, config)
        changes["pooling"] = pooling
    return replace_fields(config, **changes)


def chosen_fields(
    variant: str,
    include_top: bool,
    input_shape: tuple[int | None, int | None, int] | None,
    pooling: str | None,
    options: dict[str, Any],
) -> set[str]:
    """Names the fields of the configuration that the caller chose."""
    chosen = set(options)
    if pooling is not None or not include_top:
        chosen.add("pooling")
    name_has_size = _split_image_size(variant)[1] is not None
    is_any = input_shape is not None and input_shape[0] is None
    if is_any and isinstance(find_config(variant), ViTConfig):
        return chosen | {"any_size"}  # positions are for the size of the checkpoint
    if input_shape is not None or name_has_size:  # "vit_base_patch16_384"
        chosen.add("image_size")
    return chosen


def _check_options(options: dict[str, Any], config: ViTConfig | ResNetConfig) -> None:
    for option in options:
        if option in _OWN_ARGUMENTS:
            raise ValueError(f"Pass {_OWN_ARGUMENTS[option]} in place of `{option}`.")
    check_names("option", options, field_names(config))


def split_shape(
    input_shape: tuple[int | None, int | None, int],
) -> tuple[tuple[int, int] | None, int]:
    """Image size, `None` for images of any size, and channels of an `input_shape`.

    Raises:
        ValueError: If it is no (height, width, channels).
    """
    if not isinstance(input_shape, (tuple, list)) or len(input_shape) != 3:
        raise ValueError(_SHAPE_ADVICE.format(input_shape))
    height, width, channels = input_shape
    if height is None and width is None and channels is not None:
        return None, channels
    if height is None or width is None or channels is None:
        raise ValueError(_SHAPE_ADVICE.format(tuple(input_shape)))
    if height <= 4 < channels:
        raise ValueError(
            "`input_shape` must be (height, width, channels), channels last. Received: "
            f"{tuple(input_shape)}; did you mean {(width, channels, height)}?"
        )
    return (height, width), channels


def _check_pooling(pooling: str | None, config: ViTConfig | ResNetConfig) -> None:
    poolings = RESNET_POOLINGS if isinstance(config, ResNetConfig) else POOLINGS
    if pooling not in (None, *poolings):
        raise ValueError(
            f"`pooling` must be None or one of {', '.join(map(repr, poolings))}. "
            f"Received: {pooling!r}."
        )
