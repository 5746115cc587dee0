"""The search over exports of one model: each candidate is exported, loaded, measured and timed."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.formats import FORMATS
from keras_vit.export.runners import Runner, load_openvino, load_saved_model
from keras_vit.export.saved_model import PLAIN_PIXELS
from keras_vit.export.verify import ExportReport
from keras_vit.progress import Progress, align_columns
from keras_vit.runtime.processors import memory_bytes
from keras_vit.runtime.xla_checks import ChangesMeaningError, accept_all, check_graph

_CONSTANTS_GROWTH = 60  # memory of an export of constant weights over their bytes (50 measured)
# Memory of other exports: of the libraries, and over the bytes of the weights in float32. LiteRT
# and ONNX in float32 of a ViT-S/14 took 0.9e9 and 9.
_LIBRARIES, _EXPORT_GROWTH = 1e9, 10
_PAUSE = 0.1  # seconds: OpenVINO had 0.6 of its speed 20 ms after ONNX Runtime, all of it after 100
_HEADINGS = ("runtime", "precision", "images/s", "top-1", "difference", "MiB", "start s", "")


@dataclasses.dataclass(eq=False)
class Candidate:
    """A model in one format, precision and runtime, as measured on this machine.

    Args:
        format: Format of the file, a name in `FORMATS`.
        precision: Precision of the computation.
        runtime: What runs the file, a name in `RUNTIMES`; empty for the loader of the format.
        float_layers: Parts of the names of layers that an int8 file keeps float.
        problem: Why it was not tried; `None` if it was.
        top1_agreement: Share of the images with the model's top-1 class, in [0, 1]; `None` without
            classes: for features and regression.
        max_difference: Largest difference of an output, relative to the model's largest value.
        size: Bytes of the file.
        startup_seconds: Seconds to load the file and call it once.
        images_per_second: By the fastest call.
        lost: Labelled images whose class the model finds, and the file does not.
        gained: Labelled images whose class the file finds, and the model does not.
        drop: Accuracy of the model minus that of the file, in [-1, 1].
    """

    format: str
    precision: str
    runtime: str = ""
    float_layers: tuple[str, ...] = ()
    problem: str | None = None
    top1_agreement: float | None = None
    max_difference: float = float("nan")
    size: int = 0
    startup_seconds: float = float("nan")
    images_per_second: float = 0.0
    lost: int = 0
    gained: int = 0
    drop: float = float("nan")

    @property
    def label(self) -> str:
        """Runtime, precision, and how many layers are float, in words."""
        name = " in ".join(filter(None, (self.runtime or self.format, self.precision)))
        kept = len(self.float_layers)
        return f"{name}, {kept} layers in float" if kept else name

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


Measure = Callable[[Candidate, Runner], None]


class Search:
    """Candidates of one model, whose files are in one folder, each written once.

    Args:
        model: The model.
        folder: Folder of the files.
        batch: Pixels of shape `(B, H, W, C)` in [0, 255] of one call.
        measure: Notes in a candidate what its runner keeps of the model.
        samples: Images that calibrate int8, as the exports take them.
        progress: Counts the candidates that were tried.
        **options: Arguments of all exports.
    """

    def __init__(
        self,
        model: keras.Model,
        folder: pathlib.Path,
        batch: np.ndarray,
        measure: Measure,
        samples: Sequence[np.ndarray] = (),
        progress: Progress | None = None,
        **options: Any,
    ):
        self.candidates: list[Candidate] = []
        self.runners: dict[Candidate, Runner] = {}
        self._samples = samples
        self._progress = progress or Progress("exports", None, "candidates", verbose=False)
        self._model, self._folder, self._batch, self._measure = model, folder, batch, measure
        # The images decide here, not the tolerance of the format.
        self._options = {**options, "tolerance": float("inf")}
        self._written: dict[str, ExportReport] = {}

    def add(self, candidate: Candidate) -> Candidate:
        """Exports a candidate, loads its file and measures it."""
        self._progress.update(len(self.candidates), candidate.label)
        self.candidates.append(candidate)
        report = self._export(candidate)
        candidate.size, candidate.max_difference = report.size, report.max_difference
        begin = time.perf_counter()
        runner = self._load(candidate)
        runner(self._batch)
        candidate.startup_seconds = time.perf_counter() - begin
        self._measure(candidate, runner)
        self.runners[candidate] = runner
        return candidate

    def add_possible(self, candidates: Iterable[Candidate]) -> None:
        """Adds candidates, and notes why some are not possible here: each runtime has its own."""
        for candidate in candidates:
            try:
                self.add(candidate)
            except Exception as error:
                candidate.problem = next(iter(str(error).strip().splitlines()), repr(error))

    def time(self, candidates: Iterable[Candidate], seconds: float) -> None:
        """Times candidates in turns."""
        runners = {candidate: self.runners[candidate] for candidate in candidates}
        self._progress.update(len(self.candidates), f"timing {len(runners)} in turns")
        time_in_turns(runners, self._batch, seconds)

    def path(self, candidate: Candidate) -> pathlib.Path:
        """Returns the path of a candidate's file."""
        return pathlib.Path(self._export(candidate).path)

    def _export(self, candidate: Candidate) -> ExportReport:
        """Exports a candidate's file if no other candidate has it."""
        format = FORMATS[candidate.format]
        changes: dict[str, Any] = {"precision": candidate.precision}
        if candidate.runtime:
            changes |= format.runtimes[candidate.runtime].options
        is_calibrated = changes["precision"] in format.calibrated
        if is_calibrated:
            changes["float_layers"] = candidate.float_layers
        key = f"{format.name} {sorted(changes.items())}"
        if key in self._written:
            return self._written[key]
        if "constant_weights" in changes:
            self._check_memory()
        if is_calibrated:
            changes["calibration"] = self._samples
        if format.name == "litert":
            changes["batch_size"] = 1 if is_calibrated else len(self._batch)
        path = self._folder / str(len(self._written)) / format.file
        self._written[key] = format.export(self._model, path, **self._options, **changes)
        return self._written[key]

    def _load(self, candidate: Candidate) -> Runner:
        """Loads a candidate's file in its runtime."""
        path = self.path(candidate)
        if candidate.runtime == "openvino":
            hint = "bfloat16" if candidate.precision == "bfloat16" else "float32"
            return load_openvino(path, hint)  # int8 is in the file
        if candidate.runtime == "xla":
            self._check_xla()
        if candidate.runtime == "graph":
            return load_saved_model(path, PLAIN_PIXELS)
        return FORMATS[candidate.format].load(path)

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

    def _check_memory(self) -> None:
        """Raises a `ValueError` if constant weights may take most of the memory."""
        needed = _CONSTANTS_GROWTH * 2 * self._model.count_params()  # in half precision
        if needed > memory_bytes() / 2:
            raise ValueError(f"constant weights may take {needed / 1e9:.0f} GB of memory")


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


