"""What the files of a run say about its model."""

from __future__ import annotations

import csv
import json

import pytest

from keras_vit.hub.upload import push
from keras_vit.train.runs import load_run
from tests.fixtures import tiny_vit

CONFIG = {
    "data": "/home/somebody/photos",
    "model": "vit_s16",
    "weights": "hf_dino",
    "recipe": "finetune_pets",
    "class_names": ["cat", "dog"],
    "image_lists": {
        "training": {"images": 90, "sha256": "0"},
        "test": {"images": 3, "sha256": "1"},
    },
    "plan": {"optimizer": "sgd"},
    "versions": {"keras": "3"},
}
PAIRS = [("cat", "cat"), ("cat", "dog"), ("dog", "dog")]


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that has ended."""
    tiny_vit(depth=1, classes=2, gelu="exact").save(tmp_path / "model.keras")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "results.json").write_text(json.dumps({"test accuracy": 2 / 3, "seconds": 9}))
    write_predictions(tmp_path, PAIRS)
    return tmp_path


def write_predictions(folder, pairs, columns=("file", "true", "predicted")):
    with open(folder / "predictions.csv", "w") as file:
        csv.writer(file).writerows([columns, *(("/home/secret.png", *pair) for pair in pairs)])


def test_a_card_has_results_data_and_licence_of_the_weights(folder, monkeypatch):
    facts = load_run(folder).card_facts()
    assert facts.counts.images == "3 test images"
    assert facts.counts.of_class("cat") == (1, 2) and facts.counts.of_class("dog") == (1, 1)
    assert facts.metrics == {"test accuracy": 2 / 3}
    assert facts.data == "Images: training 90, test 3."
    assert facts.weights == "vit_s16/hf_dino" and facts.weights_licence == "Apache-2.0"
    assert facts.source == "hf://facebook/dino-vits16"


def test_neither_paths_nor_names_of_images_are_published(folder, tmp_path):
    push(load_run(folder), "hf://me/pets", dry_run=tmp_path / "pushed")
    card = (tmp_path / "pushed/README.md").read_text()
    assert "Accuracy on 3 test images: 66.7 % (" in card and '| optimizer | "sgd" |' in card
    texts = [path.read_bytes() for path in (tmp_path / "pushed").iterdir()]
    assert not any(b"/home/" in text for text in texts) and "sha256" not in card


@pytest.mark.parametrize(
    ("model", "weights", "name", "source", "licence"),
    [
        ("vit_s16", None, None, None, None),
        ("vit_s16/hf_dino", None, "vit_s16/hf_dino", "hf://facebook/dino-vits16", "Apache-2.0"),
        ("vit_s16", "hf://me/mine", "hf://me/mine", "hf://me/mine", None),
        ("vit_s16", "/home/me/mine.npz", "mine.npz", None, None),
        ("/home/me/mine.keras", None, "mine.keras", None, None),
        ("runs/pets", None, "pets", None, None),
        ("hf://facebook/dino-vits16", None, "vit_s16/hf_dino", "hf://facebook/dino-vits16",
         "Apache-2.0"),
    ],
)  # fmt: skip
def test_where_the_weights_are_from(folder, model, weights, name, source, licence):
    changed = {**CONFIG, "model": model, "weights": weights}
    (folder / "config.json").write_text(json.dumps(changed))
    facts = load_run(folder).card_facts()
    assert (facts.weights, facts.source, facts.weights_licence) == (name, source, licence)


def test_predictions_of_another_model_are_not_its_results(folder):
    (folder / "best.keras").write_bytes((folder / "model.keras").read_bytes())
    assert load_run(folder).card_facts().counts is not None
    assert load_run(folder, "final").card_facts().counts is None
    write_predictions(folder, PAIRS[:2])
    assert load_run(folder).card_facts().counts.images == "2 labelled images"
    (folder / "predictions.csv").unlink()
    assert load_run(folder).card_facts().counts is None


def test_damaged_predictions_are_an_error_that_says_what_to_do(folder):
    write_predictions(folder, [("cat", "cow")])
    with pytest.raises(ValueError, match=r"names 1 classes .* Write it again with `keras-vit rep"):
        load_run(folder).card_facts()
    write_predictions(folder, PAIRS, columns=("file", "label", "class"))
    with pytest.raises(ValueError, match=r"predictions\.csv is damaged \(KeyError: 'true'\)"):
        load_run(folder).card_facts()
