"""The fastest runtime for a model on this machine, by exporting to all of them and timing them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.checks import check_positive
from keras_vit.config import Preprocessing
from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import PRECISIONS, RUNTIMES, list_runs
from keras_vit.export.inference import check_model, prepare
from keras_vit.export.lossy_layers import name_lossy_layers
from keras_vit.export.runners import Runner
from keras_vit.export.search import Candidate, Search, describe_search, table
from keras_vit.export.verify import Images, compare, expected_outputs, verification_images
from keras_vit.files import write_atomically
from keras_vit.progress import Progress


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
        return f"{table(self.candidates)}\n\nThe fastest is {chosen}, with the file {self.path}"


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
    verbose: bool | int = True,
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
        verbose: Whether to print, now and then, which of the candidates is tried.

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
    candidates = [Candidate(*run) for run in list_runs() if run[1] in precisions]
    candidates = [candidate for candidate in candidates if candidate.runtime in runtimes]
    if not candidates:
        pairs = ", ".join(f"{runtime} in {precision}" for _, precision, runtime in list_runs())
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

    def measure(candidate: Candidate, runner: Runner) -> None:
        kind = (search.path(candidate), candidate.runtime, candidate.precision)
        report = compare(*kind, runner, expected, pixels, batch_size, inference.smallest_scale)
        candidate.top1_agreement = report.top1_agreement
        candidate.max_difference = report.max_difference

    options = {"images": pixels, "preprocessing": preprocessing, "activation": activation}
    for candidate in candidates:
        if candidate.precision == "int8" and images is None:
            candidate.problem = "int8 is calibrated with `images`"
    possible = [candidate for candidate in candidates if candidate.problem is None]
    what = f"exported if installed, compared on {len(pixels)} images, and timed in turns at the end"
    plan = describe_search(model, possible, what)
    progress = Progress("fastest runtime", len(possible), "candidates", verbose, plan=plan)
    search = Search(model, folder, pixels[:batch_size], measure, list(pixels), progress, **options)
    try:
        with progress:
            search.add_possible(possible)
            search.time(search.runners, seconds)
        allowed = [candidate for candidate in search.runners if _agrees(candidate, min_agreement)]
        if not allowed:
            rounded = [each.format for each in search.runners if each.precision == "int8"]
            lossy = [name_lossy_layers(inference, each, "int8", pixels) for each in rounded[-1:]]
            raise ExportMismatchError(
                f"No runtime reaches min_agreement={min_agreement}. {''.join(lossy)}Tried:\n"
                f"{table(candidates)}",
                candidates,
            )
        chosen = max(allowed, key=lambda candidate: candidate.images_per_second)
        path = search.path(chosen)
        if output is not None:
            path = _keep(path, pathlib.Path(output).expanduser())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return OptimizedModel(search.runners[chosen], chosen, candidates, path, folder)


def _check_names(argument: str, names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if isinstance(names, str) or unknown or not names:
        raise ValueError(
            f"`{argument}` must be some of {', '.join(map(repr, known))}. Received: {names!r}."
        )


def _agrees(candidate: Candidate, min_agreement: float) -> bool:
    """Whether a candidate is close enough to the model: by top-1 class, or without one by value."""
    if candidate.top1_agreement is None:
        return candidate.max_difference <= 1 - min_agreement
    return candidate.top1_agreement >= min_agreement


def _keep(path: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Copies a file, with the file of its weights, or a directory, into a new directory."""
    with write_atomically(output) as unfinished:
        shutil.copytree(path if path.is_dir() else path.parent, unfinished)
    return output if path.is_dir() else output / path.name
