"""`keras-vit train`, `evaluate` and `predict`, as they are typed."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.cli.plan import make_plan
from keras_vit.cli.settings import split_settings
from keras_vit.cli.training import warn_of_lost_classes
from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.train.recipes import FINE_TUNING, RECIPES
from keras_vit.train.run_folder import callbacks_of
from tests.resume.runs import deliver

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
SIZE = ("--image-size", "16", "--batch-size", "8", "--steps", "24", "--learning-rate", "0.05")


def train(*words, data="train"):
    return main(
        ["train", "--data", data, "--model", "vit_tiny", "--weights", "tiny.npz", "--recipe",
         "finetune_pets", *SIZE, *words]
    )  # fmt: skip


def test_a_run_writes_its_files_and_resumes(place, capsys):
    assert train("--validation", "0.25", "--output", "runs/a", "--tensorboard") == 0
    assert "Run runs/a: vit_tiny, 2 classes, 1 epoch, ended. Model: best.keras" in (
        capsys.readouterr().out
    )
    run = place / "runs/a"
    config = json.loads((run / "config.json").read_text())
    assert config["class_names"] == ["blue", "red"] and config["plan"]["steps"] == 24
    assert config["plan"]["source"] == FINE_TUNING["finetune_pets"].source
    rates = (config["plan"]["dropout_rate"], config["plan"]["stochastic_depth_rate"])
    assert rates == (0.0, 0.1)  # the model's
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 1 and float(rows[0]["val_accuracy"]) == 1
    assert list((run / "logs").rglob("events*")) and list((run / "states").glob("*.state"))
    results = json.loads((run / "results.json").read_text())
    assert results["val_accuracy"] == 1 and results["seconds"] > 0
    best, final = (keras.saving.load_model(run / name) for name in ("best.keras", "model.keras"))
    assert best.output_shape == final.output_shape == (None, 2)
    assert best.config.stochastic_depth_rate == 0.1

    page = (run / "report.html").read_text()
    assert "accuracy (8 of 8 images)" in page and "on the validation images of train." in page
    (run / "report.html").unlink()
    assert train("--validation", "0.25", "--output", "runs/a", "--no-report") == 0  # complete
    assert not (run / "report.html").exists()
    (run / "predictions.csv").unlink()
    assert main(["report", "runs/a"]) == 0
    assert capsys.readouterr().out.endswith("runs/a/report.html\n")
    with open(run / "predictions.csv") as file:
        predictions = list(csv.DictReader(file))
    assert len(predictions) == 8 and (run / "report.html").exists()
    for row in predictions:
        assert row["file"].split("/")[1] == row["true"] == row["predicted"]
        assert float(row[f"probability of {row['true']}"]) == float(row["probability"])
    assert len((run / "metrics.csv").read_text().splitlines()) == 2
    assert train("--validation", "0.5", "--output", "runs/a") == 2
    assert "runs/a holds another run: validation was '0.25', is '0.5'" in capsys.readouterr().err

    shutil.copy("train/red/0.png", "train/red/more.png")  # which draws another quarter
    assert main(["report", "runs/a"]) == 2
    errors = capsys.readouterr().err
    assert "The images of runs/a have changed: some of the 8 validation images are oth" in errors
    assert train("--validation", "0.25", "--output", "runs/a") == 2
    assert "there were 24 training images, there are 25" in capsys.readouterr().err
    del config["image_lists"]
    (run / "config.json").write_text(json.dumps(config))  # as of an older version
    with pytest.warns(UserWarning, match="the validation images are still the same is not checked"):
        assert keras_vit.train.load_run("runs/a").held_out()[1].num_images == 8


@pytest.mark.slow
def test_what_a_run_wrote_evaluates_and_predicts(place, capsys):
    assert train("--output", "runs/a", "--no-report") == 0
    capsys.readouterr()
    assert main(["evaluate", "--data", "test", "--model", "runs/a/model.keras", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"accuracy": 1.0, "images": 8}
    assert main(["predict", "test/red", "--model", "runs/a", "--top", "1", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == [f"test/red/{i}.png" for i in range(4)]
    assert all(0.5 < line["classes"]["red"] <= 1 for line in lines)
    run = keras_vit.train.load_run("runs/a")
    run.model.save_pretrained("red-or-blue")
    loaded = keras_vit.from_pretrained("red-or-blue")
    assert loaded.class_names == run.class_names
    pixels = np.random.default_rng(0).uniform(0, 255, (2, 16, 16, 3)).astype("float32")
    np.testing.assert_allclose(loaded(pixels), run.model(pixels), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_folder_with_train_and_test_is_understood(place, capsys):
    (place / "photos").mkdir()
    for part in ("train", "test"):
        (place / part).rename(place / "photos" / part)
    assert main(["check", "photos", "--headers-only"]) == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "class train test" in printed and "blue 16 4" in printed
    assert main(["check", "photos", "--headers-only", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parts"][1]["counts"] == {"blue": 4, "red": 4}
    assert train("--steps", "100", "--output", "runs/parts", data="photos") == 0
    printed = capsys.readouterr().out
    assert [line.split(maxsplit=1) for line in printed.splitlines()[:2]] == [
        ["folder:", "photos/train"],
        ["training:", "blue 16, red 16"],
    ]
    [line] = [line for line in printed.splitlines() if line.startswith("epoch 1/1  ")]
    assert "loss" in line
    assert json.loads((place / "runs/parts/results.json").read_text())["test accuracy"] == 1
    run = keras_vit.train.load_run("runs/parts")
    assert (run.which, run.class_names) == ("final", ("blue", "red"))
    assert run.evaluate("photos/test") == 1
    file, classes = run.predict("photos/test/red/0.png")[0]
    assert file.name == "0.png" and next(iter(classes)) == "red"
    with pytest.raises(ValueError, match="folders that are no classes: test"):
        run.evaluate("photos")
    capsys.readouterr()
    assert main(["evaluate", "--data", "photos", "--model", "runs/parts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"accuracy": 1.0, "images": 8}  # of test/
    words = ["--channels", "1", "--test", "photos/test", "--steps", "2", "--validation", "0.5"]
    words += ["--held-out", "0"]  # without, there are learning rates to choose from
    assert train(*words, "--output", "runs/grey", data="photos/train") == 0
    grey = keras_vit.train.load_run("runs/grey")
    assert grey.model.input_shape == (None, 16, 16, 1)
    assert 0 <= grey.results["test accuracy"] <= 1 and "val_accuracy" in grey.history


@pytest.mark.slow
def test_a_learning_rate_is_suggested(place, capsys):
    assert train("--find-learning-rate", "--output", "runs/none") == 0
    printed = capsys.readouterr().out
    assert re.search(r"The loss falls fastest at a learning rate of \d\.\de-\d\d\.", printed)
    assert "learning rate      loss\n" in printed and not (place / "runs").exists()


def test_tensorboard_is_left_out_or_missing(place, capsys, monkeypatch):
    given = []

    def stop(model, plan, *_):
        given.append(plan)
        raise ValueError("enough")

    monkeypatch.setattr("keras_vit.cli.training._fit", stop)
    assert train("--no-tensorboard", "--output", "runs/a") == 2
    assert "enough" in capsys.readouterr().err
    assert given[0].run.tensorboard is False
    names = [type(each).__name__ for each in callbacks_of(place, True, False)]
    assert names == ["WriteMetrics", "SaveBest"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [type(each).__name__ for each in callbacks_of(place, False)] == ["WriteMetrics"]
    with pytest.raises(ImportError, match=r'pip install "keras-vision-transformer\[tensorboard\]"'):
        callbacks_of(place, False, True)


@pytest.mark.slow
def test_low_rank_updates(place, capsys):
    assert train("--lora-rank", "2", "--output", "runs/lora", "--validation", "test") == 0
    best = keras.saving.load_model(place / "runs/lora/best.keras")
    start = keras_vit.create_model("vit_tiny", weights="tiny.npz", classes=2)
    for path, same in (
        ("block_0/attention/qkv/kernel", False),
        ("block_0/mlp/hidden/kernel", True),
    ):
        one, other = (
            next(np.array(x) for x in model.weights if x.path == path) for model in (best, start)
        )
        assert np.array_equal(one, other) is same
    assert train("--lora-rank", "2", "--output", "runs/lora", "--validation", "test") == 0  # again
    capsys.readouterr()
    words = ["train", "--data", "train", "--model", "vit_tiny", "--lora-rank", "2"]
    assert main([*words, "--output", "runs/none"]) == 2  # without --weights
    assert "with random weights of vit_tiny. Pass --weights TAG" in capsys.readouterr().err
    assert not (place / "runs/none").exists()


def test_a_small_class_is_weighed_and_its_loss_told(place, capsys):
    for number in range(8):
        (place / f"train/red/{number}.png").unlink()
    for flags, expected in (
        ({}, True),
        ({"class_weights": False}, False),
        ({"balanced_sampling": True}, False),
    ):
        plan = make_plan(split_settings({"data": "train"}, flags))
        assert plan.recipe.class_weights is expected
    assert main(["records", "train", "--output", "records"]) == 0
    assert make_plan(split_settings({"data": "records"}, {})).recipe.class_weights
    found = {"class_names": ("cat", "dog", "cow"), "labels": np.array([0, 0, 1])}
    for predicted, expected in (
        ([0, 0, 0], "recognised: dog (0 of 1)."),
        ([0, 1, 1], ""),
        ([2, 2, 2], "cat (0 of 2), dog"),
    ):
        classes = np.array(predicted)[:, None]
        warn_of_lost_classes(
            Predictions(
                "", (), classes=classes, probabilities=classes, label_probabilities=classes, **found
            )
        )
        printed = capsys.readouterr().err
        assert expected in printed and bool(expected) is bool(printed)


@pytest.mark.slow
def test_the_papers_way_with_a_test_set(place, capsys, monkeypatch):
    short = dataclasses.replace(FINE_TUNING["finetune_pets"], learning_rates=(0.001, 0.05))
    monkeypatch.setitem(RECIPES, "finetune_pets", short)
    assert train("--test", "test", "--output", "runs/paper", "--steps", "6") == 0
    printed = capsys.readouterr().out
    results = json.loads((place / "runs/paper/results.json").read_text())
    assert results["learning rate"] in short.learning_rates
    assert "test accuracy:" in printed and 0 <= results["test accuracy"] <= 1
    assert sum("held-out" in name for name in results) == 2


@pytest.mark.slow
def test_the_settings_of_a_run_repeat_it(place, capsys):
    """Nothing is named but data and a model; what was chosen is in run.toml."""
    words = ["train", "--data", "train", "--model", "vit_tiny", "--image-size", "16"]
    few = ["--steps", "4", "--batch-size", "8", "--dropout-rate", "0.1", "--mlp-dim", "48"]
    assert main([*words, *few, "--preprocessing-mean", "100", "--output", "runs/one"]) == 0
    assert "small, from scratch" in capsys.readouterr().out
    text = (place / "runs/one/run.toml").read_text()
    for line in ('recipe = "auto"', 'validation = "0.2"', "steps = 4", "mlp_dim = 48"):
        assert line in text.splitlines()
    config = ["--config", "runs/one/run.toml", "--output"]
    assert main(["train", *config, "runs/two"]) == 0
    one, two = (place / "runs" / name for name in ("one", "two"))
    for name in ("run.toml", "config.json"):
        assert (one / name).read_text() == (two / name).read_text()
    first, second = (keras.saving.load_model(run / "model.keras") for run in (one, two))
    assert first.config == second.config and first.config.block.dropout_rate == 0.1
    assert (first.config.block.mlp_dim, first.config.preprocessing.mean) == (48, (100.0,))
    for weight, same in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(weight, same)
    assert main(["train", *config, "runs/one", "--steps", "5"]) == 2  # flags win over the file
    assert "plan.steps was 4, is 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "There is no folder nowhere"),
        (
            ["--recipe", "finetune_pet"],
            "recipe 'finetune_pet'. Similar names: finetune_pets",
        ),
        (["--model", "vit_tinny"], "vit_tiny"),
        (["--batch-size", "0"], "`batch_size` must be a positive integer"),
        (["--pre-logits", "12"], "Received: --pre-logits 12 with a trained model"),
        (["--test", "test", "--validation", "0.5"], "--validation, or pass --held-out 0 to train"),
        (
            ["--data", "tfds:cifar10", "--data-dir", "."],
            "is not in cifar10/3.0.2. Pass `download=True`",
        ),
    ],
)
def test_errors_are_one_line(place, capsys, words, message):
    assert train(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("keras-vit: error: ") and "Traceback" not in error


def test_class_names_of_a_checkpoint_are_used(place, capsys):
    model = keras_vit.create_model("vit_tiny", classes=2, gelu="exact")
    model.save_pretrained("pets", class_names=["red", "blue"])
    assert main(["predict", "test/red/0.png", "--model", "pets"]) == 0
    assert set(capsys.readouterr().out.split()[1::2]) == {"red", "blue"}
    assert main(["evaluate", "--data", "test", "--model", "pets", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 8
    pathlib.Path("test/red").rename("test/0")
    pathlib.Path("test/blue").rename("test/1")
    assert main(["evaluate", "--data", "test", "--model", "pets", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 8


def test_labels_that_do_not_fit(place, capsys):
    keras_vit.create_model("vit_tiny", classes=2).save("two.keras")
    pathlib.Path("names.txt").write_text("a\nb\nc\n")
    command = ["predict", "test", "--model", "two.keras"]
    assert main([*command, "--labels", "names.txt"]) == 2
    assert "The model has 2 classes, and names.txt names 3" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[1::2] == ["0", "1"]
    pathlib.Path("names.txt").write_text("\ufeffa\x1b[2J\nb\n", "utf-8")
    assert main([*command, "--labels", "names.txt"]) == 0
    shown = capsys.readouterr().out
    assert "\ufeff" not in shown and r"a\x1b[2J " in shown and "\x1b" not in shown
    pathlib.Path("names.txt").write_text("a\0\nb\n")
    assert main([*command, "--labels", "names.txt"]) == 2
    assert "names.txt holds NUL characters" in capsys.readouterr().err
    pathlib.Path("names.txt").write_text("crane\ncrane\n")
    assert main([*command, "--labels", "names.txt"]) == 0
    shown = capsys.readouterr().out.splitlines()[0].split("  ")[1:]
    assert {each.rpartition(" ")[0] for each in shown} == {"crane (0)", "crane (1)"}
    pathlib.Path("runs/early").mkdir(parents=True)
    pathlib.Path("runs/early/config.json").write_text("{}")
    assert main(["evaluate", "--data", "test", "--model", "runs/early"]) == 2
    assert "The run in runs/early has no model yet" in capsys.readouterr().err


SCRIPT = """
import sys
from keras_vit.cli.main import main
from keras_vit.cli.plan import make_plan
from keras_vit.cli.settings import split_settings
from keras_vit.cli.training import warn_of_lost_classes
from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.variants import VARIANTS
from tests.fixtures import tiny_config
from tests.workers import use_two_cpus
VARIANTS["vit_tiny"] = tiny_config(image_size=16, patch_size=8, depth=1)
if "mirrored" in sys.argv:
    use_two_cpus()
