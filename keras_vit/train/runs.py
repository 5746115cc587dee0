"""A training run as one object: its model, class names, history, and what to do with them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import keras

from keras_vit.checks import check_choice
from keras_vit.data.strata import HELD_OUT
from keras_vit.errors import needing_tensorflow
from keras_vit.evaluate.compute import training_exaflops
from keras_vit.export.formats import FORMATS
from keras_vit.hub.model_card import CardFacts
from keras_vit.report.page import human_bytes, human_seconds
from keras_vit.report.result_page import write_result_page
from keras_vit.runtime.model import Model
from keras_vit.train.file_predictions import Prediction, classify_files, predict_labelled
from keras_vit.train.image_lists import IMAGE_LISTS, check_unchanged
from keras_vit.train.keras_files import load_keras_file
from keras_vit.train.run_facts import card_facts_of
from keras_vit.train.run_folder import (
    BEST,
    CONFIG,
    FINAL,
    FIRST_EPOCH,
    PEAK_MEMORY,
    PREDICTIONS,
    REPORT,
    STEPS,
    find_saved_model,
    read_config,
    read_metrics,
    read_results,
)
from keras_vit.train.stages import share_of_pixels
from keras_vit.train.tasks import MONITORS

if TYPE_CHECKING:  # reading images and exporting need TensorFlow
    from keras_vit.data.image_set import ImageSet
    from keras_vit.export.verify import ExportReport

SEGMENTATION = "segmentation"
_FILES = {"best": BEST, "final": FINAL}


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run. Made by `load_run`; `print(run)` describes it.

    Args:
        folder: Folder of the run.
        which: `"best"` (the epoch of the best validation metric) or `"final"`.
        class_names: Names of classes or regression targets, in the order of the model's outputs.
        history: Values of every epoch by name, as in `fit`.
        results: Accuracies and seconds at the end; empty if the run has not ended.
        config: Settings of the run, from `config.json`.
    """

    folder: pathlib.Path
    which: str
    class_names: tuple[str, ...]
    history: dict[str, list[float]]
    results: dict[str, Any]
    config: dict[str, Any]

    @property
    def task(self) -> str:
        """The task: `"single_label"`, `"multi_label"`, `"regression"` or `"segmentation"`."""
        return self.config.get("task", "single_label")

    @property
    def model_path(self) -> pathlib.Path:
        """The file of the model."""
        return self.folder / _FILES[self.which]

    @functools.cached_property
    def model(self) -> keras.Model:
        """The model, loaded on first use."""
        model = load_keras_file(self.model_path)
        _check_names(self.class_names, model, self.folder)
        if isinstance(model, Model) and self.class_names:
            model.class_names = self.class_names
        return model

    @property
    def epoch(self) -> int | None:
        """The epoch that the model is from, counted from 1, if it is known."""
        monitor = MONITORS[self.task]
        values = self.history.get(monitor.metric, [])
        epochs = max(map(len, self.history.values()), default=0)
        if self.which == "final":
            return epochs or None
        first = self.results.get(FIRST_EPOCH, 0)  # smaller images do not count
        return 1 + first + monitor.best_of(values[first:]) if values[first:] else None

    def predict(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        batch_size: int = 32,
        unreadable: str = "error",
    ) -> list[Prediction]:
        """Predicts image files: probabilities of classes, scores of labels, values of targets.

        Args:
            files: Image files and folders of image files; one or several.
            batch_size: Images per step.
            unreadable: `"error"` or `"skip"`, as for `read_folder`.

        Returns:
            A `Prediction` for every file that can be read.
        """
        paths = [files] if isinstance(files, str | os.PathLike) else list(files)
        names = self.class_names
        return classify_files(self.model, names, paths, batch_size, unreadable, self.task)

    def evaluate(
        self, images: ImageSet | str | os.PathLike[str], batch_size: int = 64
    ) -> float | dict[str, float]:
        """Computes the top-1 accuracy on images, or the metrics of another task.

        Args:
            images: An `ImageSet`, a folder with one folder per class, or a CSV file.
            batch_size: Images per step.

        Returns:
            The accuracy, in [0, 1]; of several labels or a regression metrics by name.

        Raises:
            ValueError: If the images have classes that the run does not know.
        """
        with needing_tensorflow("`Run.evaluate`"):
            from keras_vit.data.image_set import check_same_classes
            from keras_vit.data.sources import open_images

        if isinstance(images, str | os.PathLike):
            images = open_images(os.fspath(images), None, self.class_names, task=self.task)
        check_same_classes(self.class_names, images, self.task)
        metrics = predict_labelled(self.model, images, batch_size).metrics()
        return metrics["accuracy"] if self.task == "single_label" else metrics

    def export(self, to: str, path: str | os.PathLike[str], **options: Any) -> ExportReport:
        """Exports the model with its class names, checked against the model.

        Args:
            to: `"saved_model"`, `"litert"`, `"onnx"` or `"openvino"`; of segmentation
                `"saved_model"`.
            path: The file or directory to write.
            **options: Arguments of `export_saved_model`, `export_litert`, `export_onnx`,
                `export.export_openvino` or `segmentation.export_segmenter`.

        Returns:
            The `ExportReport`.

        Raises:
            ValueError: If the format is unknown, or gives no class maps of a segmentation model.
        """
        own: dict[str, Any] = {"labels": list(self.class_names)}
        if self.task != SEGMENTATION:
            own["activation"] = activation_of(self.task)
        return find_exporter(to, self.task)(self.model, path, **{**own, **options})

    def report(
        self,
        images: ImageSet | Literal[False] | None = None,
        path: str | os.PathLike[str] | None = None,
        batch_size: int = 64,
        kind: str = "",
    ) -> pathlib.Path:
        """Writes the result page of the run, and the predictions that it shows as CSV.

        The page needs no other file: learning curves, accuracy per class, confusion matrix, the
        most wrong images with attention, calibration, cost and settings.

        Args:
            images: Images to predict; `None` takes the test images of the run, or its validation
                images, from where they were in training. Of a run of an older version, which did
                not list them, a warning says that they may have changed. `False` leaves
                predictions out.
            path: The page to write; `None` writes `report.html` in the folder of the run.
                `predictions.csv` is written to the same folder.
            batch_size: Images per step.
            kind: What `images` are, for the page: such as `"test"`.

        Returns:
            The path of the page.

        Raises:
            FileNotFoundError: If the images of the run are no longer there.
            ValueError: If the images have classes that the run does not know, or those of the run
                have changed: the run may have been trained on what is held out now.
        """
        with needing_tensorflow("`Run.report`"):
            from keras_vit.data.image_set import check_same_classes

        if images is None:
            kind, images = self.held_out()
        path = self.folder / REPORT if path is None else pathlib.Path(path)
        predictions = None
        subtitle = f"{self.config.get('model', 'A model')}, {self._describe_outputs()}. "
        if images:
            check_same_classes(self.class_names, images, self.task)
            predictions = predict_labelled(self.model, images, batch_size, self.class_names)
            predictions.write_csv(path.parent / PREDICTIONS)
            subtitle += f"Results on the {kind} images of {images.name}. ".replace("  ", " ")
        if self.config.get(HELD_OUT):
            subtitle += f"Held out of the training images: {self.config[HELD_OUT]}. "
        shown = {name: value for name, value in self.config.items() if value not in (None, [])}
        return write_result_page(
            path,
            self.model,
            predictions,
            self.history,
            title=str(self.folder),
            subtitle=subtitle + self.describe_model(),
            best_epoch=self.epoch,
            cost=self._describe_cost(),
            settings=shown,
        )

    def card_facts(self) -> CardFacts:
        """What the files of the run say about the model, for the card of `hub.push`."""
        is_best = self.which == "best" or not (self.folder / BEST).exists()
        return card_facts_of(self.folder, self.model, is_best)

    def held_out(self) -> tuple[str, ImageSet | Literal[False]]:
        """What they are called, and the images that were not trained on; `False` without any."""
        from keras_vit.data.sources import open_training_data

        config = self.config
        if config.get("data") is None:
            return "", False
        keys = ("data_dir", "unreadable", "task")
        options = {name: config[name] for name in keys if config.get(name) is not None}
        split_options = config.get("validation"), config.get("test"), config.get("seed", 0)
        try:
            data = open_training_data(config["data"], *split_options, options)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error} The images of the run are no longer there. Pass other images."
            ) from error
        if data.held_out is None:
            return "", False
        check_unchanged(self.folder, config.get(IMAGE_LISTS), data)
        return data.held_out

    def _describe_cost(self) -> dict[str, str]:
        """Cost of the training, as far as it is known."""
        epochs = max(map(len, self.history.values()), default=0)
        seconds = sum(self.history.get("seconds", ())) or self.results.get("seconds")
        facts = {"epochs": f"{epochs:,}"} if epochs else {}  # a probe has none
        if seconds:
            facts["training time"] = human_seconds(seconds)
        plan, steps = self.config.get("plan", {}), self.results.get(STEPS)
        batch, sizes = plan.get("batch_size"), plan.get("progressive_sizes", ())
        if batch and steps:
            trained_images = steps * epochs * batch
            facts["steps"] = f"{steps * epochs:,} of {batch:,} images"
            facts["images"] = f"{trained_images:,}"
            if seconds:
                rate = trained_images / seconds
                facts["images a second"] = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
            with contextlib.suppress(ValueError):  # a layer that cannot be counted
                exaflops = training_exaflops(self.model, trained_images) * share_of_pixels(sizes)
                facts["FLOPs of training"] = f"{exaflops * 1e18:.3g}"
        if PEAK_MEMORY in self.results:
            facts["peak memory of the process"] = human_bytes(self.results[PEAK_MEMORY])
        return facts

    def __str__(self) -> str:
        epochs = max(map(len, self.history.values()), default=0)
        state = "ended" if self.results else "not ended"
        if epochs:
            state = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}, {state}"
        return (
            f"Run {self.folder}: {self.config.get('model', 'a model')}, "
            f"{self._describe_outputs()}, {state}. {self.describe_model()}"
        )

    def _describe_outputs(self) -> str:
        count, words = len(self.class_names), {"multi_label": "labels", "regression": "targets"}
        return f"{count} {words.get(self.task, 'classes').removesuffix('s' if count == 1 else ' ')}"

    def describe_model(self) -> str:
        """Says which of the run's models this is, in one sentence."""
        epoch = "" if self.epoch is None else f", epoch {self.epoch}"
        reason = ""
        if self.which == "best" and self.epoch is not None:
            metric = MONITORS[self.task].metric
            reason = f", the best {metric}: {self.history[metric][self.epoch - 1]:.4f}"
        return f"Model: {self.model_path.name}{epoch}{reason}."


