"""Hybrids, BiT ResNets and Cordonnier et al.: exact parameter counts and names."""

from __future__ import annotations

import dataclasses

import pytest

import keras_vit
from keras_vit.config import ResNetConfig
from keras_vit.create import build
from keras_vit.variants import VARIANTS, configure, find_config, find_variant
from tests.fixtures import abstract_model

# Backbone at 224 and 384 pixels; with a head of 1,000 classes at 224 and 384; of 21,843 classes at
# 224 without and with the pre-training hidden layer. The counts with 1,000 classes at 224 are those
# that the official repository's tests assert.
HYBRIDS = {
    "r_vit_ti16": (6144704, 6162944, 6337704, 6355944, 10360403, 10397459),
    "r26_vit_s32": (36046912, 36083392, 36431912, 36468392, 44456467, 44604307),
    "r26_vit_b32": (100614976, 100687936, 101383976, 101456936, 117412243, 118002835),
    "r50_vit_b16": (97890112, 98181952, 98659112, 98950952, 114687379, 115277971),
    "r50_vit_l32": (327969856, 328067136, 328994856, 329092136, 350358931, 351408531),
}
# Arrays of the official models of 1,000 classes, whose queries, keys and values are apart: four
# arrays more in a block than here.
ARRAYS = {
    "r_vit_ti16": 203,
    "r26_vit_s32": 287,
    "r26_vit_b32": 287,
    "r50_vit_b16": 356,
    "r50_vit_l32": 551,
}
# Backbone, and with 1,000 and 21,843 classes.
RESNETS = {
    "bit_r50x1": (23500352, 25549352, 68256659),
    "bit_r50x3": (211174080, 217319080, 345399315),
    "bit_r101x1": (42492480, 44541480, 87248787),
    "bit_r101x3": (381789888, 387934888, 516015123),
    "bit_r152x2": (232238208, 236335208, 321728979),
    "bit_r152x4": (928340224, 936533224, 1107299923),
}
STEMS = {
    (): 9_536,
    (2, 2, 2, 2): 13_946_176,
    (3, 4, 9): 11_894_848,
    (3, 4, 6, 3): 23_508_032,
}


def arrays(config):
    weights = abstract_model(lambda: build(config)).weights
    return [weight for weight in weights if "seed_generator" not in weight.path]


def count(config):
    return sum(weight.shape.num_elements() for weight in arrays(config))


def expected_resnet(stages, width_factor):
    """Parameters of a BiT backbone by arithmetic: kernels, and two numbers a normalised channel."""
    total, channels = 7 * 7 * 3 * 64 * width_factor, 64 * width_factor
    for stage, num_units in enumerate(stages):
        filters = 64 * width_factor * 2**stage
        for unit in range(num_units):
            total += 2 * channels + channels * filters  # first norm and convolution
            total += 2 * filters + 9 * filters**2
            total += 2 * filters + 4 * filters**2
            total += 4 * channels * filters if unit == 0 else 0
            channels = 4 * filters
    return total + 2 * channels


def parts(config):
    """Parameters of a hybrid's backbone, hidden layer and head, all blocks counted."""
    shallow = dataclasses.replace(config, depth=1)
    found = {"backbone": 0, "pre_logits": 0, "head": 0}
    for weight in arrays(shallow):
        layer, size = weight.path.split("/")[0], weight.shape.num_elements()
        found[layer if layer in found else "backbone"] += size
        if layer == "block_0":  # blocks are alike, and building all takes long
            found["backbone"] += (config.depth - 1) * size
    return found


@pytest.mark.parametrize("name", sorted(HYBRIDS))
def test_parameter_counts_of_hybrids(name):
    config = VARIANTS[name]
    large = parts(dataclasses.replace(config, image_size=384))
    many = parts(dataclasses.replace(config, classes=21843, pre_logits=config.width))
    assert (
        many["backbone"],
        large["backbone"],
        many["backbone"] + large["head"],
        large["backbone"] + large["head"],
        many["backbone"] + many["head"],
        many["backbone"] + many["head"] + many["pre_logits"],
    ) == HYBRIDS[name]


@pytest.mark.parametrize("name", sorted(ARRAYS))
def test_a_whole_hybrid_has_the_official_arrays(name):
    config = VARIANTS[name]
    found = arrays(config)
    assert len(found) == ARRAYS[name] - 4 * config.depth
    assert sum(weight.shape.num_elements() for weight in found) == HYBRIDS[name][2]
    stem = [weight for weight in found if weight.path.startswith("stem_")]
    assert sum(weight.shape.num_elements() for weight in stem) == STEMS[config.stem.stages]


