"""The fastest runtime for a model on this machine, by exporting to all of them and timing them."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import shutil
import tempfile
import time
import timeit
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive
from keras_vit.config import Preprocessing
from keras_vit.errors import ExportMismatchError
from keras_vit.export.inference import check_model, prepare
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.runners import (
    LOADERS,
    Runner,
    find_format,
    load_openvino,
    load_saved_model,
)
from keras_vit.export.saved_model import PLAIN_PIXELS, export_saved_model
from keras_vit.export.verify import (
    ExportReport,
    Images,
    compare,
    expected_outputs,
    verification_images,
)
from keras_vit.files import write_atomically
from keras_vit.runtime.processors import memory_bytes
from keras_vit.runtime.xla_checks import ChangesMeaningError, accept_all, check_graph

# The export of each runtime and precision, with its options.
_WAYS: dict[tuple[str, str], tuple[Callable[..., ExportReport], dict[str, Any]]] = {
    ("graph", "float32"): (export_saved_model, {"jit_compile": True}),
    ("xla", "float32"): (export_saved_model, {"jit_compile": True}),
    ("litert", "float32"): (export_litert, {}),
    ("onnxruntime", "float32"): (export_onnx, {}),
    ("openvino", "float32"): (export_onnx, {}),
    ("graph", "bfloat16"): (export_saved_model, {"precision": "bfloat16", "jit_compile": True}),
    ("xla", "bfloat16"): (export_saved_model, {"precision": "bfloat16", "jit_compile": True}),
    ("constants", "bfloat16"): (
        export_saved_model,
        {"precision": "bfloat16", "constant_weights": True},
    ),
    ("openvino", "bfloat16"): (export_onnx, {}),  # rounds the float32 file itself
    ("litert", "int8"): (export_litert, {"precision": "int8"}),
    ("onnxruntime", "int8"): (export_onnx, {"precision": "int8"}),
    ("openvino", "int8"): (export_openvino, {"precision": "int8"}),
}
RUNTIMES = tuple(dict.fromkeys(runtime for runtime, _ in _WAYS))
PRECISIONS = tuple(dict.fromkeys(precision for _, precision in _WAYS))
_CONSTANTS_GROWTH = 60  # memory of an export of constant weights over their bytes (50 measured)
_PAUSE = 0.1  # seconds: OpenVINO had 0.6 of its speed 20 ms after ONNX Runtime, all of it after 100
_NAMES = {
    "export_saved_model": "saved_model",
    "export_litert": "model.tflite",
    "export_onnx": "model.onnx",
    "export_openvino": "model.xml",
}


@dataclasses.dataclass(eq=False)
class Candidate:
    """A model in one runtime and precision, as measured on this machine.

    Args:
        runtime: `"graph"`, `"xla"`, `"constants"`, `"litert"`, `"onnxruntime"` or `"openvino"`.
        precision: `"float32"`, `"bfloat16"` or `"int8"`.
        problem: Why it was not tried; `None` if it was.
        top1_agreement: Share of the images with the model's top-1 class, in [0, 1]; `None` without
            classes: for features and regression.
        max_difference: Largest difference of an output, relative to the model's largest value.
        size: Bytes of the file.
        startup_seconds: Seconds to load the file and call it once.
        images_per_second: At the batch size asked for, by the fastest call.
    """

    runtime: str
    precision: str
    problem: str | None = None
    top1_agreement: float | None = None
    max_difference: float = float("nan")
    size: int = 0
    startup_seconds: float = float("nan")
    images_per_second: float = 0.0

    def row(self) -> tuple[str, ...]:
        """Returns the cells of a table."""
        if self.problem is not None:
            return (self.runtime, self.precision, "-", "-", "-", "-", "-", self.problem)
        agreement = "-" if self.top1_agreement is None else f"{self.top1_agreement:.1%}"
        return (
            self.runtime,
            self.precision,
            f"{self.images_per_second:.{3 if self.images_per_second < 1000 else 4}g}",
            agreement,
            f"{self.max_difference:.1e}",
            f"{self.size / 2**20:.1f}",
            f"{self.startup_seconds:.1f}",
            "",
        )


_Timed = TypeVar("_Timed", bound=Candidate)
_HEADINGS = ("runtime", "precision", "images/s", "top-1", "difference", "MiB", "start s", "")


class OptimizedModel:
    """The fastest candidate as a function, and all that were tried.

    Args:
        runner: Function of the chosen candidate.
        chosen: The chosen candidate.
        candidates: All candidates, those that were not tried too.
        path: File of the chosen candidate.
        folder: Folder of all files, which is removed with this object.

    Call arguments:
        pixels: Array of shape `(B, H, W, C)` in [0, 255].

    Returns:
        Float32 outputs by name, `logits` among them if the model has a head.
    """

    def __init__(
        self,
        runner: Runner,
        chosen: Candidate,
        candidates: Sequence[Candidate],
        path: pathlib.Path,
        folder: pathlib.Path,
    ):
        self._runner = runner
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.chosen = chosen
        self.candidates = tuple(candidates)
        self.path = path

    def __call__(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        return self._runner(pixels)

    def __str__(self) -> str:
        chosen = f"{self.chosen.runtime} in {self.chosen.precision}"
        return f"{_table(self.candidates)}\n\nThe fastest is {chosen}, with the file {self.path}"


def optimize(
    model: keras.Model,
    images: Images | None = None,
    batch_size: int = 1,
    precisions: Sequence[str] = ("float32",),
    min_agreement: float = 0.99,
    runtimes: Sequence[str] = RUNTIMES,
    output: str | os.PathLike[str] | None = None,
    preprocessing: Preprocessing | None = None,
    seconds: float = 10.0,
    activation: str | None = None,
) -> OptimizedModel:
    """Finds the fastest runtime for a model on this machine.

    Exports the model to every runtime that is installed, compares each file with the model on the
    images, and runs all of them in turns.

    Args:
        model: A functional model.
        images: Images of the task, as for `verify_export`: agreement is measured on them, and
            `"int8"` is calibrated with them. `None` takes synthetic images, which say nothing about
            agreement.
        batch_size: Images of a call.
        precisions: Precisions allowed: `"float32"`, `"bfloat16"`, `"int8"`.
        min_agreement: Lowest top-1 agreement allowed, in [0, 1]. Without classes, for features and
            regression, no value may differ by more than `1 - min_agreement` of the largest.
        runtimes: Runtimes to try: `"graph"`, `"xla"` and `"constants"` (a SavedModel; the last with
            `constant_weights`, in bfloat16, where memory allows it), `"litert"`, `"onnxruntime"`,
            `"openvino"`. Those that are not installed are left out, and listed.
        output: Directory for the chosen file, which must not exist; `None` keeps the file until the
            result is deleted.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        seconds: Time of all calls that are timed, and of the pauses before them.
        activation: As for the exports: `"linear"` for regression, which is also the default of a
            model with one output and no activation.

    Returns:
        An `OptimizedModel`; printed, it is a table.

    Raises:
        ValueError: If the model cannot be exported, or a name is unknown.
        ExportMismatchError: If no candidate reaches `min_agreement`.

    Example:

    >>> fastest = keras_vit.export.optimize(model, images)  # doctest: +SKIP
    >>> logits = fastest(pixels)["logits"]  # doctest: +SKIP
    """
    check_model(model)
    check_positive("batch_size", batch_size)
    _check_names("precisions", precisions, PRECISIONS)
    _check_names("runtimes", runtimes, RUNTIMES)
    candidates = [Candidate(*key) for key in _WAYS if key[0] in runtimes and key[1] in precisions]
    if not candidates:
        pairs = ", ".join(f"{runtime} in {precision}" for runtime, precision in _WAYS)
        raise ValueError(
            f"No runtime of {tuple(runtimes)} has one of the precisions {tuple(precisions)}. There "
            f"are: {pairs}."
        )
    if output is not None and pathlib.Path(output).expanduser().exists():
        raise FileExistsError(f"{os.fspath(output)!r} already exists. Choose another `output`.")
    inference = prepare(model, "float32", preprocessing, activation)
    if activation is None and inference.classes == 1 and inference.activation == "softmax":
        activation = "linear"  # softmax of one value is 1
        inference = dataclasses.replace(inference, activation=activation)
    pixels = verification_images(images, inference)
    pixels = np.resize(pixels, (-(-len(pixels) // batch_size) * batch_size, *pixels.shape[1:]))
    expected = expected_outputs(inference, pixels)
    if inference.activation == "linear" and "logits" in expected:
        expected = {"logits": expected["logits"]}  # not the features, which some formats leave out
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keras_vit_optimize_"))
    options = {"images": pixels, "preprocessing": preprocessing, "activation": activation}
    files = _Files(model, options, batch_size, folder)

    def check(candidate: Candidate, runner: Runner) -> ExportReport:
        kind = (files.path(candidate), candidate.runtime, candidate.precision)
        return compare(*kind, runner, expected, pixels, batch_size, inference.smallest_scale)

    try:
        runners = _try_all(candidates, files, check, pixels[:batch_size], images is not None)
        time_in_turns(runners, pixels[:batch_size], seconds)
        allowed = [candidate for candidate in runners if _agrees(candidate, min_agreement)]
        if not allowed:
            raise ExportMismatchError(
                f"No runtime reaches min_agreement={min_agreement}:\n{_table(candidates)}",
                candidates,
            )
        chosen = max(allowed, key=lambda candidate: candidate.images_per_second)
        path = files.path(chosen)
        if output is not None:
            path = _keep(path, pathlib.Path(output).expanduser())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return OptimizedModel(runners[chosen], chosen, candidates, path, folder)


def _check_names(argument: str, names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if isinstance(names, str) or unknown or not names:
        raise ValueError(
            f"`{argument}` must be some of {', '.join(map(repr, known))}. Received: {names!r}."
        )


class _Files:
    """Exports of one model in a temporary folder, each written once."""

    def __init__(
        self,
        model: keras.Model,
        options: dict[str, Any],
        batch_size: int,
        folder: pathlib.Path,
    ):
        self._options = options
        self._model, self._batch_size, self._folder = model, batch_size, folder
        self._written: dict[tuple[str, ...], pathlib.Path | str] = {}

    def path(self, candidate: Candidate) -> pathlib.Path:
        """Returns the path of a candidate's file, and exports it if it does not exist."""
        export, options = _WAYS[candidate.runtime, candidate.precision]
        is_constant = candidate.runtime == "constants"
        weights = "constants" if is_constant else "weights"
        key = (export.__name__, options.get("precision", "float32"), weights)
        if key not in self._written:
            if is_constant:
                _check_memory(self._model)
            options = {**self._options, **options}
            is_int8 = candidate.precision == "int8"
            if export is export_litert:
                options["batch_size"] = 1 if is_int8 else self._batch_size
            if export in (export_litert, export_openvino):
                options["calibration"] = list(options["images"]) if is_int8 else None
            path = self._folder.joinpath(*key, _NAMES[key[0]])
            # Agreement decides here, not the tolerance of the format.
            self._written[key] = export(self._model, path, tolerance=float("inf"), **options).path
        return pathlib.Path(self._written[key])

    def load(self, candidate: Candidate) -> Runner:
        """Loads a candidate's file in its runtime."""
        path = self.path(candidate)
        if candidate.runtime == "openvino":
            hint = "bfloat16" if candidate.precision == "bfloat16" else "float32"
            return load_openvino(path, hint)  # int8 is in the file
        if candidate.runtime == "xla":
            self._check_xla()
        if candidate.runtime == "graph":
            return load_saved_model(path, PLAIN_PIXELS)
        return LOADERS[find_format(path)](path)

    def _check_xla(self) -> None:
        """Raises a `ValueError` if XLA may compute something else, such as without an assertion."""
        (images,) = self._model.inputs
        function = tf.function(lambda x: self._model(x, training=False), autograph=False)
        graph = function.get_concrete_function(tf.TensorSpec(images.shape, images.dtype))
        try:
            is_same = check_graph(graph) is accept_all  # a file cannot check what it is given
        except ChangesMeaningError as reason:
            raise ValueError(f"XLA may mean something else: {reason}") from reason
        if not is_same:
            raise ValueError("XLA does not check indices that come from images")


