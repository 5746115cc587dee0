"""The folder of a training run: its settings, its course and its results.

config.json   settings with all values of the recipe; class names; versions
states/       training states, from which an interrupted run continues
metrics.csv   loss and accuracy of each epoch
curves.png    the same as a plot (needs matplotlib)
logs/         the same for TensorBoard (needs tensorboard)
best.keras    the model of the best validation accuracy, if there is validation
model.keras   the model at the end
results.json  accuracies, seconds

Files are complete or absent: they are written under another name and renamed.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import pathlib
import sys
from typing import Any

import keras

from keras_vit.files import write_atomically

CONFIG, METRICS, RESULTS, CURVES = "config.json", "metrics.csv", "results.json", "curves.png"
BEST, FINAL = "best.keras", "model.keras"


def open_folder(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Creates the folder of a run, or checks that it belongs to the same run.

    Args:
        folder: Path of the folder.
        settings: Settings of the run, for `config.json`.

    Raises:
        ValueError: If the folder belongs to another run.
    """
    if not (folder / CONFIG).exists():
        _write_json(folder / CONFIG, settings)
        return
    before, now = read_config(folder), json.loads(json.dumps(settings))
    differ = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key != "versions"
    ]
    if differ:
        raise ValueError(
            f"{folder} holds another run: {'; '.join(differ)[:800]}. Choose another --output, or "
            "the settings of that run."
        )


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Settings of a run, or an empty dict if there is no run."""
    path = folder / CONFIG
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_metrics(folder: pathlib.Path) -> dict[str, list[float]]:
    """Metrics of each epoch, from `metrics.csv`."""
    path = folder / METRICS
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        name: [float(row[name]) for row in rows]
        for name in (rows[0] if rows else {})
        if name != "epoch" and all(row[name] != "NA" for row in rows)  # Keras writes NA for None
    }


class SaveBest(keras.callbacks.Callback):
    """Saves the model after every epoch with a new best validation accuracy.

    Args:
        path: The `.keras` file to write.
        best: Best accuracy of earlier epochs.
    """

    def __init__(self, path: pathlib.Path, best: float = -math.inf):
        super().__init__()
        self.path, self.best = path, best

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        accuracy = (logs or {}).get("val_accuracy", -math.inf)
        if accuracy > self.best:
            self.best = accuracy
            save_model(self.model, self.path)


def callbacks_of(folder: pathlib.Path, has_validation: bool) -> list[keras.callbacks.Callback]:
    """Callbacks that write metrics, logs and the best model, also of a run that continues.

    Args:
        folder: Folder of the run.
        has_validation: Whether there is a validation accuracy to choose the best model by.
    """
    callbacks: list[keras.callbacks.Callback] = [
        keras.callbacks.CSVLogger(str(folder / METRICS), append=True)
    ]
    if importlib.util.find_spec("tensorboard") is not None:
        callbacks.append(keras.callbacks.TensorBoard(str(folder / "logs"), write_graph=False))
    if has_validation:
        earlier = read_metrics(folder).get("val_accuracy", [])
        callbacks.append(SaveBest(folder / BEST, max(earlier, default=-math.inf)))
    return callbacks


def save_model(model: keras.Model, path: pathlib.Path) -> None:
    """Saves a model as a `.keras` file, which replaces an older one when it is complete."""
    with write_atomically(path, replace=True) as unfinished:
        model.save(unfinished)


def write_results(folder: pathlib.Path, model: keras.Model, results: dict[str, Any]) -> None:
    """Writes the model, the results and the curves of a finished run."""
    save_model(model, folder / FINAL)
    _write_json(folder / RESULTS, results)
    metrics = read_metrics(folder)
    if not metrics:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print('No curves.png: pip install "keras_vit[plot]".', file=sys.stderr)
        return
    from keras_vit.analysis.plots import plot_training

    with write_atomically(folder / CURVES, replace=True) as unfinished:
        plot_training(metrics).savefig(unfinished, dpi=120)


def find_saved_model(folder: pathlib.Path) -> pathlib.Path | None:
    """Finds the model of a run, the best one first; `None` if the folder belongs to no run.

    Raises:
        FileNotFoundError: If the run has no model yet.
    """
    for name in (BEST, FINAL):
        if (folder / name).exists():
            return folder / name
    # Checkpoints of Hugging Face have a config.json too.
    if (folder / CONFIG).exists() and not list(folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"The run in {folder} has no model yet: neither {BEST} nor {FINAL}."
        )
    return None


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    with write_atomically(path, replace=True) as unfinished:
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
