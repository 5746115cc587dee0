"""The pages about weights say what the cards and the code say."""

from __future__ import annotations

import pathlib
import re

import numpy as np

import keras_vit
from keras_vit.cli.commands import COMMANDS
from keras_vit.create import build
from keras_vit.hub.catalog import CARDS
from tests.fixtures import tiny_config
from tests.weights.folders import THEIRS

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


def test_the_guide_of_a_folder_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build(tiny_config(**THEIRS)).save_pretrained("my-vit")
    guide = PAGE.partition("## Your Hugging Face folder")[2]
    block = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    names = {"images": np.full((2, 32, 32, 3), 99.0, "float32"), "labels": np.array([0, 1])}
    exec(block[1], names)
    ours, theirs = (names[name](names["images"]) for name in ("model", "again"))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert '"1": "dog"' in (tmp_path / "my-pets" / "config.json").read_text()


def test_titles_of_the_three_pages_differ():
    pages = ("weights.md", "checkpoints.md", "weights-table.md")
    titles = [(ROOT / "docs" / page).read_text().splitlines()[0] for page in pages]
    assert len({title.split()[1] for title in titles}) == 3
