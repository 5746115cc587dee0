"""Typical images of every kind come first, then those between two classes."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from keras_vit.cli.main import main
from keras_vit.data.image_set import read_arrays
from keras_vit.trust.suggestions import suggest_images
from tests.fixtures import tiny_vit
from tests.trust.pictures import brightness_folder

pytest.importorskip("sklearn")


def shades(levels, seed=0):
    """A picture of each level of grey, with a little noise."""
    noise = np.random.default_rng(seed).uniform(-4, 4, (len(levels), 32, 32, 3))
    return np.clip(np.reshape(levels, (-1, 1, 1, 1)) + noise, 0, 255).astype("uint8")


def test_without_labels_each_kind_is_chosen_once(tmp_path):
    kinds = np.repeat([10, 90, 170, 250], [30, 10, 6, 2])
    images = read_arrays(shades(kinds), np.zeros(48, int), ["?"])
    found = suggest_images(tiny_vit(), images, 4, tmp_path)
    assert sorted(kinds[list(found)]) == [10, 90, 170, 250] and set(found.values()) == {"typical"}
    assert kinds[next(iter(found))] == 10  # the largest
    of_one_class = read_arrays(shades([10, 250]), [0, 0], ["dark", "bright"])
    again = suggest_images(tiny_vit(), images, 4, tmp_path, of_one_class)
    assert again == found
    with pytest.raises(ValueError, match=r"48 images to label\. Received: count=49"):
        suggest_images(tiny_vit(), images, 49, tmp_path)


def test_with_labels_the_images_between_two_classes_are_chosen(tmp_path):
    levels = np.linspace(10, 250, 25)
    images = read_arrays(shades(levels), np.zeros(25, int), ["?"])
    known = read_arrays(
        shades([10, 20, 30, 230, 240, 250], 1), [0, 0, 0, 1, 1, 1], ["dark", "pale"]
    )
    found = suggest_images(tiny_vit(), images, 3, tmp_path, known)
    chosen = levels[list(found)]
    assert chosen.min() > 30 and chosen.max() < 230 and np.ptp(chosen) < 50
    assert set(found.values()) <= {"uncertain: dark or pale", "uncertain: pale or dark"}
    targets = read_arrays(shades([10, 20]), np.ones((2, 1), "float32"), task="regression")
    with pytest.raises(ValueError, match="Labelled images have one class each"):
        suggest_images(tiny_vit(), images, 3, tmp_path, targets)


def test_the_command_writes_a_table_to_fill_in(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brightness_folder(tmp_path / "photos", 20, (), -1)
    tiny_vit(classes=2).save("m.keras")
    assert main(["suggest", "m.keras", "photos", "--count", "5", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == 5
    table = facts["table to fill in"]
    with open(table) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 and {row["label"] for row in rows} == {""}
    assert (tmp_path / "runs/suggestions/suggestions.html").read_text().count("<figure") == 5
    for row in rows:
        row["label"] = "pale" if "bright" in row["file"] else "dark"
    with open("known.csv", "w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    words = ["suggest", "m.keras", "photos", "--count", "15", "--labelled", "known.csv"]
    assert main(words) == 0
    with open(table) as file:
        again = {row["file"] for row in csv.DictReader(file)}
    assert len(again) == 15 and not again & {row["file"] for row in rows}
    assert main([*words[:4], "16", *words[5:]]) == 2
    with open("known.csv", "a") as file:  # more labels, and the next choice in the same folder
        csv.writer(file).writerow([next(iter(again)), "dark", ""])
    assert main([*words[:4], "14", *words[5:]]) == 0
