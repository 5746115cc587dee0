"""Search for the best export: candidates are exported, loaded, measured and timed here."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import shutil
import tempfile
import time
import timeit
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice, check_names, check_positive
from keras_vit.config import Preprocessing
from keras_vit.data.batches import eval_batches
from keras_vit.data.image_set import ImageSet
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.transforms import decode_for
from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import FORMATS, GOALS, PRECISIONS, RUNTIMES, Format, list_runs
from keras_vit.export.inference import Inference, check_labels, check_outputs, prepare
from keras_vit.export.litert import litert_errors
from keras_vit.export.litert_int8 import part_of_name
from keras_vit.export.lossy_layers import name_lossy_layers
from keras_vit.export.runners import Runner
from keras_vit.export.serving import library_versions
from keras_vit.export.verify import (
    Images,
    expected_outputs,
    largest_difference,
    verification_images,
)
from keras_vit.files import write_atomically
from keras_vit.intervals import drop_interval, wilson_interval
from keras_vit.progress import Progress, align_columns
from keras_vit.runtime.xla_checks import ChangesMeaningError, accept_all, check_graph

_CALIBRATION = 100  # labelled images for int8
_BATCH = 32  # labelled images that are measured at once
_KEPT_BYTES = 2**28
_FIGURES = "export.json"
# Memory of exports: of the libraries, and over the bytes of the weights in float32. LiteRT
# and ONNX in float32 of a ViT-S/14 took 0.9e9 and 9.
_LIBRARIES, _EXPORT_GROWTH = 1e9, 10
_PAUSE = 0.1  # seconds: OpenVINO had 0.6 of its speed 20 ms after ONNX Runtime, all of it after 100
_HEADINGS = ("candidate", "images/s", "loss", "top-1", "difference", "MiB", "start s", "")


@dataclasses.dataclass(eq=False)
class Candidate:
    """A model in one format, precision and runtime, as measured on this machine.

    Args:
        format: Format of the file, a name in `FORMATS`.
        precision: Precision of the file and of the computation.
        runtime: What runs the file, a name in `RUNTIMES`.
        float_layers: Parts of the names of layers that an int8 file keeps float.
        problem: Why it was not tried; `None` if it was.
        top1_agreement: Share of the images with the model's top-1 class, in [0, 1]; `None` without
            classes: for features and regression.
        max_difference: Largest difference of an output, relative to the model's largest value.
        size: Bytes of the file.
        startup_seconds: Seconds to load the file and call it once.
        images_per_second: By the fastest call.
        lost: Images whose class the model finds, and the file does not; without labels, the class
            is the model's.
        gained: Images whose class the file finds, and the model does not.
        loss: What the budget limits: `lost - gained` as a share of the images, which is the drop of
            the accuracy, in [-1, 1]; without classes, `max_difference`.
    """

    format: str
    precision: str
    runtime: str
    float_layers: tuple[str, ...] = ()
    problem: str | None = None
    top1_agreement: float | None = None
    max_difference: float = float("nan")
    size: int = 0
    startup_seconds: float = float("nan")
    images_per_second: float = 0.0
    lost: int = 0
    gained: int = 0
    loss: float = float("nan")

    @property
    def is_calibrated(self) -> bool:
        """Whether the file needs images for the ranges of its activations."""
        return self.precision in FORMATS[self.format].calibrated

    @property
    def label(self) -> str:
        """Runtime, precision, and how many layers are float, in words."""
        name, kept = f"{self.runtime} in {self.precision}", len(self.float_layers)
        return f"{name}, {kept} layers in float" if kept else name

    def row(self) -> tuple[str, ...]:
        """Returns the cells of a table."""
        if self.problem is not None:
            return (self.label, *["-"] * 6, self.problem)
        return (
            self.label,
            f"{self.images_per_second:.{3 if self.images_per_second < 1000 else 4}g}",
            f"{self.loss:.2%}",
            "-" if self.top1_agreement is None else f"{self.top1_agreement:.1%}",
            f"{self.max_difference:.1e}",
            f"{self.size / 2**20:.1f}",
            f"{self.startup_seconds:.1f}",
            "",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class FoundExport:
    """The best export as a function, and all that were tried. Printed, it is a table.

    Args:
        runner: Function of the chosen candidate.
        chosen: The chosen candidate.
        candidates: All candidates, those that were not tried too.
        path: The file, or the directory of a SavedModel. Without `output` it is removed with this
            object.
        figures: The content of `export.json` next to it, as plain values.

    Call arguments:
        pixels: Array of shape `(B, H, W, C)` in [0, 255].

    Returns:
        Float32 outputs by name, `logits` among them if the model has a head.
    """

    runner: Runner = dataclasses.field(repr=False)
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    path: pathlib.Path
    figures: dict[str, Any]

    def __call__(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        return self.runner(pixels)

    def __str__(self) -> str:
        figures, chosen = self.figures, self.chosen
        count, others = figures["images"], figures["calibration_images"]
        calibrated = f", {others} others for the calibration of int8" if others else ""
        rows = {
            "chosen": f"{chosen.label}: {self.path}, {chosen.size / 2**20:.1f} MiB",
            "images": f"{count} measured{calibrated}",
            "budget": f"{figures['budget']:.2%}, one image is {1 / count:.2%}",
        }
        if chosen.float_layers:
            rows["in float"] = ", ".join(chosen.float_layers)
        if "worst_image" in figures:
            worst = figures["worst_image"]
            shares = f"{worst['before']:.1%} before, {worst['after']:.1%} after"
            rows |= {
                "accuracy before": _with_interval(**figures["before"]),
                "accuracy after": _with_interval(**figures["after"]),
                "drop": _with_interval(chosen.loss, figures["drop_interval"]),
                "worst image": f"{worst['file']}: {worst['true']}, {shares}",
            }
        return f"{_table(self.candidates)}\n\n{align_columns(rows.items())}"


def _with_interval(accuracy: float, interval: Sequence[float]) -> str:
    return f"{accuracy:.2%} (95 %: {interval[0]:.2%} to {interval[1]:.2%})"


def find_export(
    model: keras.Model,
    images: ImageSet | Images | None = None,
    output: str | os.PathLike[str] | None = None,
    goal: str = "latency",
    budget: float = 0.01,
    runtimes: Sequence[str] = RUNTIMES,
    precisions: Sequence[str] | None = None,
    batch_size: int = 1,
    calibration: ImageSet | Images | None = None,
    seconds: float = 10.0,
    labels: Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    verbose: bool | int = True,
) -> FoundExport:
    """Finds the fastest or smallest export of a model that loses no more than a budget.

    Exports the model in all precisions to every runtime that is installed here, measures each file
    on the images, and runs all of them in turns. Where LiteRT's int8 exceeds the budget, the layers
    with the largest quantisation errors stay float, as few as are needed.

    Of labelled images, the result has the accuracy before and after with 95 % intervals (Wilson's;
    of the drop, Agresti and Min's for matched pairs, https://doi.org/10.1002/sim.1781), and the
    image whose class lost most.

    Args:
        model: A functional model.
        images: Images of the task that the model was not trained on: an `ImageSet` with one class
            each, or as for `verify_export`. `None` takes synthetic images, which say nothing about
            classes.
        output: Directory to write, which must not exist: the file and `export.json`; `None` keeps
            the file until the result is deleted.
        goal: `"latency"` takes the candidate with the fastest call on this machine, `"size"` the
            file with the fewest bytes.
        budget: Largest loss allowed, in [0, 1). With labels: the drop of the top-1 accuracy, 0.005
            is half a per cent of all images. Without: the share of the images that get another
            top-1 class than from the model. Without classes, for features and regression: the
            largest difference of an output, relative to its largest value.
        runtimes: Runtimes to try: `"graph"` and `"xla"` (a SavedModel, plain or with
            `jit_compile`), `"litert"`, `"onnxruntime"`, `"openvino"`. Those that are not installed
            are left out, and listed.
        precisions: Precisions to try: `"float32"`, `"bfloat16"`, `"float16"`, `"dynamic"`,
            `"int4"`, `"int8"`. `None` takes all, but without images only float32.
        batch_size: Images of a call.
        calibration: Images for int8, of an `ImageSet` 100, spread evenly; `None` takes `images`. Of
            labelled ones, 100, or a fifth of fewer, are held out, and not measured then.
        seconds: Time of all calls that are timed, and of the pauses before them.
        labels: Class names in order; `None` takes those of an `ImageSet`, or of the model.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: As for the exports: `"linear"` for regression, which is also the default of a
            model with one output and no activation.
        verbose: Whether to print, now and then, which of the candidates is tried.

    Returns:
        A `FoundExport`.

    Raises:
        FileExistsError: If `output` exists.
        ValueError: If an argument is wrong, labelled images have other classes than the model or
            several each, or the model cannot be exported.
        ExportMismatchError: If no candidate keeps the budget.

    Example:

    >>> found = keras_vit.export.find_export(model, images, "shipped")  # doctest: +SKIP
    >>> logits = found(pixels)["logits"]  # doctest: +SKIP
    """
    candidates = _list_candidates(images, runtimes, precisions)
    check_choice("goal", goal, GOALS)
    check_positive("batch_size", batch_size)
    if not 0 <= budget < 1:
        raise ValueError(
            f"`budget` is a share of all images, in [0, 1): 0.005 is 0.5 %. Received: {budget}."
        )
    if output is not None and pathlib.Path(output).expanduser().exists():
        raise FileExistsError(f"{os.fspath(output)!r} already exists. Choose another `output`.")
    inference = prepare(model, "float32", preprocessing, activation)
    is_open = activation is None and inference.activation == "softmax"
    if is_open and inference.classes == 1:  # softmax of one value is 1
        activation = "linear"
        inference = dataclasses.replace(inference, activation="linear")
    if labels is not None:
        check_labels(labels, inference.classes, model)
    if isinstance(images, ImageSet):
        _check_task(images, inference)
        labels = images.class_names if labels is None else labels
        if calibration is None and any(each.is_calibrated for each in candidates):
            images, calibration = images.split(min(_CALIBRATION, max(1, images.num_images // 5)))
    if isinstance(calibration, ImageSet):
        calibration = list(_decoded(calibration, inference))
    others = 0 if calibration is None else len(calibration)
    calibration = images if calibration is None else calibration
    options = {"labels": labels, "preprocessing": preprocessing, "activation": activation}
    with contextlib.ExitStack() as files:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="keras_vit_export_"))
        files.callback(shutil.rmtree, folder, ignore_errors=True)
        search = _Search(inference, folder, images, batch_size, calibration, options)
        plan = search.describe(candidates)
        task = f"best {goal} within a budget of {budget:.2%}"
        with Progress(task, len(candidates), "candidates", verbose, plan=plan) as progress:
            chosen = search.find(candidates, goal, budget, seconds, progress)
        limits = {"goal": goal, "budget": budget, "calibration_images": others}
        figures = limits | search.figures(chosen)
        path = kept = search.paths[chosen]
        inference.check_unchanged()
        (path.parent / _FIGURES).write_text(json.dumps(figures, indent=1), "utf-8")
        if output is not None:
            output = pathlib.Path(output).expanduser()
            with write_atomically(output) as unfinished:
                shutil.copytree(path.parent, unfinished)
            path = output / path.name
        for other in folder.iterdir():  # those of the other candidates
            if other not in kept.parents:
                shutil.rmtree(other, ignore_errors=True)
        tried = tuple(search.candidates)
        found = FoundExport(search.runners[chosen], chosen, tried, path, figures)
        weakref.finalize(found, files.pop_all().close)
    return found


def _list_candidates(
    images: Any, runtimes: Sequence[str], precisions: Sequence[str] | None
) -> list[Candidate]:
    if precisions is None:
        precisions = PRECISIONS if images is not None else ("float32",)
    for argument, names in (("runtimes", runtimes), ("precisions", precisions)):
        if isinstance(names, str):
            raise ValueError(f"`{argument}` must be a list of names. Received: {names!r}.")
    check_names("runtime", runtimes, RUNTIMES)
    check_names("precision", precisions, PRECISIONS)
    every = [Candidate(*run) for run in list_runs()]
    found = [each for each in every if each.runtime in runtimes and each.precision in precisions]
    if not found:
        raise ValueError(
            f"No runtime of {tuple(runtimes)} has one of the precisions {tuple(precisions)}. There "
            f"are: {', '.join(each.label for each in every)}."
        )
    return found


def _check_task(images: ImageSet, inference: Inference) -> None:
    classes = inference.classes if inference.has_probabilities else None
    if (images.task, images.num_classes) != ("single_label", classes):
        raise ValueError(
            "The drop of top-1 accuracy needs images with one class each, and a model of these "
            f"classes. Received: {images.name} with task={images.task!r} and {images.num_classes} "
            f"classes, and {inference.source.name!r} with outputs "
            f"{', '.join(inference.model.output)}, and {classes or 'no'} classes. A list of images "
            "has no labels: their classes, or other outputs, are compared with the model's."
        )


def _read_batches(
    images: ImageSet | Images | None, inference: Inference, batch_size: int
) -> tuple[np.ndarray, Any]:
    """Pixels in [0, 255] of the model's size, preprocessed as in evaluation: some, and batches.

    They are kept where that takes little memory, as each file is measured on all of them.
    """
    if not isinstance(images, ImageSet):
        pixels = verification_images(images, inference)
        starts = range(0, len(pixels), batch_size)
        return pixels, [pixels[start : start + batch_size] for start in starts]
    is_small = 4 * images.num_images * math.prod(inference.input_shape) <= _KEPT_BYTES
    size = max(batch_size, min(_BATCH, images.num_images))
    batches = eval_batches(images, _transform_of(inference), size, one_hot=False)
    batches = batches.map(lambda pixels, _: pixels)
    return next(iter(batches)).numpy(), batches.cache() if is_small else batches


def _decoded(images: ImageSet, inference: Inference) -> Iterator[np.ndarray]:
    """At most 100 images in their own sizes, of all classes: folders are sorted by class."""
    transform = _transform_of(inference)
    for item, _ in images.spread(_CALIBRATION):
        yield decode_for(transform, images.load(item), images.max_pixels).numpy()


def _transform_of(inference: Inference) -> InputTransform:
    height, width, channels = inference.input_shape
    return InputTransform((height, width), inference.preprocessing, False, channels)


class _Search:
    """Candidates of one model, whose files are in one folder.

    Args:
        inference: The model.
        folder: Folder of the files.
        images: Images to measure on, as for `find_export`.
        batch_size: Images of a call.
        calibration: Images that calibrate int8.
        options: Arguments of all exports.
    """

    def __init__(
        self,
        inference: Inference,
        folder: pathlib.Path,
        images: ImageSet | Images | None,
        batch_size: int,
        calibration: Any,
        options: Mapping[str, Any],
    ):
        self.candidates: list[Candidate] = []
        self.runners: dict[Candidate, Runner] = {}
        self.paths: dict[Candidate, pathlib.Path] = {}
        self._inference, self._model, self._folder = inference, inference.source, folder
        # The images decide here, not the tolerance of the format.
        self._options = {**options, "tolerance": float("inf")}
        self._images = images if isinstance(images, ImageSet) else None
        self._calibration = calibration
        first, self._batches = _read_batches(images, inference, batch_size)
        self._batch = np.resize(first, (batch_size, *first.shape[1:]))
        known = self._images
        self._count = sum(map(len, self._batches)) if known is None else known.num_images
        self._names = check_outputs(inference, None)
        scores = [name for name in self._names if inference.has_classes(name)]
        has_classes = inference.has_probabilities and inference.classes != 1
        self._scores = scores[0] if scores and has_classes else None
        self._expected: dict[str, np.ndarray] = {}
        self._answers: dict[Candidate, tuple[np.ndarray, np.ndarray]] = {}

    def describe(self, candidates: Sequence[Candidate]) -> str:
        """The plan: how many candidates are tried, and what is done with each."""
        labels = ", ".join(candidate.label for candidate in candidates)
        what = f"{len(candidates)} candidates ({labels}), each exported if its runtime is installed"
        what += f", and measured on {self._count:,} images"
        if any(each.runtime == "litert" and each.precision == "int8" for each in candidates):
            what += ", LiteRT's int8 again with layers in float where it exceeds the budget"
        plan = describe_plan(self._model, f"{what}; all timed in turns at the end")
        return f"{plan}; the time left is known after the first"

    def find(
        self,
        candidates: Sequence[Candidate],
        goal: str,
        budget: float,
        seconds: float,
        progress: Progress,
    ) -> Candidate:
        """Tries all candidates, and returns the best of those within the budget."""
        progress.update(0, "the model itself")
        expected_outputs(self._inference, self._batch)  # which says why none can be expected
        function = tf.function(self._inference, jit_compile=False)
        self._expected = self._run(lambda pixels: function(self._inference.batch(pixels)))
        for candidate in candidates:
            self._try(candidate, progress)
        if not self.runners:
            raise ExportMismatchError(
                f"No candidate could be tried:\n{_table(self.candidates)}", self.candidates
            )
        self._add_float_layers(goal, budget, progress)
        progress.update(len(self.candidates), f"timing {len(self.runners)} in turns")
        for candidate, speed in time_in_turns(self.runners, self._batch, seconds).items():
            candidate.images_per_second = speed
        allowed = [candidate for candidate in self.runners if candidate.loss <= budget]
        if not allowed:
            raise self._nothing_found(budget)
        if goal == "latency":
            return max(allowed, key=lambda each: each.images_per_second)
        return min(allowed, key=lambda each: (each.size, -each.images_per_second))

    def figures(self, chosen: Candidate) -> dict[str, Any]:
        """The choice and all candidates, as plain values for JSON."""
        figures = {
            "model": self._model.name,
            "data": None if self._images is None else self._images.name,
            "images": self._count,
            **dataclasses.asdict(chosen),
            "candidates": [dataclasses.asdict(each) for each in self.runners],
            "not_tried": {x.label: x.problem for x in self.candidates if x.problem is not None},
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
            },
            "versions": library_versions(),
        }
        if self._images is None:
            return figures
        return figures | self._compare(self._images, chosen)

    def _compare(self, images: ImageSet, chosen: Candidate) -> dict[str, Any]:
        """Accuracy before and after with intervals, and the worst image."""
        labels = images.all_labels
        own, before = self._judge(self._expected, labels)
        classes, after = self._answers[chosen]
        # An image whose class was lost is worse than any that is still right.
        is_lost = (own == labels) & (classes != labels)
        worst = int(np.argmax(before - after + 2 * is_lost))
        return {
            "before": _accuracy(own == labels),
            "after": _accuracy(classes == labels),
            "drop_interval": drop_interval(chosen.lost, chosen.gained, self._count),
            "worst_image": {
                "file": images.file_names()[worst],
                "true": images.class_names[labels[worst]],
                "predicted": images.class_names[classes[worst]],
                "before": float(before[worst]),
                "after": float(after[worst]),
            },
        }

    def _try(self, candidate: Candidate, progress: Progress) -> Candidate:
        """Exports a candidate, loads its file and measures it, or notes why it cannot."""
        progress.update(len(self.candidates), candidate.label)
        self.candidates.append(candidate)
        format = FORMATS[candidate.format]
        try:
            if candidate.runtime == "xla":
                _check_xla(self._model)
            self._export(candidate, format)
            begin = time.perf_counter()
            loading = format.runtimes[candidate.runtime].loading(candidate.precision)
            runner = format.load(self.paths[candidate], **loading)
            runner(self._batch)
            candidate.startup_seconds = time.perf_counter() - begin
            self._measure(candidate, runner)
        except Exception as error:  # each runtime has its own
            candidate.problem = next(iter(str(error).strip().splitlines()), repr(error))
        else:
            self.runners[candidate] = runner
        return candidate

    def _export(self, candidate: Candidate, format: Format) -> None:
        """Writes the file of a candidate."""
        options = {**self._options, **format.runtimes[candidate.runtime].options}
        if candidate.is_calibrated:
            options |= {"calibration": self._calibration, "float_layers": candidate.float_layers}
        if format.name == "litert":
            options["batch_size"] = 1 if candidate.is_calibrated else len(self._batch)
        path = self._folder / str(len(self.candidates)) / format.file
        report = format.export(self._model, path, precision=candidate.precision, **options)
        self.paths[candidate], candidate.size = pathlib.Path(report.path), report.size

    def _run(self, runner: Callable[[np.ndarray], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Outputs for all images."""
        parts = []
        with Progress("answers", self._count, "images") as progress:
            for pixels in self._batches:
                outputs = runner(np.asarray(pixels))
                parts.append({name: outputs[name] for name in self._names})
                progress.update(progress.done + len(pixels))
        return {name: np.concatenate([part[name] for part in parts]) for name in self._names}

    def _measure(self, candidate: Candidate, runner: Runner) -> None:
        """Notes in a candidate what its runner keeps of the model."""
        outputs = self._run(runner)
        scale = self._inference.smallest_scale
        candidate.max_difference = largest_difference(outputs, self._expected, scale)
        if not np.isfinite(candidate.max_difference):
            raise ValueError("Outputs are NaN, infinite or of another shape.")
        candidate.loss = candidate.max_difference
        if self._scores is None:
            return
        own, classes = (x[self._scores].argmax(-1) for x in (self._expected, outputs))
        labels = own if self._images is None else self._images.all_labels
        candidate.top1_agreement = float(np.mean(own == classes))
        candidate.lost = int(((own == labels) & (classes != labels)).sum())
        candidate.gained = int(((own != labels) & (classes == labels)).sum())
        candidate.loss = (candidate.lost - candidate.gained) / own.size
        if self._images is not None:
            self._answers[candidate] = self._judge(outputs, labels)

    def _judge(
        self, outputs: Mapping[str, np.ndarray], labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The most probable class of every image, and the probability of its own."""
        assert self._scores is not None  # see `_check_task`
        scores = outputs[self._scores]
        own = scores[np.arange(len(labels)), labels].astype("float64")
        if self._inference.names.get(self._scores, "logits") == "logits":
            own = np.exp(own - tf.reduce_logsumexp(scores, -1).numpy())
        return scores.argmax(-1), own

    def _add_float_layers(self, goal: str, budget: float, progress: Progress) -> None:
        """Tries LiteRT's int8 with the worst layers in float, as few as are needed.

        Only where it exceeds the budget, and no smaller file keeps it.
        """
        int8 = [x for x in self.runners if x.runtime == "litert" and x.precision == "int8"]
        if not int8 or int8[0].loss <= budget:
            return
        kept = [each for each in self.runners if each.loss <= budget]
        if goal == "size" and any(each.size < int8[0].size for each in kept):
            return
        progress.total = None  # as many as the search of layers needs
        progress.update(progress.done, "errors of all layers")
        options = self._options.get("preprocessing"), self._options.get("activation")
        errors = litert_errors(self._model, self._calibration, (), *options)
        errors.sort(key=lambda row: row.at_run_time)  # floats gain most in place of fixed ranges
        names = tuple(part_of_name(row.tensor) for row in errors)

        def is_enough(count: int) -> bool:
            candidate = Candidate("litert", "int8", "litert", names[:count])
            return self._try(candidate, progress).loss <= budget

        high = 1
        while high < len(names) and not is_enough(high):
            high *= 2
        if high < len(names):  # all layers in float are float32
            bisect.bisect_left(range(high // 2 + 1, high), True, key=is_enough)

    def _nothing_found(self, budget: float) -> ExportMismatchError:
        images = np.concatenate([*itertools.islice(self._batches, 8)])
        last = [*self.runners][-1]  # which has the fewest bits
        kind = self._inference, last.format, last.precision
        lossy = name_lossy_layers(*kind, images, last.float_layers)
        return ExportMismatchError(
            f"No export keeps a budget of {budget:.2%}. {lossy}If not even float32 does, "
            f"the file differs from the model. Tried:\n{_table(self.candidates)}",
            self.candidates,
        )


def _accuracy(is_right: np.ndarray) -> dict[str, Any]:
    """The accuracy with its 95 % interval."""
    right, count = int(is_right.sum()), len(is_right)
    return {"accuracy": right / count, "interval": wilson_interval(right, count)}


def _check_xla(model: keras.Model) -> None:
    """Raises a `ValueError` if XLA may compute something else, such as without an assertion."""
    (images,) = model.inputs
    function = tf.function(lambda x: model(x, training=False), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec(images.shape, images.dtype))
    try:
        is_same = check_graph(graph) is accept_all  # a file cannot check what it is given
    except ChangesMeaningError as reason:
        raise ValueError(f"XLA may mean something else: {reason}") from reason
    if not is_same:
        raise ValueError("XLA does not check indices that come from images")


def describe_plan(model: keras.Model, what: str) -> str:
    """What an export or a search will do, and the memory that it takes, in words.

    Args:
        model: The model.
        what: What will be done with it.
    """
    shape = " x ".join(map(str, model.inputs[0].shape[1:]))
    memory = _LIBRARIES + _EXPORT_GROWTH * 4 * model.count_params()
    return (
        f"{model.name}, {model.count_params():,} parameters, inputs of {shape}; {what}; about "
        f"{memory / 2**30:.1f} GiB of memory"
    )


def time_in_turns(
    runners: Mapping[Any, Runner], batch: np.ndarray, seconds: float
) -> dict[Any, float]:
    """Runs functions in turns, and returns the images per second of the fastest call of each.

    A turn is a pause and three calls. The threads of ONNX Runtime wait actively after a call, and
    other runtimes are slow meanwhile.

    Args:
        runners: Functions by candidate.
        batch: Pixels of shape `(B, H, W, C)` in [0, 255] of one call.
        seconds: Time of all turns; each candidate has at least two.
    """
    fastest = dict.fromkeys(runners, float("inf"))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 2 or time.perf_counter() < end:
        for candidate, runner in runners.items():
            time.sleep(_PAUSE)
            calls = timeit.repeat(functools.partial(runner, batch), number=1, repeat=3)
            fastest[candidate] = min(fastest[candidate], *calls)
        rounds += 1
    return {candidate: len(batch) / shortest for candidate, shortest in fastest.items()}


def _table(candidates: Sequence[Candidate]) -> str:
    """Describes candidates in a table."""
    return align_columns([_HEADINGS, *(candidate.row() for candidate in candidates)])
