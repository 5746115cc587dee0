"""The flag --unreadable: every command that reads images lists bad files, and skips them."""

from __future__ import annotations

import json
import pathlib
import shutil
import types

import numpy as np
import pytest

import keras_vit
from keras_vit.cli.data_check import describe_data
from keras_vit.cli.main import main
from tests.data.pictures import write_colours
from tests.fixtures import tiny_config


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """A model, and a folder with an empty file and one that is damaged in the middle."""
    monkeypatch.chdir(tmp_path)
    config = tiny_config(image_size=16, patch_size=8, depth=1, classes=2)
    keras_vit.build_vit(config).save("two.keras")
    write_colours(tmp_path / "photos", 3)
    (tmp_path / "names.txt").write_text("blue\nred\n")
    (tmp_path / "photos/red/empty.png").write_bytes(b"")
    damaged = tmp_path / "photos/blue/damaged.png"
    data = bytearray((tmp_path / "photos/blue/0.png").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    damaged.write_bytes(data)
    return "photos/red/empty.png", "photos/blue/damaged.png"


def received_images(monkeypatch):
    """What the exports and `write_report` would get."""
    counts = []

    def count(*arguments, images=(), **_):
        batches = [*images] or [*arguments[2]]
        counts.append(sum(len(each) if np.ndim(each) == 4 else 1 for each in batches))
        return types.SimpleNamespace(format="saved_model")

    monkeypatch.setattr("keras_vit.export.saved_model.export_saved_model", count)
    monkeypatch.setattr("keras_vit.export.verify.verify_export", count)
    monkeypatch.setattr("keras_vit.report.model_page.write_report", count)
    return counts


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ["evaluate", "--data", "photos", "--model", "two.keras", "--labels", "names.txt"],
            marks=pytest.mark.slow,
        ),
        ["predict", "photos", "--model", "two.keras"],
        ["export", "two.keras", "--to", "saved_model", "--images", "photos"],
        ["verify", "exported/1", "two.keras", "--images", "photos"],
        ["inspect", "two.keras", "photos"],
    ],
    ids=lambda words: words[0],
)
def test_bad_files_are_an_error_or_skipped(words, bad, monkeypatch, capsys):
    counts = received_images(monkeypatch)
    assert main(words) == 2
    assert bad[0] in capsys.readouterr().err and not counts
    with pytest.warns(UserWarning, match="2 files in .* are left out") as caught:
        assert main([*words, "--unreadable", "skip"]) == 0
    assert all(path in str(caught[0].message) for path in bad)
    printed = capsys.readouterr().out
    if words[0] == "evaluate":
        assert printed.endswith("of 6 images\n")
    elif words[0] == "predict":
        assert len(printed.splitlines()) == 6
    else:
        assert counts == [6]


def test_check_lists_bad_files_and_can_fail(bad, capsys):
    assert main(["check", "photos", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["number"] for each in findings if each["kind"] == "unreadable files"] == [2]
    assert main(["check", "photos", "--unreadable", "error"]) == 2
    captured = capsys.readouterr()
    assert all(path in captured.out for path in bad)
    assert "2 files in photos cannot be read" in captured.err


def test_the_facts_before_training_are_those_of_the_images_that_train(bad):
    for name in ("green", "grey"):
        write_colours(bad_folder := pathlib.Path("more") / name, 1)
        (pathlib.Path("photos") / name).mkdir()
        shutil.copy(bad_folder / "red/0.png", f"photos/{name}/0.png")
    with pytest.warns(UserWarning, match="2 files"):
        images = keras_vit.read_folder("photos", unreadable="skip", check="pixels")
    facts = list(describe_data(images, None, None))
    assert ("folder", "photos") in facts
    assert ("training", "green 1, grey 1, blue 3, red 3") in facts
    assert ("note", "2 unreadable files: they are left out") in facts
    assert ("note", "one training image or none: green, grey; add images") in facts
    assert len(facts) == len(set(facts)) and "--unreadable" not in str(facts)
    training, held_out = images.split(3, seed=1)
    counts = dict(zip(images.class_names, np.bincount(training.labels, minlength=4), strict=True))
    shown = dict(describe_data(training, held_out, None))["training"]
    assert sorted(shown.split(", ")) == sorted(f"{name} {n}" for name, n in counts.items())
    assert training.skipped == images.skipped