sys.exit(main(sys.argv[1:]))
"""
WORDS = ("train", "--data", "train", "--model", "vit_tiny", "--recipe", "finetune_pets", *SIZE)


FROM_PROBE = ("--weights", "tiny.npz", "--initial-head", "probe")


def start(*words):
    """The command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupt_after_an_epoch(process, metrics):
    """Presses Ctrl-C; what the process then printed as errors."""
    for _ in range(1200):
        if process.poll() is not None or (metrics.exists() and metrics.stat().st_size > 60):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    return end(process, 130)


def end(process, status=0):
    """Waits for a process to end with a status; the errors that it printed."""
    with process:
        try:
            _, errors = process.communicate(timeout=900)
        finally:
            process.kill()  # where it has not ended
    assert process.returncode == status, errors
    return errors


def test_ctrl_c_saves_and_prints_how_to_resume(place, monkeypatch, capsys):
    """In this process; the slow test below presses Ctrl-C in another."""
    monkeypatch.setattr(signal, "raise_signal", deliver)
    press = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batch == 4 and deliver(signal.SIGINT)
    )
    monkeypatch.setattr("keras_vit.cli.training.callbacks_of", lambda *_: [press])
    with pytest.raises(SystemExit) as stop:
        main([*WORDS, "--steps", "100000", "--output", "runs/long"])
    assert stop.value.code == 130
    errors = capsys.readouterr().err
    assert "Ctrl-C: saving after this batch" in errors and "the state is in" in errors
    assert "keras-vit train --data train --model vit_tiny" in errors
    assert "--output runs/long" in errors and "Traceback" not in errors
    assert list((place / "runs/long/states").glob("*.state"))


