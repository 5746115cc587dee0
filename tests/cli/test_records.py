"""`keras-vit records`, and commands on tars, Parquet files and records."""

import json
import pathlib

import pytest

from keras_vit.cli.main import main
from keras_vit.data.folder import read_folder
from keras_vit.data.record_folder import read_record_folder
from keras_vit.data.sources import open_images
from keras_vit.train import file_predictions
from tests.data.containers import write_parquet, write_tar


@pytest.fixture
def shards(place):
    """The training images of `place` as tars, and the test images as Parquet."""
    images = read_folder("train")
    pairs = [
        (pathlib.Path(path).read_bytes(), label) for path, label in zip(*images.rows, strict=True)
    ]
    members = [
        member
        for i, (image, label) in enumerate(pairs)
        for member in ((f"{i}.jpg", image), (f"{i}.cls", images.class_names[label].encode()))
    ]
    write_tar(place / "tars/0.tar", members)
    test = read_folder("test")
    content = [pathlib.Path(path).read_bytes() for path in test.rows[0]]
    write_parquet(place / "test.parquet", content, test.labels, test.class_names)
    return place


def test_records_of_a_folder_with_parts(place, capsys):
    assert main(["records", ".", "--output", "out", "--per-file", "10"]) == 0
    assert "out/train: " in capsys.readouterr().out
    train, test = (read_record_folder(f"out/{part}") for part in ("train", "test"))
    assert train.class_names == test.class_names == ("blue", "red")
    assert train.num_images == read_folder("train").num_images
    assert main(["records", ".", "--output", "out", "--per-file", "10"]) == 0
    assert "kept:    4 files" in capsys.readouterr().out
    assert main(["records", ".", "--output", "out", "--per-file", "9"]) == 2
    assert "out/train holds records that differ in per_file" in capsys.readouterr().err
    assert main(["check", "out", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert any("files of records" in fact["text"] for fact in facts)


@pytest.mark.slow
def test_commands_take_tars_and_parquet(shards, capsys, monkeypatch):
    (shards / "names.txt").write_text("\n".join(["blue", "red", *"abcdefgh"]))
    model = ("--model", "tiny.npz", "--labels", "names.txt", "--image-size", "16")
    assert main(["evaluate", "--data", "tars", *model, "--json"]) == 0
    on_tars = json.loads(capsys.readouterr().out)
    assert main(["evaluate", "--data", "train", *model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == on_tars
    assert main(["predict", "test.parquet", *model, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines][:2] == ["test.parquet:row 0", "test.parquet:row 1"]
    assert main(["predict", "test", *model, "--json"]) == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["classes"] for line in again] == [line["classes"] for line in lines]
    monkeypatch.setattr(file_predictions, "_LARGE", 8)
    monkeypatch.setenv("KERAS_VIT_PROGRESS", "1")
    assert main(["predict", "test.parquet", *model]) == 0
    assert "8 images in one process, which keeps all" in capsys.readouterr().err
    assert main(["predict", "test.parquet", "test", *model]) == 2
    assert "Files of one format are expected" in capsys.readouterr().err


@pytest.mark.slow
def test_training_on_tars(shards, capsys):
    words = ["--model", "vit_tiny", "--weights", "tiny.npz", "--recipe", "finetune_pets"]
    words += ["--image-size", "16", "--batch-size", "8", "--steps", "24", "--learning-rate", "0.05"]
    assert main(["train", "--data", "tars/*.tar", "--preview", "p.png", "--output", "r"]) == 0
    command = ["train", "--data", "tars", "--validation", "test.parquet", "--output", "run", *words]
    assert main(command) == 0 and main(command) == 0  # the second continues
    results = json.loads((shards / "run/results.json").read_text())
    assert results["val_accuracy"] == 1
    assert main(["evaluate", "--data", "test.parquet", "--model", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"] == 1
    assert main(["probe", "run", "tars", "--test", "test.parquet", "--json"]) == 0


def test_records_of_a_table(place, capsys):
    rows = [f"train/{path.parent.name}/{path.name}" for path in sorted(place.glob("train/*/*"))]
    lines = [f"{row},{row.split('/')[1]}" for row in rows]
    (place / "labels.csv").write_text("\n".join(["file,label", *lines]))
    assert main(["records", "labels.csv", "--output", "table", "--threads", "1"]) == 0
    assert "table: 32 images" in capsys.readouterr().out
    assert read_record_folder("table").class_names == ("blue", "red")
    (place / "labels.csv").write_text("\n".join(["file,a,b", *(f"{row},0,1" for row in rows)]))
    assert main(["records", "labels.csv", "--output", "several"]) == 0
    assert open_images("several").task == "multi_label"
