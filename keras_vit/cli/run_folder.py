"""The folder of a training run: what was asked for, how it went, and what came of it.

config.json   what was asked for, with all that the recipe says; class names; versions
states/       to go on after a restart
metrics.csv   loss and accuracy by the epoch
curves.png    the same, drawn (needs matplotlib)
logs/         the same for TensorBoard (needs tensorboard)
best.keras    the model of the best validation accuracy, where there was validation
model.keras   the model at the end
results.json  accuracies, seconds
"""

from __future__ import annotations

import csv
import importlib.util
import json
import pathlib
import sys
from typing import Any

import keras

CONFIG, METRICS, RESULTS = "config.json", "metrics.csv", "results.json"
BEST, FINAL = "best.keras", "model.keras"


def open_folder(folder: pathlib.Path, asked: dict[str, Any]) -> None:
    """Makes the folder of a run, or finds that it is the folder of the same run.

    Args:
        folder: Where it is.
        asked: What the run is, for `config.json`.

    Raises:
        ValueError: If the folder is of another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG
    if not path.exists():
        path.write_text(json.dumps(asked, indent=2) + "\n")
        return
    before, now = json.loads(path.read_text()), json.loads(json.dumps(asked))
    differ = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key != "versions"
    ]
    if differ:
        raise ValueError(
            f"{folder} holds another run: {'; '.join(differ)[:800]}. Take another --output, or the "
            "settings of that run."
        )


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """What a run was asked for, or nothing where there is no run."""
    path = folder / CONFIG
    return json.loads(path.read_text()) if path.exists() else {}


def read_metrics(folder: pathlib.Path) -> dict[str, list[float]]:
    """Metrics by the epoch, from `metrics.csv`."""
    path = folder / METRICS
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        name: [float(row[name]) for row in rows]
        for name in (rows[0] if rows else {})
        if name != "epoch" and all(row[name] != "NA" for row in rows)  # Keras's word for nothing
    }


def callbacks_of(folder: pathlib.Path, has_validation: bool) -> list[keras.callbacks.Callback]:
    """What writes metrics, logs and the best model while a run goes on; they go on where it does.

    Args:
        folder: Of the run.
        has_validation: Whether there is an accuracy to choose the best model by.

    Returns:
        Callbacks of Keras.
    """
    made: list[keras.callbacks.Callback] = [
        keras.callbacks.CSVLogger(str(folder / METRICS), append=True)
    ]
    if importlib.util.find_spec("tensorboard") is not None:
        made.append(keras.callbacks.TensorBoard(str(folder / "logs"), write_graph=False))
    if has_validation:
        before = read_metrics(folder).get("val_accuracy", [])
        made.append(
            keras.callbacks.ModelCheckpoint(
                str(folder / BEST),
                monitor="val_accuracy",
                mode="max",
                save_best_only=True,
                initial_value_threshold=max(before) if before else None,
            )
        )
    return made


def finish(folder: pathlib.Path, model: keras.Model, results: dict[str, Any]) -> None:
    """Writes what came of a run."""
    model.save(folder / FINAL)
    (folder / RESULTS).write_text(json.dumps(results, indent=2) + "\n")
    metrics = read_metrics(folder)
    if not metrics:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print('No curves.png: pip install "keras_vit[plot]".', file=sys.stderr)
        return
    from keras_vit.analysis.plots import plot_training

    plot_training(metrics).savefig(folder / "curves.png", dpi=120)


def find_model(name: str) -> pathlib.Path | None:
    """The file of a model in a folder of a run, the best one first; `None` if it is no such."""
    folder = pathlib.Path(name)
    for each in (BEST, FINAL):
        if (folder / each).exists():
            return folder / each
    if (folder / CONFIG).exists():
        raise FileNotFoundError(
            f"The run in {folder} has no model yet: neither {BEST} nor {FINAL}."
        )
    return None