@pytest.mark.slow
def test_the_command_that_ctrl_c_prints_resumes_the_run(place):
    """And ends where a run ends that nobody interrupted."""
    words = (*WORDS, *FROM_PROBE, "--steps", "1500", "--validation", "0.25", "--output")
    end(start(*words, "runs/whole"))
    errors = interrupt_after_an_epoch(start(*words, "runs/cut"), place / "runs/cut/metrics.csv")
    printed = shlex.split(errors.splitlines()[-1])
    assert printed[0] == "keras-vit"
    end(start(*printed[1:]))
    assert read_metrics("runs/cut") == read_metrics("runs/whole")
    one, other = (keras.saving.load_model(f"runs/{run}/model.keras") for run in ("cut", "whole"))
    for mine, expected in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(mine, expected)


def read_metrics(run):
    with open(f"{run}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 5 and all(float(row.pop("seconds")) > 0 for row in rows)
    return rows


@pytest.mark.slow
def test_two_devices_train_as_one(place):
    """With `--strategy mirrored`: the same images, the same weights, and the same files."""
    words = (*WORDS, *FROM_PROBE, "--validation", "0.25", "--output")
    for run, more in (
        ("runs/one", ("--strategy", "none")),
        ("runs/two", ("--strategy", "mirrored")),
    ):
        end(start(*words, run, *more))
    one, two = (keras.saving.load_model(f"{run}/model.keras") for run in ("runs/one", "runs/two"))
    for mine, expected in zip(two.weights, one.weights, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-5)
    assert {path.name for path in (place / "runs/one").iterdir()} == {
        path.name for path in (place / "runs/two").iterdir()
    }


def test_several_workers_need_a_script(place, capsys, monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert train() == 2
    assert "TF_CONFIG names 2 workers" in capsys.readouterr().err
