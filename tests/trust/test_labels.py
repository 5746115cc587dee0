"""Exchanged labels come first, near-duplicates before them, and the table trains again."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

from keras_vit.cli.main import main
from keras_vit.data.csv_file import read_csv
from keras_vit.data.image_set import read_arrays
from keras_vit.trust.labels import check_labels
from tests.fixtures import images_for, tiny_vit
from tests.trust.pictures import brightness_folder

pytest.importorskip("cleanlab")


def test_check_finds_exchanged_labels_and_writes_a_table_to_correct(tmp_path, capsys):
    brightness_folder(tmp_path / "photos")
    model = tiny_vit(classes=2)
    model.save(tmp_path / "m.keras")
    arguments = ["--labels", str(tmp_path / "m.keras"), "--output", str(tmp_path / "out")]
    main(["check", str(tmp_path / "photos"), *arguments])
    printed = capsys.readouterr().out
    for fact in (r"images: +61", r"probably wrong: +3", r"near-duplicates: +2"):
        assert re.search(fact, printed), printed
    with open(tmp_path / "out/labels.csv") as file:
        rows = list(csv.DictReader(file))
    names = [row["file"].split("photos/")[1] for row in rows]
    assert set(names[:2]) == {"dark/10.png", "bright/copy.png"}
    assert set(names[2:4]) == {"bright/3.png", "dark/44.png"}
    assert [row["#likely"] for row in rows[2:4]] == [
        "dark" if name.startswith("bright") else "bright" for name in names[2:4]
    ]
    assert {row["#near-duplicate"][-8:] for row in rows[:2]} == {"k/10.png", "copy.png"}
    page = (tmp_path / "out/labels.html").read_text()
    assert "Near-duplicates with different labels" in page and page.count("<figure") == 3 + 1
    images = read_csv(tmp_path / "out/labels.csv")
    assert images.task == "single_label" and images.num_images == 61
    assert images.class_names == ("bright", "dark")
    # the corrected table is checked again, in the same folder
    assert main(["check", str(tmp_path / "out/labels.csv"), *arguments]) == 0
    assert "images:           61" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "photos"), *arguments, "--headers-only"]) == 2
    assert "Leave out --validation" in capsys.readouterr().err


def test_what_has_no_single_label_is_refused(tmp_path):
    model = tiny_vit()
    images = read_arrays(images_for(model, 4), np.ones((4, 10), "float32"), task="regression")
    with pytest.raises(ValueError, match="one class each"):
        check_labels(model, images, tmp_path)