def load_run(folder: str | os.PathLike[str], which: str | None = None) -> Run:
    """Loads a training run of `keras-vit train` as one object.

    Args:
        folder: Folder of the run.
        which: `"best"`, the model of the epoch with the best validation metric, or `"final"`, that
            of the last epoch. `None` takes the best if there is one; `print(run)` says which.

    Returns:
        A `Run`. Its model is loaded on first use.

    Raises:
        FileNotFoundError: If the folder holds no run, or the run has no such model yet.
        ValueError: If a file of the run is damaged.

    Example:

    >>> run = keras_vit.train.load_run("runs/pets")  # doctest: +SKIP
    >>> run.predict("photos/cat.jpg")[0].classes  # doctest: +SKIP
    """
    folder = pathlib.Path(folder)
    if which is not None:
        check_choice("which", which, tuple(_FILES))
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} is not the folder of a run: it has no {CONFIG}. Pass the --output of "
            "`keras-vit train`."
        )
    path = find_saved_model(folder) if which is None else folder / _FILES[which]
    if path is None or not path.exists():
        raise FileNotFoundError(f"The run in {folder} has no {which} model. Received: {path}.")
    config = read_config(folder)
    return Run(
        folder=folder,
        which="best" if path.name == BEST else "final",
        class_names=tuple(map(str, config.get("class_names", ()))),
        history=read_metrics(folder),
        results=read_results(folder),
        config=config,
    )


