"""The table of architectures: exact parameter counts, names, nearest names."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

import keras_vit
from keras_vit import create
from keras_vit.config import ViTConfig, field_value
from keras_vit.evaluate.counting import count_parameters, count_stages
from keras_vit.families.table import FAMILIES
from keras_vit.models.vit import build_vit
from keras_vit.variants import NAMES, VARIANTS, find_config, find_variant, list_variants
from tests.checks import quick
from tests.fixtures import abstract_model
from tests.official import GOLDEN

# Backbone at 224 and 384 pixels; with a head of 1,000 classes at 224 and 384; of 21,843 classes
# at 224 without and with the pre-training hidden layer; of 1,000 with it. The counts of variants
# in the official repository are those that its own tests assert.
PARAMETERS = {
    "vit_ti16": (5524416, 5597376, 5717416, 5790376, 9740115, 9777171, 5754472),
    "vit_s32": (22493952, 22530432, 22878952, 22915432, 30903507, 31051347, 23026792),
    "vit_s16": (21665664, 21811584, 22050664, 22196584, 30075219, 30223059, 22198504),
    "vit_b32": (87455232, 87528192, 88224232, 88297192, 104252499, 104843091, 88814824),
    "vit_b16": (85798656, 86090496, 86567656, 86859496, 102595923, 103186515, 87158248),
    "vit_b8": (85807872, 86975232, 86576872, 87744232, 102605139, 103195731, 87167464),
    "vit_l32": (305510400, 305607680, 306535400, 306632680, 327899475, 328949075, 307585000),
    "vit_l16": (303301632, 303690752, 304326632, 304715752, 325690707, 326740307, 305376232),
    "vit_h14": (630764800, 631370240, 632045800, 632651240, 658745683, 660385363, 633685480),
    "vit_giant14": (
        *(1011202432, 1011868416, 1012611432, 1013277416),
        *(1041979219, 1043963091, 1014595304),
    ),
    "vit_gigantic14": (
        *(1842775680, 1843562752, 1844440680, 1845227752),
        *(1879144275, 1881914835, 1847211240),
    ),
}


NEWER = {name for name in VARIANTS if not name.startswith(("vit_", "bit_")) and "_vit_" not in name}
# Classes, or none, and parameters of timm's own models.
TIMM_PARAMETERS = json.loads((GOLDEN / "timm_parameters.json").read_text())


def parameters_by_depth(config):
    """As `count_parameters`, of a model of one block: the other blocks equal it."""
    if not isinstance(config, ViTConfig):
        return count_parameters(config)
    parts = {s.name: s.parameters for s in count_stages(dataclasses.replace(config, depth=1))}
    return sum(parts.values()) + (config.depth - 1) * parts["block_0"]


@pytest.mark.slow
def test_every_plain_vit_of_timm_has_its_parameters():
    for name, (classes, parameters) in TIMM_PARAMETERS.items():
        config = dataclasses.replace(find_config(name), classes=classes)
        # timm's table has a row for each register too, which are registers of another value here.
        extra = config.width * config.num_registers if "_so150m" in f"_{name}" else 0
        extra *= not name.startswith("naflex")
        assert parameters_by_depth(config) + extra == parameters, name
    for name, variant in (
        ("facebook/dinov2-with-registers-base", "vit_base_patch14_reg4_dinov2"),
        ("facebook/ijepa_vith16_1k", "vit_huge_patch16_gap"),
        ("facebook/dinov3-vitl16-pretrain-sat493m", "dinov3_l16"),
        ("apple/aimv2-3B-patch14-448", "aimv2_3b_patch14"),
        ("laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", "clip_gigantic14"),
    ):
        assert find_variant(name) == variant
    assert find_config("facebook/ijepa_vith16_1k").grid == (28, 28)
    assert find_config("laion/CLIP-ViT-B-32-laion2B-s34B-b79K").block.gelu == "exact"
    with pytest.raises(ValueError, match=r"Did you mean .*'vit_medium_patch16_reg4_gap'"):
        find_config("vit_medium_patch16_reg5_gap_256")
    model = keras_vit.create_model("vit_wee_patch16_reg1_gap_256", depth=1, classes=5)
    assert model.name == "vit_wee_patch16_reg1_gap" and model.input_shape == (None, 256, 256, 3)


def count(config):
    return abstract_model(lambda: build_vit(config)).count_params()


def settings(config):
    """The seven settings of the table. Patches of 14 pixels cover 378 of 384."""
    large = dataclasses.replace(config, image_size=384 - 384 % config.patch_size[0])
    for classes, pre_logits, images in [
        (None, None, config),
        (None, None, large),
        (1000, None, config),
        (1000, None, large),
        (21843, None, config),
        (21843, config.width, config),
        (1000, config.width, config),
    ]:
        yield dataclasses.replace(images, classes=classes, pre_logits=pre_logits)


@pytest.mark.parametrize("name", quick(sorted(PARAMETERS), "vit_b16", "vit_h14", "vit_l32"))
def test_parameter_counts_are_the_published_ones(name):
    shallow = dataclasses.replace(VARIANTS[name], depth=1)
    per_block = count(dataclasses.replace(shallow, depth=2)) - count(shallow)
    missing = (VARIANTS[name].depth - 1) * per_block  # blocks are alike; building all takes long
    counts = tuple(count(config) + missing for config in settings(shallow))
    assert counts == PARAMETERS[name]


# With a head of 1,000 classes at 224 pixels, by the arithmetic of tests/hub/test_cards.py, which
# the sizes of published files confirm. These come with weights of DINO, DINOv2, DeiT III, SigLIP.
MORE_PARAMETERS = {
    "vit_s8": 22_055_272,
    "vit_s14": 22_004_584,
    "vit_m16": 38_837_736,
    "vit_b14": 86_475_496,
    "vit_l14": 304_203_752,
    "vit_so400m14": 413_597_656,
    "vit_so400m16": 413_735_896,
    "vit_giantopt16": 1_136_286_184,
}


@pytest.mark.parametrize("name", sorted(MORE_PARAMETERS))
def test_parameter_counts_of_the_other_sizes(name):
    config = VARIANTS[name]
    one, two = (count(dataclasses.replace(config, depth=depth)) for depth in (1, 2))
    assert one + (config.depth - 1) * (two - one) == MORE_PARAMETERS[name]


# With a head of 1,000 classes: `sum(p.numel() for p in timm.create_model(NAME).parameters())` of
# timm 1.0.31. Its heads have a bias, its DINOv3 models are those with biases of queries and values.
FAMILY_PARAMETERS = {
    "clip_b32": 88_225_000,
    "clip_b16": 86_568_424,
    "clip_l14": 304_204_776,
    "clip_h14": 632_047_080,
    "clip_giant14": 1_012_612_840,
    "clip_gigantic14": 1_844_442_344,
    "dinov3_s16": 21_981_160,
    "dinov3_splus16": 29_077_480,
    "dinov3_b16": 86_428_648,
    "dinov3_l16": 304_153_576,
    "dinov3_hplus16": 841_872_360,
    "eva02_ti14": 5_695_144,
    "eva02_s14": 22_006_120,
    "eva02_b14": 86_527_720,
    "dinov3_7b16": 6_720_127_976,
    "eva02_l14": 304_293_800,
    "pe_core_ti16": 6_235_240,
    "pe_core_s16": 23_971_048,
    "pe_core_b16": 93_655_528,
    "pe_core_l14": 317_127_656,
    "pe_core_gigantic14": 1_881_603_560,
    "pe_lang_l14": 292_440_040,
    "pe_lang_gigantic14": 1_742_459_624,
    "pe_spatial_ti16": 5_876_200,
    "pe_spatial_s16": 22_368_232,
    "pe_spatial_b16": 87_202_792,
    "pe_spatial_l14": 304_989_160,
    "pe_spatial_gigantic14": 1_853_424_104,
    "aimv2_l14": 310_222_824,
    "aimv2_h14": 682_388_968,
    "siglip2_naflex_b16": 93_699_304,
    "siglip2_naflex_so400m16": 429_041_064,
    "dinov2_giant14": 1_138_016_232,  # at 518 pixels
    "beit_b16": 86_530_984,
    "beit_l16": 304_430_568,
    "beitv2_b16": 86_530_984,
    "beitv2_l16": 304_430_568,
    "vit5_s16": 22_039_144,  # of its authors' models, as the three that follow
    "vit5_b16": 86_543_080,
    "vit5_l16": 304_258_024,
    "vit5_xl16": 448_505_128,
}


def test_parameter_counts_of_newer_families_are_timms():
    configs = {name: VARIANTS[name] for name in NEWER}
    configs["dinov2_giant14"] = find_config("vit_giant_patch14_dinov2")
    assert {x: parameters_by_depth(each) for x, each in configs.items()} == FAMILY_PARAMETERS


@pytest.mark.parametrize("name", ["dinov3_splus16", "eva02_b14", "aimv2_l14", "pe_core_b16"])
def test_newer_families_build_as_they_are_counted(name):
    config = dataclasses.replace(VARIANTS[name], depth=1)
    assert count(config) == count_parameters(config)


def test_every_plain_variant_has_its_row():
    plain = {name for name in VARIANTS if name.startswith("vit_")}
    plain -= {"vit_cordonnier2"}  # no official count
    assert plain == set(PARAMETERS) | set(MORE_PARAMETERS)


def test_the_parameter_count_of_a_whole_model():
    assert count(VARIANTS["vit_b16"]) == PARAMETERS["vit_b16"][2]


@pytest.mark.slow
def test_the_largest_model_builds_whole():
    assert count(VARIANTS["vit_gigantic14"]) == PARAMETERS["vit_gigantic14"][2]


def test_the_official_model_without_class_token():
    config = dataclasses.replace(VARIANTS["vit_s16"], pooling="gap", class_token=False)
    assert count(config) == 22049896


def test_every_variant_has_its_constructor():
    titles = {name.replace("_", ""): name for name in VARIANTS if name not in NEWER}
    for lowered, name in titles.items():
        [title] = [public for public in keras_vit.__all__ if public.lower() == lowered]
        assert getattr(create, title).__name__ == title
        assert repr(name) in getattr(create, title).__doc__


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("B/16", "vit_b16"),
        ("ViT-B/16", "vit_b16"),
        ("ViT-B_16", "vit_b16"),
        ("Ti/16", "vit_ti16"),
        ("g/14", "vit_giant14"),
        ("G/14", "vit_gigantic14"),
        ("vit_g14", "vit_giant14"),
        ("vit_G14", "vit_gigantic14"),
        ("vit_base_patch16_224", "vit_b16"),
        ("vit_small_patch32_384", "vit_s32"),
        ("vit_huge_patch14_224", "vit_h14"),
        ("vit_b16", "vit_b16"),
    ],
)
def test_names_of_the_paper_and_of_timm(alias, name):
    assert find_variant(alias) == name


@pytest.mark.parametrize(
    ("name", "variant", "fields"),
    [
        ("vit_base_patch16_clip_224", "clip_b16", {"gelu": "exact"}),
        ("vit_base_patch16_clip_quickgelu_224", "clip_b16", {"gelu": "quick"}),
        ("openai/clip-vit-large-patch14-336", "clip_l14", {"image_size": (336, 336)}),
        ("vit_small_patch16_dinov3_qkvb", "dinov3_s16", {"pooling": "gap"}),
        (
            "vit_small_patch16_dinov3",
            "dinov3_s16",
            {"without_bias": ("query", "key", "value")},
        ),
        (
            "facebook/dinov3-vits16plus-pretrain-lvd1689m",
            "dinov3_splus16",
            {"pooling": "token", "swiglu": True},
        ),
        ("eva02_base_patch14_448", "eva02_b14", {"image_size": (448, 448)}),
        ("vit_giant_patch14_reg4_dinov2", "dinov2_giant14", {"num_registers": 4}),
        ("beit_large_patch16_512", "beit_l16", {"image_size": (512, 512), "layer_scale": 1e-5}),
        ("microsoft/beit-base-patch16-384", "beit_b16", {"image_size": (384, 384)}),
        ("vit5_base_patch16_384", "vit5_b16", {"image_size": (384, 384), "qk_norm": True}),
    ],
)
def test_names_of_newer_families(name, variant, fields):
    config = find_config(name)
    assert find_variant(name) == variant
    assert {field: field_value(config, field) for field in fields} == fields


def test_a_name_of_timm_carries_its_image_size():
    assert find_config("vit_base_patch16_384").image_size == (384, 384)
    assert find_config("vit_base_patch16").image_size == (224, 224)


def test_names_are_not_ambiguous():
    assert not set(NAMES) & set(VARIANTS)
    for family, other in itertools.permutations(FAMILIES, 2):
        assert not family.variants.keys() & other.variants and not family.names.keys() & other.names
    assert list_variants("vit_b") == ["vit_b14", "vit_b16", "vit_b32", "vit_b8"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_b17", r"There is no variant 'vit_b17'. Did you mean 'vit_b1?6'"),
        ("ViTB16", r"Did you mean"),
        ("resnet", r"There is no variant 'resnet'.*All: .*vit_b16"),
        ("vit_base_patch16_0", r"`image_size` must be a positive integer"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(name, message):
    with pytest.raises(ValueError, match=message):
        find_config(name)
