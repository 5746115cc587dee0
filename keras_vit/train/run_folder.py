"""The folder of a training run: its settings, metrics, models and results.

config.json   settings with all values of the recipe; class names; lists of images; versions
run.toml      the settings alone, for `--config` of the same command
states/       training states, from which an interrupted run continues
metrics.csv   loss and accuracy, learning rate and seconds of each epoch
logs/         the same for TensorBoard (needs tensorboard)
best.keras    the model of the best validation accuracy (or `MONITORS`), if there is validation
model.keras   the model at the end
results.json  accuracies, seconds, steps of an epoch, peak memory
report.html   the result page, with curves, see `Run.report`
predictions.csv  class probabilities of the test or validation images

Files are complete or absent: they are written under another name, forced to the disk and renamed.
After a kill, the same run repeats what was not saved: metrics and the best accuracy so far come
from the training state, not from files that may be ahead of it.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_vit.data.strata import HELD_OUT
from keras_vit.files import remove_unfinished, write_csv, write_text
from keras_vit.installation import pip_install
from keras_vit.reading import open_text, read_json, refusing
from keras_vit.train.callbacks import averaged_weights
from keras_vit.train.image_lists import IMAGE_LISTS, find_changes, warn_of_no_lists
from keras_vit.train.keras_files import is_whole, save_keras_file
from keras_vit.train.tasks import MONITORS, Monitor, in_units

CONFIG, METRICS, RESULTS = "config.json", "metrics.csv", "results.json"
BEST, FINAL = "best.keras", "model.keras"
DETECTOR = "detector.keras"  # of `keras-vit detect train`
REPORT, PREDICTIONS = "report.html", "predictions.csv"
STEPS, PEAK_MEMORY = "steps_per_epoch", "peak_memory_bytes"  # in results.json
FIRST_EPOCH = "first_epoch"  # of the last of several image sizes, in results.json
SETTINGS_FILE = "run.toml"
STATES = "states"
_STATES = f"{STATES}/**/*.state"
LOCK = ".lock"
_TRAINED = (METRICS, RESULTS, BEST, FINAL)
_WRITTEN = (CONFIG, SETTINGS_FILE, REPORT, PREDICTIONS, *_TRAINED)


def open_folder(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Creates the folder of a run, or checks that it belongs to the same run.

    The settings of a run that has trained nothing yet are replaced. Folders of older versions have
    no lists of their images: a warning says that these are not checked.

    Args:
        folder: Path of the folder, locked by this process.
        settings: Settings of the run, for `config.json`, with `describe_lists` of its images. The
            versions of Keras and Python stand beside them.

    Raises:
        ValueError: If the folder belongs to another run, or the images have changed.
    """
    remove_unfinished(folder, _WRITTEN)
    versions = {"keras": keras.__version__, "python": sys.version.split()[0]}
    settings = {**settings, "versions": versions}
    before, now = read_config(folder), json.loads(json.dumps(settings))
    has_begun = any((folder / name).exists() for name in _TRAINED) or any(folder.glob(_STATES))
    if not has_begun or not (folder / CONFIG).exists():
        _write_json(folder / CONFIG, settings)
        return
    for settings in (before, now):  # the source of a recipe is a text, which may be corrected
        (settings.get("plan") or {}).pop("source", None)
    differ = [
        change
        for key in sorted((before.keys() | now.keys()) - {"versions", IMAGE_LISTS, HELD_OUT})
        for change in _changes(key, before.get(key), now.get(key))
    ]
    if IMAGE_LISTS in before:
        differ += find_changes(before[IMAGE_LISTS], now.get(IMAGE_LISTS, {}))
    elif IMAGE_LISTS in now:
        warn_of_no_lists(folder, "they have changed")
    if differ:
        raise ValueError(
            f"{folder} holds another run: {'; '.join(differ)[:800]}. Choose another --output, or "
            "the settings and the images of that run."
        )


def _changes(name: str, before: Any, now: Any) -> Iterator[str]:
    """Names the settings that differ, those within others by their path."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _changes(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now:
        yield f"{name} was {before!r}, is {now!r}"


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Settings of a run, or an empty dict if there is no run."""
    return _read_json(folder / CONFIG)


def read_results(folder: pathlib.Path) -> dict[str, Any]:
    """Results of a run, or an empty dict if it has not ended."""
    return _read_json(folder / RESULTS)


def read_metrics(folder: pathlib.Path) -> dict[str, list[float]]:
    """Metrics of each epoch, from `metrics.csv`."""
    problem = "is damaged: it is no table of numbers"
    with refusing(folder / METRICS, problem, "Take it from a copy, or remove it."):
        rows = _read_rows(folder)
        return {
            name: [float(row[name]) for row in rows]
            for name in (rows[0] if rows else {})
            if name != "epoch" and all(row[name] != "NA" for row in rows)  # Keras's None
        }


def _read_rows(folder: pathlib.Path) -> list[dict[str, str]]:
    path = folder / METRICS
    if not path.is_file():
        return []
    with open_text(path, errors="replace") as file:
        return list(csv.DictReader(file))