def activation_of(task: str) -> str | None:
    """The activation of an export, from outputs to what a user reads; `None` is the head's."""
    return {"multi_label": "sigmoid", "regression": "linear"}.get(task)


def find_exporter(to: str, task: str = "single_label") -> Callable[..., ExportReport]:
    """Finds the function that exports to a format.

    Args:
        to: The format, a name in `FORMATS`.
        task: What the model predicts; `"segmentation"` has one format, with class maps at the size
            of the image.

    Raises:
        ValueError: If `to` is another format.
    """
    check_choice("to", to, tuple(FORMATS))
    if task == SEGMENTATION and to != "saved_model":
        raise ValueError(
            "Class maps at the size of the image are exported as saved_model only. Received: "
            f"{to!r}. For logits at the size of the model, call `export_onnx`, `export_litert` or "
            "`export.export_openvino` in Python."
        )
    with needing_tensorflow("An export"):
        if task == SEGMENTATION:
            return importlib.import_module("keras_vit.segmentation.export").export_segmenter
        return FORMATS[to].export


def _check_names(names: tuple[str, ...], model: keras.Model, folder: pathlib.Path) -> None:
    classes = model.output_shape[-1]
    if names and len(names) != classes:  # none of `keras-vit pretrain`
        raise ValueError(
            f"{folder / CONFIG} names {len(names)} classes, and the model has {classes}. Pass the "
            "model's own file to `keras.saving.load_model`."
        )
