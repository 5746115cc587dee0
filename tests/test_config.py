"""Bad input is refused when a configuration is made, with what to do about it."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from keras_vit.config import (
    EXCLUSIONS,
    IMAGENET_STATISTICS,
    Preprocessing,
    RotaryPositions,
    field_names,
    make_config,
)
from tests.fixtures import tiny_config

ROPE = RotaryPositions(reference_grid=(16, 16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 30}, r"image height must be a whole number of patches.*Crop to 24 pixels"),
        ({"image_size": (32, 36)}, r"image width must be a whole number .*4 pixels left over"),
        ({"image_size": 4}, r"Resize to 8 pixels, or change patch_size"),
        ({"image_size": (32, 32, 3)}, r"`image_size` must be a positive integer, or two"),
        ({"image_size": None}, r"`image_size` must be a positive integer"),
        ({"num_heads": 5}, r"width=32, num_heads=5. The nearest that do: 2, 4, 8"),
        ({"width": 0}, r"`width` must be a positive integer. Received: width=0"),
        ({"depth": 2.0}, r"`depth` must be a positive integer. Received: depth=2.0"),
        ({"classes": -1}, r"`classes` must be a positive integer"),
        ({"channels": True}, r"`channels` must be a positive integer"),
        ({"num_registers": -1}, r"`num_registers` must be 0 or more"),
        ({"dropout_rate": 1.0}, r"`dropout_rate` must be a number in \[0, 1\)"),
        ({"attention_dropout_rate": -0.1}, r"`attention_dropout_rate` must be a number"),
        ({"stochastic_depth_rate": "0.1"}, r"`stochastic_depth_rate` must be a number"),
        ({"patch_dropout_rate": 2}, r"`patch_dropout_rate` must be a number"),
        ({"pooling": "mean"}, r"`pooling` must be one of 'token', 'gap', 'map'.*'mean'"),
        ({"position_embedding": "rope"}, r"`position_embedding` must be one of 'learned'"),
        ({"gelu": "erf"}, r"`gelu` must be one of .*'quick', 'relu'. Received: 'erf'"),
        (
            {"class_token": False},
            r'reads the class token.*"gap" and "map".*set class_token to True',
        ),
        (
            {"pooling": "gap", "distillation_token": True},
            r"distillation token is read together with the class token",
        ),
        ({"classes": None, "pre_logits": 32}, r"classes=None asks for no head"),
        (
            {"position_embedding": "relative", "patch_dropout_rate": 0.5},
            r"Relative positions need every patch",
        ),
        (
            {"position_embedding": "sincos_2d", "width": 30, "num_heads": 5},
            r"needs a width that 4 divides. Received: width=30",
        ),
        ({"norm": "batch"}, r"`norm` must be one of 'layer', 'rms'. Received: 'batch'"),
        ({"inner_norms": "head"}, r"`inner_norms` must be one of 'attention', 'mlp'"),
        ({"without_bias": ("head",)}, r"`without_bias` must be one of 'patch', 'query'"),
        ({"rope": ROPE, "num_heads": 16}, r"4 must divide .*2 channels a head"),
        ({"rope": ROPE, "patch_dropout_rate": 0.5}, r"Rotary .* patch_dropout_rate=0.5"),
        ({"rope": ROPE, "num_merged_tokens": 2}, r"Rotary positions need .*num_merged_tokens=2"),
        ({"rope": ROPE, "position_embedding": "relative"}, r"position_embedding='relative'"),
        *(
            ({"position_embedding": "relative_bias", **changes}, message)
            for changes, message in (
                ({"num_registers": 1}, r"entries for one class token.*num_registers=1"),
                ({"distillation_token": True}, r"entries for one class.*distillation_token=True"),
                ({"num_merged_tokens": 2}, r"Relative .* every patch .*num_merged_tokens=2"),
                ({"patch_dropout_rate": 0.5}, r"Relative .* every patch .*patch_dropout_rate"),
                ({"any_size": True}, r"of one grid.*'relative_bias', any_size=True"),
                ({"window_size": 2}, r"of one grid.*'relative_bias', window_size=\(2, 2\)"),
                ({"rope": ROPE}, r"position_embedding='relative_bias'"),
                ({"max_num_patches": 16, "class_token": False, "pooling": "gap"}, "any aspect"),
            )
        ),
        ({"position_resize": "geometric"}, r"`position_resize` must be one of 'align_corners'"),
        ({"rope": {"register_base": 9.0}, "num_registers": 2}, r"square grid: 1, 4, .*registers=2"),
        (
            {"channels": 1, "preprocessing": IMAGENET_STATISTICS},
            r"statistics for 3 channels, the image has 1",
        ),
    ],
)
def test_bad_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean": (1, 2, 3)}, r"`mean` and `std` need one value a channel"),
        ({"std": 0}, r"`std` must be above 0"),
        ({"interpolation": "lanczos"}, r"`interpolation` must be one of 'bilinear'"),
        ({"crop_ratio": 1.5}, r"`crop_ratio` must be in \(0, 1\]"),
    ],
)
def test_bad_preprocessing_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"coordinates": "pixels"}, r"`coordinates` must be one of 'index', 'centered'"),
        ({"order": "yx"}, r"`order` must be one of 'hw', 'wh'"),
        ({"base": 1}, r"`base` must be above 1. Received: 1"),
        ({"register_base": 1}, r"`register_base` must be above 1. Received: 1"),
        ({"reference_grid": 0}, r"`reference_grid` must be a positive integer"),
        ({"coordinates": "centered", "offset": 1.0}, r'belong to coordinates="index"'),
    ],
)
def test_bad_rotary_positions_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RotaryPositions(**fields)


def test_a_configuration_survives_json():
    config = tiny_config(
        image_size=(32, 40),
        num_registers=4,
        preprocessing=IMAGENET_STATISTICS,
        rope=dataclasses.replace(ROPE, register_base=100.0),
        inner_norms=("mlp",),
        without_bias=("value", "key"),
    )
    assert config.block.without_bias == ("key", "value")  # in one order
    assert make_config(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_configuration_is_frozen_and_hashable():
    config = tiny_config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 64
    assert hash(config) == hash(tiny_config())


def test_derived_values():
    config = tiny_config(
        image_size=(32, 48), patch_size=(8, 16), num_registers=4, distillation_token=True
    )
    assert (config.grid, config.num_patches) == ((4, 3), 12)
    assert (config.num_class_tokens, config.num_prefix_tokens) == (2, 6)
    assert (config.head_dim, config.input_shape) == (8, (32, 48, 3))


def test_numpy_integers_are_integers():
    assert tiny_config(width=np.int64(32), image_size=np.int32(32)).grid == (4, 4)


def exclusions_table() -> str:
    """The table of docs/configuration.md."""
    rows = ["| choice | then | because |", "| --- | --- | --- |"]
    for row in EXCLUSIONS:
        chosen = " or ".join(f"`{row.field}={value!r}`" for value in row.values)
        needs = (
            f"`{field}`: {' or '.join(f'`{value!r}`' for value in values)}"
            for field, values in row.needs.items()
        )
        choice = chosen or f"another `{row.field}`"
        rows.append(f"| {choice} | {', '.join(needs)} | {row.reason} |")
    return "\n".join(rows)


def test_the_docs_have_the_table_of_what_excludes_what():
    page = pathlib.Path(__file__).parents[1] / "docs/configuration.md"
    assert exclusions_table() in page.read_text()


def test_every_row_of_the_table_names_fields():
    names = set(field_names(tiny_config()))
    for row in EXCLUSIONS:
        assert {row.field, *row.needs} <= names
        assert row.needs and row.field not in row.needs
