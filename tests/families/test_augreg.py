"""Names of the AugReg files, both ways, and the choice that the official code makes."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_vit
from keras_vit.families import augreg
from keras_vit.families.augreg import ADAPTED_TO, AUGMENTATIONS, DATASETS, MODELS
from keras_vit.hub.catalog import list_weights
from keras_vit.variants import VARIANTS, find_variant

COLUMNS = [
    "name",
    "ds",
    "epochs",
    "lr",
    "aug",
    "wd",
    "do",
    "sd",
    "best_val",
    "final_val",
    "final_test",
    "adapt_ds",
    "adapt_lr",
    "adapt_steps",
    "adapt_resolution",
    "adapt_final_val",
    "adapt_final_test",
    "params",
    "infer_samples_per_sec",
    "filename",
    "adapt_filename",
]


@settings(deadline=None)
@given(
    st.builds(
        dict,
        model=st.sampled_from([*MODELS, *MODELS.values()]),
        dataset=st.sampled_from([*DATASETS]),
        epochs=st.sampled_from([30, 300]),
        augmentation=st.sampled_from(AUGMENTATIONS),
        weight_decay=st.sampled_from([0.03, 0.1]),
        dropout=st.sampled_from([0.0, 0.1]),
        stochastic_depth=st.sampled_from([0.0, 0.1]),
        adapted_to=st.sampled_from([None, *ADAPTED_TO]),
        steps=st.sampled_from(["0k", "2k", "10k", "20k"]),
        adapted_learning_rate=st.sampled_from([0.001, 0.003, 0.01, 0.03]),
        image_size=st.sampled_from([224, 384]),
    )
)
def test_a_name_is_read_as_it_was_written(options):
    name = augreg.augreg_file_name(**options)
    file = augreg.parse_augreg_name(name)
    assert file.name == name
    assert file == augreg.parse_augreg_name(file.address.removesuffix(".npz"))
    assert file.variant == find_variant(MODELS.get(options["model"], options["model"]))
    assert (file.dataset, file.augmentation) == (options["dataset"], options["augmentation"])
    assert file.image_size == (options["image_size"] if options["adapted_to"] else 224)
    assert float(file.weight_decay) == options["weight_decay"]


def test_the_recommended_name_of_the_readme():
    name = augreg.augreg_file_name(
        "R26_S_32",
        augmentation="light1",
        adapted_to="imagenet2012",
        adapted_learning_rate=0.01,
    )
    assert name == (
        "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0"
        "--imagenet2012-steps_20k-lr_0.01-res_384.npz"
    )
    file = augreg.parse_augreg_name(name)
    assert (file.variant, file.classes, file.image_size) == ("r26_vit_s32", 1000, 384)


def test_every_card_of_augreg_has_a_name_that_is_read():
    cards = [card for card in list_weights() if "/augreg/" in card.address]
    assert len(cards) > 30
    for card in cards:
        file = augreg.parse_augreg_name(card.address)
        assert card.options["dropout_rate"] == 0 and augreg.is_augreg_name(card.address)
        assert (file.address, file.variant) == (card.address, card.variant)
        assert (file.classes, file.image_size) == (card.classes, card.image_size[0])


def test_models_are_architectures():
    assert set(MODELS) <= set(VARIANTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "X_16"}, r"no model='X_16'. There are: Ti_16, S_16"),
        ({"dataset": "jft"}, r"no dataset='jft'"),
        ({"augmentation": "light2"}, r"no augmentation='light2'. There are: none, light0"),
        ({"weight_decay": 0.2}, r"no weight_decay=0.2. There are: 0.03, 0.1"),
        ({"adapted_to": "pets"}, r"no adapted_to='pets'.*oxford_iiit_pet"),
        ({"adapted_to": "kitti", "image_size": 512}, r"no image_size=512"),
    ],
)
def test_settings_that_augreg_does_not_have(options, message):
    with pytest.raises(ValueError, match=message):
        augreg.augreg_file_name(**{"model": "B_16", **options})


@pytest.mark.parametrize("name", ["ViT-B_16.npz", "X_16-i21k-300ep-lr_0.001", "B_16-i21k.npz", ""])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="is not the name of an AugReg file"):
        augreg.parse_augreg_name(name)


def index_row(model, dataset, augmentation, final_val):
    name = augreg.augreg_file_name(model, dataset, augmentation=augmentation)
    stem = name.removesuffix(".npz")
    adapted = f"{stem}--imagenet2012-steps_20k-lr_0.03-res_384"
    row = dict.fromkeys(COLUMNS, "0")
    return {**row, "ds": dataset, "final_val": str(final_val), "filename": stem,
            "adapt_filename": adapted, "name": model}  # fmt: skip


@pytest.fixture
def index_path(tmp_path):
    rows = [
        index_row("B_16", "i21k", "light1", 0.41),
        index_row("B_16", "i21k", "medium1", 0.47),
        index_row("B_16", "i1k", "strong1", 0.79),
        index_row("R_Ti_16", "i21k", "none", 0.5),
        index_row("Ti_16", "i21k", "none", 0.3),
    ]
    path = tmp_path / "mirror" / "storage.googleapis.com" / "vit_models" / "augreg" / "index.csv"
    path.parent.mkdir(parents=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_default_pick_is_the_best_of_its_own_task(index_path):
    rows = augreg.read_augreg_index(index_path)
    assert augreg.find_best_augreg(rows, "vit_b16").augmentation == "medium1"
    assert augreg.find_best_augreg(rows, "Ti_16").variant == "vit_ti16"
    assert augreg.find_best_augreg(rows, "r_vit_ti16").model == "R_Ti_16"
    assert rows[1]["final_val"] == 0.47
    with pytest.raises(ValueError, match=r"no file of 'vit_l16'.*It has: B_16, R_Ti_16, Ti_16"):
        augreg.find_best_augreg(rows, "vit_l16")


def test_the_index_comes_through_the_cache(index_path, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    assert len(augreg.read_augreg_index(keras_vit.hub.fetch_weights(augreg.INDEX))) == 5
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert len(augreg.read_augreg_index(keras_vit.hub.fetch_weights(augreg.INDEX))) == 5


def test_another_table_is_not_the_index(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns adapt_filename, ds, filename"):
        augreg.read_augreg_index(path)
