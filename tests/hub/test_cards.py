"""Cards: each fits its architecture, its file's size and its publisher's names."""

from __future__ import annotations

import re

import pytest

import keras_vit
from keras_vit.config import ResNetConfig, ViTConfig, replace_fields
from keras_vit.families.table import FAMILIES
from keras_vit.hub.addresses import download_url, parse_hub_address
from keras_vit.hub.catalog import CARDS, find_card, list_weights
from keras_vit.variants import VARIANTS

ALL = list_weights()
# Values in the stems of hybrids, as the official models have them.
STEM_VALUES = {
    (): 9_536,
    (2, 2, 2, 2): 13_946_176,
    (3, 4, 9): 11_894_848,
    (3, 4, 6, 3): 23_508_032,
}


def config_of(card):
    changes = {
        "image_size": card.image_size,
        "classes": card.classes,
        "preprocessing": card.preprocessing,
    }
    return replace_fields(VARIANTS[card.variant], **changes, **card.options)


def count_values(config: ViTConfig) -> int:
    """Values of a ViT with class token and learned positions, by the paper's own arithmetic."""
    D, M = config.width, config.block.mlp_dim
    patch = config.patch_size[0] * config.patch_size[1]
    stem, channels, tokens = 0, 3, config.num_patches + 1
    if config.stem is not None:
        stem = STEM_VALUES[config.stem.stages]
        stages = len(config.stem.stages)
        channels = 64 * 2 ** (stages + 1) if stages else 64
        shrinks = 4 * 2 ** max(stages - 1, 0) * config.patch_size[0]
        tokens = (config.image_size[0] // shrinks) ** 2 + 1
    block = 4 * D + 4 * (D * D + D) + 2 * D * M + M + D
    hidden = D * D + D if config.pre_logits else 0
    head = (D + 1) * config.classes
    return (
        stem
        + patch * channels * D
        + D
        + D
        + tokens * D
        + config.depth * block
        + 2 * D
        + hidden
        + head
    )


def test_there_is_a_card_for_every_family():
    layouts = {card.layout for card in ALL}
    assert layouts == {"official", "bit", "big_vision", "timm", "transformers"}
    files = [file for family in FAMILIES for each in family.cards for file in each.files]
    assert len(files) == len(CARDS) == len(ALL) > 300  # no tag stands for two
    assert all(re.match(r"https://(arxiv\.org/abs|huggingface\.co)/", card.paper) for card in ALL)


def test_every_card_fits_its_architecture():
    for card in ALL:
        config = config_of(card)  # raises where an option does not fit
        assert isinstance(config, ResNetConfig if card.variant[:4] == "bit_" else ViTConfig)


def test_every_card_has_the_gelu_of_its_source():
    for card in ALL:
        if card.layout in ("official", "big_vision"):
            assert config_of(card).block.gelu == "tanh", card.name
        elif re.search("openai|dfn(?!2b_s39b)|metaclip", card.tag):
            assert config_of(card).block.gelu == "quick", card.name
        elif "siglip" not in card.name and card.variant[:4] != "bit_":
            assert config_of(card).block.gelu == "exact", card.name


def test_licences_that_restrict_use_say_so():
    for card in ALL:
        if card.variant[:7] == "dinov3_" and "eupe" not in card.tag:
            assert card.licence == "DINOv3 License" and "must include the agreement" in card.note
        if re.search("metaclip|eupe", card.tag):
            assert "Noncommercial" in card.licence or card.licence == "CC-BY-NC-4.0"
            assert card.note == "Not for commercial use."


def test_every_card_says_where_it_comes_from():
    for card in ALL:
        assert re.fullmatch(r"[a-z0-9_]+", card.tag)
        assert card.source.startswith("https://") and card.paper and card.licence
        assert (card.top1 is None) == (card.top1_source is None), card.name
        assert card.top1 is None or (card.classes == 1000 and 60 < card.top1 < 92), card.name


def test_every_address_can_be_fetched_from():
    for card in ALL:
        if card.address.startswith("hf://"):
            assert parse_hub_address(card.address).revision is None
        else:
            url = download_url(card.address)
            assert url.startswith("https://storage.googleapis.com/") and url.endswith(".npz")
            assert "+" not in url


def test_a_tag_ends_in_the_image_size_where_it_is_not_the_usual_one():
    for card in ALL:
        pixels = re.search(r"_(\d{3})$", card.tag)
        assert card.image_size == (int(pixels[1]) if pixels else 224,) * 2, card.name


def test_no_address_has_two_cards():
    assert len({(card.address, card.layout) for card in ALL}) == len(ALL)


SIZED = [card for card in ALL if card.mebibytes and card.name != "vit_s16/sam_in1k"]


@pytest.mark.parametrize("card", SIZED, ids=lambda card: card.name)
def test_the_listed_size_is_that_of_its_values_in_float32(card):
    expected = 4 * count_values(config_of(card)) / 2**20
    whole = card.mebibytes == int(card.mebibytes)
    gibibytes = card.mebibytes > 1024 and not whole
    assert card.mebibytes == pytest.approx(
        expected, abs=5.2 if gibibytes else 0.6 if whole else 0.3
    )


def test_sized_cards_are_many_and_the_arithmetic_is_right():
    assert len(SIZED) >= 24
    assert count_values(VARIANTS["vit_b16"]) == 86_567_656
    assert count_values(VARIANTS["r50_vit_b16"]) == 98_659_112
    assert count_values(VARIANTS["r_vit_ti16"]) == 6_337_704


def test_the_2020_files_have_their_hidden_layer_and_no_usable_head():
    for card in ALL:
        if card.tag == "orig_in21k":
            assert card.options["pre_logits"] == VARIANTS[card.variant].width
            assert card.classes == 21843 and "predicts nothing" in card.note


AUGREG_B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


@pytest.mark.parametrize(
    ("name", "address", "top1"),
    [
        (
            "vit_b16/augreg_in21k_ft_in1k_384",
            f"gs://vit_models/augreg/{AUGREG_B16}--imagenet2012-steps_20k-lr_0.03-res_384.npz",
            85.49,
        ),
        (
            "r50_vit_b16/orig_in21k_ft_in1k_384",
            "gs://vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz",
            84.988,
        ),
        ("bit_r50x1/distilled_in1k", "gs://bit_models/distill/R50x1_224.npz", 82.8),
        (
            "vit_giantopt16/siglip2_webli_384",
            "gs://big_vision/siglip2/siglip2_g-opt16_384.npz",
            None,
        ),
        (
            "vit_b14/timm_dinov2_reg4_lvd142m_518",
            "hf://timm/vit_base_patch14_reg4_dinov2.lvd142m",
            None,
        ),
        (
            "vit_s16/timm_deit_distilled_in1k",
            "hf://timm/deit_small_distilled_patch16_224.fb_in1k",
            81.204,
        ),
        ("vit_h14/hf_mae", "hf://facebook/vit-mae-huge", None),
    ],
)
def test_published_addresses_and_accuracies(name, address, top1):
    card = find_card(*name.split("/"))
    assert (card.address, card.top1) == (address, top1)


def test_list_weights_answers_to_every_name_of_an_architecture():
    cards = keras_vit.list_weights("vit_b16")
    assert cards == keras_vit.list_weights("B/16") == keras_vit.list_weights("vit_base_patch16_384")
    assert cards == sorted(cards, key=lambda card: card.tag)
    assert {card.variant for card in cards} == {"vit_b16"} and len(cards) > 50
    assert keras_vit.list_weights() == ALL
    with pytest.raises(ValueError, match="There is no variant 'vit_b17'"):
        keras_vit.list_weights("vit_b17")


def test_an_unknown_tag_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"Did you mean 'augreg_in21k'.*There are: augreg_in1k, "):
        find_card("vit_b16", "augreg_in21")
    with pytest.raises(ValueError, match=r"That tag exists for .*vit_b16.*There are: orig_in21k\."):
        find_card("r26_vit_b32", "augreg_in21k")
    with pytest.raises(ValueError, match=r"No checkpoint of 'vit_gigantic14'.*hf://timm/NAME"):
        find_card("vit_gigantic14", "augreg_in21k")
