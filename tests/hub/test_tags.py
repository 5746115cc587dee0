"""Models from the tags of published weights."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS
from keras_vit.variants import VARIANTS
from tests.fixtures import tiny_config
from tests.official import GOLDEN, load_golden

PREPROCESSING = Preprocessing(mean=100.0, std=50.0, crop_ratio=0.9)


@pytest.fixture
def tiny_tag(tmp_path, monkeypatch):
    """A card of a small official checkpoint for 32 pixels, of an architecture for 64."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    bucket = tmp_path / "mirror" / "storage.googleapis.com" / "tests"
    bucket.mkdir(parents=True)
    shutil.copy(GOLDEN / "vit_token.checkpoint.npz", bucket / "tiny.npz")
    card = Card("vit_tiny", "in10", "gs://tests/tiny.npz", "official", (32, 32), classes=10,
                preprocessing=PREPROCESSING, options={"norm_epsilon": 1e-5})  # fmt: skip
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(image_size=64))
    monkeypatch.setitem(CARDS, (card.variant, card.tag), card)
    return card


def test_a_tag_gives_the_published_model(tiny_tag):
    model = keras_vit.create_model("vit_tiny", weights="in10", classes=10, norm_epsilon=1e-6,
                                   include_preprocessing=False)  # fmt: skip
    _, outputs = load_golden("vit_token")
    logits = model.predict(outputs["images"], verbose=0)
    np.testing.assert_allclose(logits, outputs["logits"], rtol=0, atol=2e-5)
    assert model.input_shape == (None, 32, 32, 3)


def test_a_card_decides_what_the_caller_leaves_open(tiny_tag):
    config = keras_vit.create_model("vit_tiny", weights="in10", classes=10).config
    assert config.preprocessing == PREPROCESSING
    assert (config.block.norm_epsilon, config.image_size) == (1e-5, (32, 32))


def test_the_caller_goes_before_the_card(tiny_tag):
    model = keras_vit.create_model(
        "vit_tiny", weights="in10", input_shape=(48, 48, 3), norm_epsilon=1e-6, classes=5
    )
    assert model.config.image_size == (48, 48)
    assert model.config.block.norm_epsilon == 1e-6
    assert model.load_report.fresh == ("head/kernel", "head/bias")


def test_an_unknown_tag_lists_the_others(tiny_tag):
    with pytest.raises(ValueError, match=r"no weights 'in11' of 'vit_tiny'.*There are: in10\."):
        keras_vit.create_model("vit_tiny", weights="in11")


def test_a_size_in_the_name_of_a_variant_is_a_choice(monkeypatch):
    from keras_vit.variants import chosen_fields

    assert "image_size" in chosen_fields("vit_base_patch16_384", True, None, None, {})
    assert "image_size" not in chosen_fields("vit_base_patch16", True, None, None, {})