def describe_search(model: keras.Model, candidates: Sequence[Candidate], what: str) -> str:
    """The plan of a search, which says how many candidates it tries, and what it does with each."""
    labels = ", ".join(candidate.label for candidate in candidates)
    each = f"{len(candidates)} candidates ({labels}), each {what}"
    return f"{describe_plan(model, each)}; the time left is known after the first"


def time_in_turns(
    candidates: Mapping[Candidate, Runner], batch: np.ndarray, seconds: float
) -> None:
    """Runs all candidates in turns, and notes the speed of the fastest call of each.

    A turn is a pause and three calls. The threads of ONNX Runtime wait actively after a call, and
    other runtimes are slow meanwhile.

    Args:
        candidates: Functions by candidate, whose `images_per_second` is set.
        batch: Pixels of shape `(B, H, W, C)` in [0, 255] of one call.
        seconds: Time of all turns; each candidate has at least two.
    """
    fastest = dict.fromkeys(candidates, float("inf"))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 2 or time.perf_counter() < end:
        for candidate, runner in candidates.items():
            time.sleep(_PAUSE)
            calls = timeit.repeat(functools.partial(runner, batch), number=1, repeat=3)
            fastest[candidate] = min(fastest[candidate], *calls)
        rounds += 1
    for candidate in candidates:
        candidate.images_per_second = len(batch) / fastest[candidate]


def table(candidates: Sequence[Candidate]) -> str:
    """Describes candidates in a table."""
    return align_columns([_HEADINGS, *(candidate.row() for candidate in candidates)])
