"""`keras-vit train` and what follows, on the labels and numbers of CSV files."""

from __future__ import annotations

import csv
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.export.inference import check_outputs, prepare
from keras_vit.train.runs import activation_of
from keras_vit.variants import VARIANTS
from tests.data.pictures import encoded
from tests.fixtures import tiny_config

COUNT = 40
WORDS = ("--model", "vit_tiny", "--image-size", "16", "--batch-size", "8", "--steps", "60",
         "--learning-rate", "0.01")  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Images with a level of red and of blue, tables of both kinds, and a folder to be in."""
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(image_size=16, patch_size=8, depth=1))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    tables = {name: [] for name in ("labels", "test", "prices")}
    for i in range(COUNT):
        red, blue = rng.uniform(0, 1, 2)
        x = rng.uniform(0, 60, (20, 24, 3)) + 150 * np.array([red, 0, blue])
        (tmp_path / f"photos/{i}.png").write_bytes(encoded(x.astype("uint8"), "png"))
        tables["labels" if i < 32 else "test"].append((i, int(red > 0.5), int(blue > 0.5)))
        tables["prices"].append((f"{i}.png", 1000 + 500 * red))
    heads = {"labels": ("id", "red", "blue"), "test": ("id", "red", "blue")}
    for name, rows in tables.items():
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([heads.get(name, ("file", "price")), *rows])
    yield tmp_path
    keras.config.set_dtype_policy("float32")


def run(*words):
    return main(["train", "--data-dir", "photos", *WORDS, *words])


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_several_labels_from_a_table_to_an_export(place, capsys):
    assert main(["check", "labels.csv", "--data-dir", "photos", "--validation", "0.25"]) == 0
    checked = capsys.readouterr().out
    assert "labels.csv: multi_label" in checked and "24" in checked and "blue 1" in checked
    words = ["--data", "labels.csv", "--test", "test.csv", "--output", "runs/labels"]
    assert run(*words) == 0
    printed = capsys.readouterr().out
    assert "labels.csv: multi_label" in printed and "test macro average precision" in printed
    folder = place / "runs/labels"
    config = json.loads((folder / "config.json").read_text())
    assert (config["task"], config["class_names"]) == ("multi_label", ["red", "blue"])
    assert (config["plan"]["loss"], config["validation"]) == ("sigmoid", "0.2")
    results = json.loads((folder / "results.json").read_text())
    assert results["test macro average precision"] > 0.8
    assert "val_average_precision" in read(folder / "metrics.csv")[0]
    page = (folder / "report.html").read_text()
    assert "macro average precision" in page and "Scores per label" in page
    rows = read(folder / "predictions.csv")
    assert len(rows) == 8 and set(rows[0]["true"].split("|")) <= {"red", "blue", ""}
    assert run(*words) == 0  # complete: the same command changes nothing
    assert json.loads((folder / "results.json").read_text())["val_loss"] == results["val_loss"]

    loaded = keras_vit.train.load_run("runs/labels")
    assert "2 labels" in str(loaded) and "the best val_average_precision" in str(loaded)
    capsys.readouterr()
    model = ["--model", "runs/labels"]
    evaluate = ["evaluate", *model, "--data", "test.csv", "--data-dir", "photos"]
    assert main([*evaluate, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = results["test macro average precision"]
    assert found["macro average precision"] == pytest.approx(expected)
    bare = ["--model", "runs/labels/final.keras", "--task", "multi_label"]
    (folder / "model.keras").rename(folder / "final.keras")
    (folder / "config.json").rename(folder / "hidden.json")
    assert main(["evaluate", *bare, *evaluate[3:]]) == 0
    assert "micro F1" in capsys.readouterr().out
    (folder / "hidden.json").rename(folder / "config.json")
    file = rows[0]["file"]
    scores = {name: float(rows[0][f"score of {name}"]) for name in ("red", "blue")}
    assert main(["predict", file, *model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == pytest.approx(scores, abs=1e-4)
    assert main(["predict", file, *model, "--threshold", "1.1"]) == 0
    assert capsys.readouterr().out == f"{file}  no label from 1.1 on\n"

    assert main(["export", "runs/labels", "--to", "saved_model", "--output", "served"]) == 0
    assert main(["verify", "served", "runs/labels", "--tolerance", "0.001"]) == 0
    card = json.loads((place / "served/1/assets.extra/model_card.json").read_text())
    golden = card["golden"]
    sigmoid = 1 / (1 + np.exp(-np.array(golden["logits"])))
    assert card["activation"] == "sigmoid" and card["labels"] == ["red", "blue"]
    np.testing.assert_allclose(golden["probabilities"], sigmoid, rtol=1e-4)


@pytest.mark.slow
def test_regression_from_a_table(place, capsys):
    words = ["--data", "prices.csv", "--validation", "0.25", "--output", "runs/prices"]
    assert run(*words, "--averaging", "0.9", "--early-stopping", "3") == 0
    printed = capsys.readouterr().out
    assert "price: 1" in printed and "mean 1" in printed and "val_mae" in printed
    folder = place / "runs/prices"
    rows = read(folder / "predictions.csv")
    errors = [abs(float(row["error price"])) for row in rows]
    assert len(rows) == 10 and 1000 < float(rows[0]["predicted price"]) < 1500
    [metrics] = read(folder / "metrics.csv")
    assert np.mean(errors) == pytest.approx(float(metrics["val_mae"]), rel=1e-3)
    assert np.mean(errors) < 100  # 125 would be the error of the mean
    page = (folder / "report.html").read_text()
    for text in ("mean absolute error of price", "Predicted and true values", "error of the mean"):
        assert text in page
    loaded = keras_vit.train.load_run("runs/prices")
    assert set(loaded.evaluate(keras_vit.data.read_csv("prices.csv", "photos"))) == {
        *("MAE of price", "R2 of price")
    }
    capsys.readouterr()
    assert main(["predict", rows[0]["file"], "--model", "runs/prices"]) == 0
    file, name, value = capsys.readouterr().out.split()
    assert (file, name) == (rows[0]["file"], "price")
    assert float(value) == pytest.approx(float(rows[0]["predicted price"]), rel=1e-3)
    # What an export is made of: the values as they are, and no probabilities.
    inference = prepare(loaded.model, activation=activation_of(loaded.task))
    [row] = inference.run(np.full((1, 16, 16, 3), 128.0))["logits"]
    assert 900 < row[0] < 1700 and check_outputs(inference, None) == ("logits",)
    with pytest.raises(ValueError, match=r"must be some of 'features', 'logits'\."):
        check_outputs(inference, ["probabilities"])
    # What was trained starts from a probe, also of labels.
    words = ["train", "--data", "labels.csv", "--data-dir", "photos", "--test", "test.csv"]
    words += ["--model", "runs/prices", "--steps", "4", "--batch-size", "8", "--output", "runs/on"]
    assert main(words) == 0
    assert "the head starts from a probe" in capsys.readouterr().out
    results = json.loads((place / "runs/on/results.json").read_text())
    assert results["test macro average precision"] > 0.8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "none.csv"], "There is no file none.csv"),
        (["--data", "bad.csv"], "bad.csv has 2 problems:"),
        (["--data", "photos", "--task", "regression"], "come from a CSV file, --data FILE.csv"),
        (["--data", "labels.csv", "--loss", "softmax"], "not for task='multi_label'"),
        (["--data", "grades.csv"], "classes or regression targets"),
        (["--data", "labels.csv", "--validation", "prices.csv"], "prices.csv has 40 problems"),
    ],
)
def test_errors_say_what_to_do(place, capsys, words, message):
    (place / "bad.csv").write_text("id,x\n0,1.5\n1,?\n77,2\n")
    (place / "grades.csv").write_text("id,grade\n0,1\n1,2\n")
    assert run(*words, "--output", "runs/none") == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (place / "runs").exists()
