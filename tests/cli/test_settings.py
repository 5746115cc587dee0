"""Settings of `keras-vit train`: each is a flag and a key of a TOML file, made from its field."""

from __future__ import annotations

import dataclasses

import pytest

from keras_vit.cli.commands import COMMANDS
from keras_vit.cli.main import main
from keras_vit.cli.parser import build_parser
from keras_vit.cli.settings import (
    SETTINGS,
    read_settings,
    settings_of,
    split_settings,
    write_settings,
)
from keras_vit.config import BlockOptions, ResNetConfig, ViTConfig
from keras_vit.data.augmentation import Augmentation
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.recipes import RECIPES

TRAIN = next(command for command in COMMANDS if command.name == "train")


def parse(*words):
    parsed = vars(build_parser([TRAIN]).parse_args(["train", "--data", ".", *words]))
    return {name: value for name, value in parsed.items() if name in SETTINGS and value != "."}


def test_every_field_is_a_setting():
    expected = {
        field.name
        for source in (Recipe, Augmentation, ViTConfig, BlockOptions, ResNetConfig)
        for field in dataclasses.fields(source)
    }
    # These follow from the data, or from the name of the model; two have fields of their own, and
    # a run trains at one size.
    left_out = {"classes", "classifier_activation", "stem", "rope", "augmentation", "preprocessing"}
    left_out |= {"any_size", "block"}
    assert expected - left_out <= set(SETTINGS)
    assert all(setting.summary for setting in SETTINGS.values())


@pytest.mark.parametrize(
    ("words", "line", "expected"),
    [
        (("--steps", "24"), "steps = 24", {"steps": 24}),
        (("--learning-rate", "1e-3"), "learning_rate = 1e-3", {"learning_rate": 1e-3}),
        (("--learning-rate", "1"), "learning_rate = 1", {"learning_rate": 1.0}),
        (("--clip-norm", "none"), 'clip_norm = "none"', {"clip_norm": None}),
        (("--rand-augment", "2,15"), "rand_augment = [2, 15]", {"rand_augment": (2, 15.0)}),
        (("--patch-size", "8"), "patch_size = 8", {"patch_size": (8, 8)}),
        (("--drops", "0.3,0.6"), "drops = [0.3, 0.6]", {"drops": (0.3, 0.6)}),
        (("--no-flip",), "flip = false", {"flip": False}),
        (("--inner-norms", "mlp"), 'inner_norms = ["mlp"]', {"inner_norms": ("mlp",)}),
        (
            ("--without-bias", "query,key"),
            'without_bias = ["query", "key"]',
            {"without_bias": ("query", "key")},
        ),
        (("--validation", "0.1"), "validation = 0.1", {"validation": "0.1"}),
        (("--strategy", "none"), 'strategy = "none"', {"strategy": "none"}),
        (("--data", 'a "b" ü'), 'data = "a \\"b\\" ü"', {"data": 'a "b" ü'}),
    ],
)
def test_flags_and_keys_are_the_same(words, line, expected, tmp_path):
    assert parse(*words) == expected
    path = tmp_path / "run.toml"
    path.write_text(line, encoding="utf-8-sig")  # as Windows saves it
    assert read_settings(path) == expected
    write_settings(path, expected)
    assert read_settings(path) == expected


def test_every_recipe_survives_the_file(tmp_path):
    start = RECIPES["finetune_pets"]
    for number, recipe in enumerate(RECIPES.values()):
        path = tmp_path / f"{number}.toml"
        write_settings(path, settings_of(recipe))
        (changes,) = split_settings(read_settings(path)).recipe
        assert start.replace(**changes) == recipe


def test_a_flag_keeps_the_share_of_a_warm_up_in_the_file():
    recipe = RECIPES["deit"]
    file, flags = settings_of(recipe.replace(steps=500, warmup_steps=50)), {"epochs": 3.0}
    for changes in split_settings({**file, "output": "a"}, {**flags, "output": "b"}).recipe:
        recipe = recipe.replace(**changes)
    assert recipe.steps is None and recipe.warmup_epochs == pytest.approx(0.3)
    assert split_settings({"output": "a"}, {"output": "b"}).run.output == "b"


def test_wrong_settings_are_all_named(tmp_path, capsys):
    path = tmp_path / "run.toml"
    lines = ("lerning_rate = 1", 'steps = "many"', "mixup = true", "clip_norm = nan")
    path.write_text("\n".join((*lines, "[augmentation]", "flip = true")))
    with pytest.raises(ValueError, match=r"run.toml has 5 wrong settings") as error:
        read_settings(path)
    for part in (
        "lerning_rate is unknown (the nearest is learning_rate)",
        "steps must be int | none. Received: 'many'",
        "mixup must be float. Received: True",
        "Received: nan",
        "[augmentation] is a table",
    ):
        assert part in str(error.value)
    for flag in ("--steps", "--learning-rate"):
        for digits in ("9" * 400, "9" * 5000):
            with pytest.raises(SystemExit):
                parse(flag, digits)
            assert len(capsys.readouterr().err.splitlines()[-1]) < 300
    for text in ("steps = " + "9" * 400, "mixup = " + "[" * 9999, "seed = 9223372036854775808"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"run\.toml"):
            read_settings(path)
    path.write_text("steps = = 2")
    with pytest.raises(ValueError, match="is not a TOML file"):
        read_settings(path)
    assert main(["train", "--config", str(tmp_path / "none.toml")]) == 2
    assert "There is no file" in capsys.readouterr().err
    assert main(["train", "--data", str(tmp_path), "--dry-run", "--find-learning-rate"]) == 2
    assert "both train the model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse("--steps", "2.5")
    assert "argument --steps: steps must be int | none" in capsys.readouterr().err