class WriteMetrics(keras.callbacks.Callback):
    """Writes the metrics of all epochs to `metrics.csv` after every epoch.

    The earlier epochs are those of `model.history`, which `ResumeTraining` restores: an epoch that
    is trained again after a kill replaces its row. Learning rate (at the end of an epoch) and
    seconds (with validation) are in the file alone.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: pathlib.Path):
        super().__init__()
        self.folder = folder

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._written = _read_rows(self.folder)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        past = self.model.history
        rows = {name: [*past.history.get(name, []), value] for name, value in (logs or {}).items()}
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        seconds = round(time.perf_counter() - self._start, 3)
        own = {"learning_rate": str(rate), "seconds": str(seconds)}
        self._written = [*[*self._written, *[{}] * epoch][:epoch], own]
        for name in own:
            rows[name] = [row.get(name) or "NA" for row in self._written]
        write_metrics(self.folder, [*past.epoch, epoch], rows)


class SaveBest(keras.callbacks.Callback):
    """Saves the model after every epoch with a new best validation metric.

    Where the optimizer averages weights, the model in the file has the averages; that of a
    regression predicts in the units of its targets.

    The values of earlier epochs are those of `model.history`, which `ResumeTraining` restores:
    a kill while the file is written does not lose it, because the epoch is trained again. A file
    that is damaged nevertheless is removed, and the next best epoch is saved.

    Args:
        path: The `.keras` file to write.
        monitor: The metric.

    Attributes:
        first_epoch: The first epoch to compare: with progressive image sizes, of the present size.
    """

    def __init__(self, path: pathlib.Path, monitor: Monitor = MONITORS["single_label"]):
        super().__init__()
        self.path = path
        self.monitor = monitor
        self.first_epoch = 0
        self._values: list[float] | None = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._values = None
        if self.path.exists() and not is_whole(self.path):
            self.path.unlink()
            print(f"{self.path} was damaged and is removed.", file=sys.stderr, flush=True)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        metric = self.monitor.metric
        if self._values is None:
            earlier = self.model.history.history.get(metric, []) if self.path.exists() else []
            self._values = list(earlier[self.first_epoch :])
        if metric not in (logs or {}):
            return
        self._values.append((logs or {})[metric])
        if self.monitor.best_of(self._values) == len(self._values) - 1:
            with averaged_weights(self.model):
                save_keras_file(in_units(self.model), self.path)


def callbacks_of(
    folder: pathlib.Path,
    has_validation: bool,
    tensorboard: bool | None = None,
    task: str = "single_label",
) -> list[keras.callbacks.Callback]:
    """Callbacks that write metrics, logs and the best model, also of a run that continues.

    Args:
        folder: Folder of the run.
        has_validation: Whether there is a validation metric to choose the best model by.
        tensorboard: Whether to write logs for TensorBoard; `None` does if it is installed.
        task: What the labels of the images are.

    Raises:
        ImportError: If `tensorboard` is `True` and it is not installed.
    """
    callbacks: list[keras.callbacks.Callback] = [WriteMetrics(folder)]
    is_installed = importlib.util.find_spec("tensorboard") is not None
    if tensorboard and not is_installed:
        raise ImportError(
            f"--tensorboard needs TensorBoard. Install it: {pip_install('tensorboard')}"
        )
    if is_installed and tensorboard is not False:
        callbacks.append(keras.callbacks.TensorBoard(str(folder / "logs"), write_graph=False))
    if has_validation:
        callbacks.append(SaveBest(folder / BEST, MONITORS[task]))
    return callbacks


def write_metrics(
    folder: pathlib.Path, epochs: Sequence[int], metrics: Mapping[str, Sequence[float]]
) -> None:
    """Writes `metrics.csv`: a row for every epoch."""
    columns = [metrics[name] for name in sorted(metrics)]
    rows = zip(epochs, *columns, strict=True)
    write_csv(folder / METRICS, [["epoch", *sorted(metrics)], *rows])


def write_results(
    folder: pathlib.Path,
    model: keras.Model,
    results: dict[str, Any],
    history: keras.callbacks.History,
) -> None:
    """Writes the model, the metrics and, last, the results of a finished run."""
    save_keras_file(model, folder / FINAL)
    if len(_read_rows(folder)) != len(history.epoch):  # not written epoch by epoch
        write_metrics(folder, history.epoch, history.history)
    params = getattr(history, "params", {})
    measured = {STEPS: params.get("steps"), FIRST_EPOCH: params.get("first_epoch") or None}
    measured[PEAK_MEMORY] = _peak_memory()
    measured = {name: value for name, value in measured.items() if value is not None}
    _write_json(folder / RESULTS, {**results, **measured})


def _peak_memory() -> int | None:
    """Largest resident memory of this process so far in bytes; unknown on Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB elsewhere


def find_saved_model(folder: pathlib.Path) -> pathlib.Path | None:
    """Finds the model of a run, the best one first; `None` if the folder belongs to no run.

    Raises:
        FileNotFoundError: If the run has no model yet.
    """
    for name in (BEST, FINAL, DETECTOR):
        if (folder / name).exists():
            return folder / name
    # Checkpoints of Hugging Face have a config.json too.
    if (folder / CONFIG).exists() and not list(folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"The run in {folder} has no model yet: neither {BEST} nor {FINAL}."
        )
    return None


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds a {type(content).__name__}, not an object.")
    return content


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
