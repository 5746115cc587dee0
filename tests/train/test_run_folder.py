"""Files of a run: what is left when the process is killed at each write."""

from __future__ import annotations

import csv
import dataclasses
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import files
from keras_vit.train.run_folder import (
    callbacks_of,
    open_folder,
    read_config,
    read_metrics,
    read_results,
    write_results,
)

EPOCHS = 3


class KilledError(BaseException):
    """Stands for SIGKILL: nothing cleans up after it."""


def kill_at(monkeypatch, number, names):
    """Kills the process at the n-th file that is written, before it gets its name."""
    rename, count = files.os.replace, iter(range(1, 1000))

    def replace(source, target):
        names.append(target.name)
        if next(count) == number:
            raise KilledError
        rename(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)


def train(folder, *more):
    """A run with a validation accuracy that rises, falls and rises."""
    keras.utils.set_random_seed(1)
    open_folder(folder, {"class_names": ["a", "b"]})
    inputs = keras.Input((2,))
    model = keras_vit.Model(inputs, keras.layers.Dense(2, name="head")(inputs))
    model.compile(
        keras.optimizers.SGD(0.1), "mse", metrics=["accuracy"], run_eagerly=True, jit_compile=False
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 2)), np.eye(2)[rng.integers(0, 2, 8)]
    callbacks = [Accuracies(), *callbacks_of(folder, has_validation=True)]
    callbacks = [each for each in callbacks if not isinstance(each, keras.callbacks.TensorBoard)]
    callbacks += [*more, keras_vit.ResumeTraining(folder / "states")]
    options = {"batch_size": 4, "epochs": EPOCHS, "verbose": 0, "callbacks": callbacks}
    history = model.fit(x, y, **options)
    write_results(folder, model, {"accuracy": history.history["accuracy"][-1]}, history)


class Accuracies(keras.callbacks.Callback):
    """Sets the validation accuracies, so that the best epoch is the second."""

    def on_epoch_end(self, epoch, logs=None):
        logs["val_accuracy"] = (0.25, 0.75, 0.5)[epoch]


class Removals(keras.callbacks.Callback):
    """Damages the metrics after an epoch, and removes them after the next."""

    def __init__(self, folder):
        super().__init__()
        self.path = folder / "metrics.csv"

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.path.write_bytes(b"\0" * 200_000)
        elif epoch == 1:
            self.path.unlink()