def _check_memory(model: keras.Model) -> None:
    """Raises a `ValueError` if constant weights in half precision may take most of the memory."""
    needed = _CONSTANTS_GROWTH * 2 * model.count_params()
    if needed > memory_bytes() / 2:
        raise ValueError(f"constant weights may take {needed / 1e9:.0f} GB of memory")


def _try_all(
    candidates: Sequence[Candidate],
    files: _Files,
    check: Callable[[Candidate, Runner], ExportReport],
    batch: np.ndarray,
    can_calibrate: bool,
) -> dict[Candidate, Runner]:
    """Exports, loads and checks candidates, and notes why that is not possible for some."""
    runners: dict[Candidate, Runner] = {}
    for candidate in candidates:
        if candidate.precision == "int8" and not can_calibrate:
            candidate.problem = "int8 is calibrated with `images`"
            continue
        try:
            files.path(candidate)  # exports it
            begin = time.perf_counter()
            runner = files.load(candidate)
            runner(batch)
            candidate.startup_seconds = time.perf_counter() - begin
            report = check(candidate, runner)
        except Exception as error:  # each runtime has its own; the others are tried
            candidate.problem = next(iter(str(error).strip().splitlines()), repr(error))
            continue
        runners[candidate] = runner
        candidate.size = report.size
        candidate.top1_agreement = report.top1_agreement
        candidate.max_difference = report.max_difference
    return runners


