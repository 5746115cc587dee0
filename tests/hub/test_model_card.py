"""The page of a model on the hub."""

from __future__ import annotations

import json
import re

from keras_vit.hub.model_card import CardFacts, Counts, make_card
from keras_vit.intervals import wilson_interval

CONFUSION = {("cat", "cat"): 8, ("cat", "dog"): 2, ("dog", "dog"): 5}


def front_matter(card):
    """The fields at the top: JSON, which is YAML."""
    start, fields, _ = card.split("---\n", 2)
    assert start == ""
    pairs = (line.split(": ", 1) for line in fields.splitlines())
    return {name: json.loads(value) for name, value in pairs}


def test_accuracy_has_intervals_and_classes_their_confusion():
    counts = Counts("15 test images", ("cat", "dog"), CONFUSION)
    facts = CardFacts("vit_b16", class_names=("cat", "dog"), counts=counts, metrics={"loss": 0.25})
    card = make_card(facts, "me/pets", "timm")
    low, high = wilson_interval(13, 15)
    expected = f"{1300 / 15:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"
    assert f"Accuracy on 15 test images: {expected}." in card
    assert "| cat | 10 | 80.0 % (" in card and "| dog | 5 | 100.0 % (" in card
    assert "| cat | 8 | 2 |\n| dog | 0 | 5 |" in card
    assert "| loss | 0.25 |" in card


def test_of_many_classes_the_worst_are_shown():
    names = tuple(f"c{i}" for i in range(30))
    confusion = {(name, name): 9 for name in names} | {("c7", "c8"): 3, ("c4", "c5"): 1}
    facts = CardFacts("vit_b16", class_names=names, counts=Counts("images", names, confusion))
    card = make_card(facts, "me/many", None, "reason")
    assert "The 20 of 30 classes that are recognised least:" in card
    assert card.index("| c7 | 12 |") < card.index("| c4 | 10 |") and "| c29 |" not in card
    assert "| c7 | c8 | 3 |\n| c4 | c5 | 1 |" in card


def test_the_hub_reads_library_licence_and_base_model():
    facts = CardFacts(
        "vit_s16",
        class_names=("a", "b"),
        weights="vit_s16/dino",
        source="hf://owner/dino/model.safetensors",
        weights_licence="Apache-2.0",
    )
    fields = front_matter(make_card(facts, "me/x", "transformers"))
    assert fields["library_name"] == "transformers" and fields["license"] == "apache-2.0"
    assert fields["base_model"] == "owner/dino"
    assert fields["pipeline_tag"] == "image-classification"
    other = make_card(CardFacts("x", weights="w", weights_licence="DINOv3 License"), "me/x", None)
    assert front_matter(other)["license_name"] == "dinov3-license"
    assert "Training began with the weights w. Their licence: DINOv3 License." in other
    unknown = make_card(CardFacts("x", weights="w"), "me/x", None)
    assert "license" not in front_matter(unknown) and "Their licence: not known" in unknown
    own = make_card(CardFacts("x", licence="MIT"), "me/x", None)
    assert front_matter(own)["license"] == "mit" and "Licence of this model: MIT." in own


def test_names_of_others_stay_text():
    name = "a|b](http://x)<script>\n---\nlicense: mit"
    counts = Counts("1 image", (name,), {(name, name): 1})
    facts = CardFacts(name, class_names=(name,), counts=counts, settings={"recipe": name})
    card = make_card(facts, "me/x", "timm")
    assert card.count("\n---\n") == 1 and "license" not in front_matter(card)
    body = card.partition("\n---\n")[2]
    assert r"\]" in body and not re.search(r"(?<!\\)[<\[\]]", body)
    rows = [line for line in body.splitlines() if line.startswith("| a")]
    assert rows and all(row.replace(r"\|", "").count("|") in (3, 4) for row in rows)


def test_settings_are_flat_and_what_is_empty_is_left_out():
    plan = {"optimizer": "sgd", "averaging": None, "drops": [], "augmentation": {"flip": True}}
    card = make_card(CardFacts("x", settings={"seed": 0, "plan": plan}), "me/x", None)
    assert '| seed | 0 |\n| optimizer | "sgd" |\n| flip | true |' in card and "drops" not in card