def contents(folder):
    best, final = (keras.saving.load_model(folder / n) for n in ("best.keras", "model.keras"))
    weights = [weight.numpy().tolist() for model in (best, final) for weight in model.weights]
    with open(folder / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert all(row.pop("seconds") for row in rows)
    results = read_results(folder)
    assert results.pop("peak_memory_bytes") > 1e8
    return weights, [rows, (folder / "config.json").read_text(), results]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        names = []
        kill_at(patch, 0, names)
        train(folder)
    states = sum(name.endswith(".state") for name in names)
    assert names.count("metrics.csv") == EPOCHS and names.count("best.keras") == 2
    assert states == EPOCHS + 1
    assert set(names) >= {"config.json", "model.keras", "results.json"}
    return contents(folder), names


# In the second epoch, or at the end; the others, which take as long again, differ little.
QUICK = ("metrics.csv", "best.keras", "epoch-000002-batch-000000000.worker-0.state", "model.keras")


@pytest.mark.parametrize("part", ["quick", pytest.param("slow", marks=pytest.mark.slow)])
def test_a_kill_at_any_write_changes_nothing(part, whole, tmp_path):
    expected, names = whole
    quick = [names.index(name, 1 if name == "model.keras" else 4) + 1 for name in QUICK]
    for number, name in enumerate(names, start=1):
        if (number in quick) != (part == "quick"):
            continue
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
            kill_at(patch, number, [])
            train(folder)
        train(folder)
        assert contents(folder) == expected, f"after a kill while {name} was written"
        assert not list(folder.rglob("*.unfinished-*"))


@pytest.mark.slow
@pytest.mark.parametrize("leave", [0, 4096])
def test_a_full_disk_at_any_write_changes_nothing(leave, whole, small_disk):
    """Whatever is written when no page is left, or one: the run goes on when there is room."""
    expected, names = whole
    prepare, failed = files._make_staging, []
    for number, name in enumerate(names, start=1):
        folder, count = small_disk.path / str(number), iter(range(1, 1000))

        def fill_at(path, count=count, number=number):
            if next(count) == number:
                small_disk.fill(leave)
            return prepare(path)

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(files, "_make_staging", fill_at)
                train(folder)
        except OSError as error:
            failed.append(name)
            assert f"The disk of {folder}" in str(error) and " is full (" in str(error)
            assert not list(folder.rglob("*.unfinished-*"))
            for path in folder.glob("*.keras"):
                keras.saving.load_model(path)
        small_disk.make_room()
        train(folder)
        assert contents(folder) == expected, f"after a full disk while {name} was written"
        shutil.rmtree(folder)
    assert leave or failed == names  # a short text fits into one page
    assert failed.count("best.keras") == 2 and "model.keras" in failed


def test_a_damaged_best_model_is_noticed(whole, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
        kill_at(patch, whole[1].index("metrics.csv", 3) + 1, [])  # in the second epoch
        train(tmp_path)
    best = tmp_path / "best.keras"
    best.write_bytes(best.read_bytes()[:-100])
    (tmp_path / "metrics.csv").write_text("epoch,accuracy\n0,")
    train(tmp_path)
    assert f"{best} was damaged and is removed" in capsys.readouterr().err
    weights, (rows, *others) = contents(tmp_path)
    rates = [row.pop("learning_rate") for row in rows]
    assert rates[0] == "NA" and "NA" not in rates[1:]  # they were in this file alone
    expected = [{**row} for row in whole[0][1][0]]
    assert all(row.pop("learning_rate") for row in expected)
    assert (weights, [rows, *others]) == (whole[0][0], [expected, *whole[0][1][1:]])
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert read_metrics(tmp_path)["val_accuracy"] == [0.25, 0.75, 0.5]


def test_metrics_that_are_damaged_or_removed_during_training_are_written_again(whole, tmp_path):
    train(tmp_path, Removals(tmp_path))
    assert contents(tmp_path) == whole[0]


def test_settings_of_a_run_that_trained_nothing_are_replaced(tmp_path):
    open_folder(tmp_path, {"model": "typo"})
    open_folder(tmp_path, {"model": "right"})
    assert read_config(tmp_path)["model"] == "right"
    (tmp_path / "states").mkdir()
    (tmp_path / "states/epoch-000000-batch-000000002.worker-0.state").touch()
    with pytest.raises(ValueError, match="holds another run: model was 'right', is 'other'"):
        open_folder(tmp_path, {"model": "other"})


def test_a_run_continues_when_the_text_about_its_recipe_has_changed(tmp_path):
    open_folder(tmp_path, {"plan": {"source": "a script", "epochs": 3}})
    (tmp_path / "states").mkdir()
    (tmp_path / "states/epoch-000000-batch-000000002.worker-0.state").touch()
    open_folder(tmp_path, {"plan": {"source": "its rows", "epochs": 3}})
    with pytest.raises(ValueError, match=r"holds another run: plan\.epochs was 3, is 4"):
        open_folder(tmp_path, {"plan": {"source": "its rows", "epochs": 4}})


def test_a_run_as_an_object(whole, tmp_path):
    train(tmp_path)
    run = keras_vit.train.load_run(tmp_path)
    assert (run.which, run.epoch, run.class_names) == ("best", 2, ("a", "b"))
    assert "best.keras, epoch 2, the best val_accuracy: 0.7500" in str(run)
    assert run.history["val_accuracy"] == [0.25, 0.75, 0.5] and run.results
    np.testing.assert_allclose(run.history["learning_rate"], [0.1] * 3)
    assert len(run.history["seconds"]) == 3
    np.testing.assert_array_equal(run.model.weights[0], whole[0][0][0])
    assert run.model.class_names == ("a", "b")
    final = keras_vit.train.load_run(tmp_path, "final")
    assert "2 classes, 3 epochs, ended. " in str(final)
    probe = dataclasses.replace(final, history={})
    assert "2 classes, ended. " in str(probe) and "epochs" not in probe._describe_cost()
    assert (final.which, final.epoch) == ("final", 3)
    np.testing.assert_array_equal(final.model.weights[0], whole[0][0][2])
    page = final.report(False).read_text()  # without predictions
    assert 'aria-label="learning rate by epoch"' in page and "accuracy is unknown" in page
    assert "3 of 3" in page and "peak memory" in page
    with pytest.raises(FileNotFoundError, match="no longer there"):
        dataclasses.replace(run, config={"data": str(tmp_path / "gone")}).report()
    (tmp_path / "best.keras").unlink()
    assert keras_vit.train.load_run(tmp_path).which == "final"
    with pytest.raises(FileNotFoundError, match="has no best model"):
        keras_vit.train.load_run(tmp_path, "best")
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        keras_vit.train.load_run(tmp_path / "states")


@pytest.mark.parametrize("text", ["epoch,loss\n0,1\n1\n", "epoch,loss\n0,x\n", "epoch,loss\n0,\0"])
def test_damaged_metrics_are_named(text, tmp_path):
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        read_metrics(tmp_path)
