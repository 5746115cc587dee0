"""The pages about weights say what the cards and the code say."""

from __future__ import annotations

import pathlib
import re

import keras_vit
from keras_vit.cli.main import COMMANDS
from keras_vit.hub.catalog import CARDS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "weights.md").read_text()


def test_every_command_and_setting_is_on_the_page():
    for command in (command for command in COMMANDS if command.name.startswith("weights ")):
        [line] = [
            line for line in PAGE.splitlines() if line.startswith(f"keras-vit {command.name}")
        ]
        for each in command.arguments:
            assert each.names[0].lstrip("-") in line.lower() or each.settings["metavar"] in line
    code = "".join(path.read_text() for path in (ROOT / "keras_vit").rglob("*.py"))
    settings = set(re.findall(r"KERAS_VIT_[A-Z_]+", code))
    assert settings and settings <= set(re.findall(r"KERAS_VIT_[A-Z_]+", PAGE))


def test_tags_and_names_in_the_examples_exist():
    tags = set(re.findall(r'weights="([a-z0-9_]+)"', PAGE))
    assert tags and all(("vit_b16", tag) in CARDS for tag in tags)
    for name in re.findall(r"keras_vit\.([A-Za-z_0-9]+)\(", PAGE):
        assert hasattr(keras_vit, name), name
    addresses = set(re.findall(r'weights="((?:gs|hf)://[^"]+)"', PAGE))
    assert addresses <= {card.address for card in CARDS.values()}
    prefixes = set(re.findall(r"`([a-z0-9_]+_)\*`", PAGE))
    assert all(any(tag.startswith(prefix) for _, tag in CARDS) for prefix in prefixes)
    assert all(any(tag.startswith(prefix) for prefix in prefixes) for _, tag in CARDS)