def time_in_turns(candidates: Mapping[_Timed, Runner], batch: np.ndarray, seconds: float) -> None:
    """Runs all candidates in turns, and notes the speed of the fastest call of each.

    A turn is a pause and three calls. The threads of ONNX Runtime wait actively after a call, and
    other runtimes are slow meanwhile.

    Args:
        candidates: Functions by candidate, whose `images_per_second` is set.
        batch: Pixels of shape `(B, H, W, C)` in [0, 255] of one call.
        seconds: Time of all turns; each candidate has at least two.
    """
    fastest = dict.fromkeys(map(id, candidates), float("inf"))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 2 or time.perf_counter() < end:
        for candidate, runner in candidates.items():
            time.sleep(_PAUSE)
            calls = timeit.repeat(functools.partial(runner, batch), number=1, repeat=3)
            fastest[id(candidate)] = min(fastest[id(candidate)], *calls)
        rounds += 1
    for candidate in candidates:
        candidate.images_per_second = len(batch) / fastest[id(candidate)]


def _agrees(candidate: Candidate, min_agreement: float) -> bool:
    """Whether a candidate is close enough to the model: by top-1 class, or without one by value."""
    if candidate.top1_agreement is None:
        return candidate.max_difference <= 1 - min_agreement
    return candidate.top1_agreement >= min_agreement


def _table(candidates: Sequence[Candidate]) -> str:
    rows = [_HEADINGS, *(candidate.row() for candidate in candidates)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _keep(path: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Copies a file, with the file of its weights, or a directory, into a new directory."""
    with write_atomically(output) as unfinished:
        shutil.copytree(path if path.is_dir() else path.parent, unfinished)
    return output if path.is_dir() else output / path.name