@pytest.mark.parametrize("name", ["r50_vit_b32", "r50_vit_l16"])
def test_hybrids_that_were_never_published_are_a_stem_and_a_transformer(name):
    """Their counts are those of the plain ViT, the stem, and the difference of the patches."""
    config = dataclasses.replace(VARIANTS[name], depth=1)
    plain = dataclasses.replace(VARIANTS["vit_" + name.partition("_vit_")[2]], depth=1)
    kernel = config.stem.channels * config.width
    plain_kernel = 3 * plain.patch_size[0] * plain.patch_size[1] * plain.width
    expected = count(plain) + STEMS[config.stem.stages] + kernel - plain_kernel
    assert count(config) == expected
    assert config.grid == plain.grid


@pytest.mark.parametrize("name", sorted(n for n in VARIANTS if n.startswith("bit_")))
def test_parameter_counts_of_resnets(name):
    config = VARIANTS[name]
    backbone = expected_resnet(config.stages, config.width_factor)
    heads = tuple(config.width * classes + classes for classes in (1000, 21843))
    assert RESNETS.get(name, (backbone,))[0] == backbone
    assert RESNETS.get(name, (0, 0, 0))[1:] in ((0, 0), tuple(backbone + head for head in heads))
    assert count(config) == backbone + heads[0]


def test_the_relative_of_the_paper():
    config = find_config("vit_cordonnier2")
    assert config.grid == (16, 16)
    rest = 2 * 2 * 3 * 400 + 400 + 10 * 401
    mlp, norms = 2 * 400 * 512 + 512 + 400, 4 * 400
    attention = 9 * 400 * 400 + 400 + 400 * 401
    for kind, own, millions in (  # Table 1 of the paper
        ("quadratic", 3 * 9, 12.1),
        ("offsets", 2 * 31 * 400 + 2 * 400 * 9, 12.3),
        ("relative_2d", 2 * 31 * 200 + 2 * 401 * 9 * 400, 29.5),
    ):
        own_config = dataclasses.replace(config, grid_attention=kind, classes=10)
        assert count(own_config) == rest + 6 * (mlp + norms + attention + own)
        assert round(count(own_config) / 1e6, 1) == millions


def test_every_variant_has_its_row_and_its_constructor():
    named = {*HYBRIDS, "r50_vit_b32", "r50_vit_l16", "vit_cordonnier2"}
    named |= {name for name, config in VARIANTS.items() if isinstance(config, ResNetConfig)}
    assert {n for n, c in VARIANTS.items() if getattr(c, "stem", True)} <= named
    public = {title.lower(): title for title in keras_vit.__all__}
    for name in named:
        constructor = getattr(keras_vit, public[name.replace("_", "")])
        assert repr(name) in constructor.__doc__


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("R50+B/16", "r50_vit_b16"),
        ("R50+ViT-B_16", "r50_vit_b16"),
        ("R50_L_32", "r50_vit_l32"),
        ("R_Ti_16", "r_vit_ti16"),
        ("R+ViT-Ti_16", "r_vit_ti16"),
        ("R+Ti/16", "r_vit_ti16"),
        ("R26+S/32", "r26_vit_s32"),
        ("R26_B_32", "r26_vit_b32"),
        ("vit_tiny_r_s16_p8", "r_vit_ti16"),
        ("vit_small_r26_s32_384", "r26_vit_s32"),
        ("vit_base_r50_s16_224", "r50_vit_b16"),
        ("R152x4", "bit_r152x4"),
        ("BiT-M-R50x1", "bit_r50x1"),
        ("resnetv2_101x3_bit", "bit_r101x3"),
        ("B_16", "vit_b16"),
    ],
)
def test_names_of_the_paper_and_of_files(alias, name):
    assert find_variant(alias) == name


def test_the_grid_of_a_hybrid_follows_its_stem():
    assert configure("R+Ti/16").grid == (7, 7)  # /32 in truth, as in the official code
    assert configure("R+Ti/16", input_shape=(384, 384, 3)).grid == (12, 12)
    assert configure("R50+B/16").grid == (14, 14)
    assert configure("R50+L/32").grid == (7, 7)
    assert configure("R50+B/16", input_shape=(230, 250, 3)).grid == (15, 16)
