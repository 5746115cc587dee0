"""Fixtures of tests of the command line."""

from __future__ import annotations

import shutil
import socket

import keras
import pytest

import keras_vit
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS
from keras_vit.variants import VARIANTS
from tests.data.pictures import write_colours
from tests.fixtures import fill_random, tiny_config
from tests.official import GOLDEN


class ConnectedError(Exception):
    """A command has connected to something."""


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Refuses connections: no command connects unless it is asked to."""

    def refuse(*_, **__):
        raise ConnectedError

    for owner, name in ((socket.socket, "connect"), (socket, "getaddrinfo")):
        monkeypatch.setattr(owner, name, refuse)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A tiny architecture, weights for it, images, and a folder to be in."""
    tiny = tiny_config(image_size=16, patch_size=8, depth=1, stochastic_depth_rate=0.1)
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny)  # whose first block drops nothing
    model = keras_vit.create_model("vit_tiny", classes=10)
    fill_random(model, 0.1)
    keras_vit.save_weights(model, tmp_path / "tiny.npz", "official")
    write_colours(tmp_path / "train")
    write_colours(tmp_path / "test", 4, seed=1)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """An architecture of the size of the small official checkpoints, with one on a card."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    bucket = tmp_path / "mirror" / "storage.googleapis.com" / "tests"
    bucket.mkdir(parents=True)
    shutil.copy(GOLDEN / "vit_token.checkpoint.npz", bucket / "tiny.npz")
    card = Card("vit_tiny", "in10", "gs://tests/tiny.npz", "official", (32, 32), 10)
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config())
    monkeypatch.setitem(CARDS, (card.variant, card.tag), card)
