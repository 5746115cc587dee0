"""The smallest or fastest export within a budget of accuracy, measured on labelled images."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.checks import check_choice
from keras_vit.config import Preprocessing
from keras_vit.data.batches import eval_batches
from keras_vit.data.decode import decode
from keras_vit.data.input_transform import InputTransform
from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import Inference, prepare
from keras_vit.export.litert import layers_of_part_blocks, litert_errors
from keras_vit.export.litert_int8 import part_of_name, worst_first
from keras_vit.export.lossy_layers import name_lossy_layers
from keras_vit.export.runners import Runner
from keras_vit.export.search import Candidate, Search, describe_search
from keras_vit.export.serving import library_versions
from keras_vit.files import write_atomically
from keras_vit.intervals import drop_interval, wilson_interval
from keras_vit.progress import Progress, align_columns

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet

_GOALS = ("size", "latency")
_CALIBRATION = 100  # images for int8
_BATCH = 32
_KEPT_BYTES = 2**28
_SECONDS = 2.0  # of all calls that are timed


class _Answers(NamedTuple):
    labels: np.ndarray  # (B,)
    classes: np.ndarray  # (B,), the most probable
    probabilities: np.ndarray  # (B,), of the true class

    @property
    def is_right(self) -> np.ndarray:
        return self.classes == self.labels

    def accuracy(self) -> dict[str, Any]:
        """The accuracy with its 95 % interval."""
        right, count = int(self.is_right.sum()), len(self.labels)
        return {"accuracy": right / count, "interval": wilson_interval(right, count)}


@dataclasses.dataclass(frozen=True, eq=False)
class BudgetReport:
    """An exported file, and what it keeps of the accuracy. Printed, it is a short report.

    Args:
        path: The file, or the directory of a SavedModel.
        figures: The content of `budget.json` next to it, as plain values.
        candidates: All precisions that were tried.
    """

    path: pathlib.Path
    figures: dict[str, Any]
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        figures = self.figures
        before, after, worst = figures["before"], figures["after"], figures["worst_image"]
        kept, count = figures["float_layers"], figures["calibration_images"]
        calibrated = f", {count} others for the calibration of int8" if count else ""
        floats = f", in float: {', '.join(kept)}" if kept else ""
        rows = [
            ("file", f"{self.path}, {figures['bytes'] / 2**20:.1f} MiB"),
            ("precision", figures["precision"] + floats),
            ("accuracy before", _with_interval(before["accuracy"], before["interval"])),
            ("accuracy after", _with_interval(after["accuracy"], after["interval"])),
            ("drop", _with_interval(figures["drop"], figures["drop_interval"])),
            ("images", f"{figures['images']} measured{calibrated}"),
            ("budget", f"{figures['budget']:.2%}, one image is {1 / figures['images']:.2%}"),
            ("one image", f"{figures['latency_ms']:.2f} ms, before {figures['float32_ms']:.2f} ms"),
            (
                "worst image",
                f"{worst['file']}: {worst['true']}, {worst['before']:.1%} before, "
                f"{worst['after']:.1%} after",
            ),
        ]
        return align_columns(rows)


def _with_interval(share: float, interval: Sequence[float]) -> str:
    return f"{share:.2%} (95 %: {interval[0]:.2%} to {interval[1]:.2%})"


def export_within_budget(
    model: keras.Model,
    images: ImageSet,
    output: str | os.PathLike[str],
    budget: float = 0.005,
    to: str = "litert",
    goal: str = "size",
    calibration: ImageSet | None = None,
    labels: Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
    verbose: bool | int = True,
) -> BudgetReport:
    """Exports the smallest or fastest file whose top-1 accuracy falls by no more than a budget.

    Tries all precisions of a format on labelled images, int4 where `ai-edge-quantizer` is
    installed. For LiteRT, where int8 exceeds the budget, the layers with the largest quantisation
    errors stay float, as few as are needed. The report has the accuracy before and after with 95 %
    intervals (Wilson's; of the drop, Agresti and Min's for matched pairs,
    https://doi.org/10.1002/sim.1781), the image whose class lost most, bytes, latency, and what
    stayed float.

    Args:
        model: A functional classifier.
        images: Images of the task with one class each, that the model was not trained on.
        output: Directory to write: the file and `budget.json`. It must not exist.
        budget: Largest drop of the accuracy, in [0, 1): 0.005 is half a per cent of all images.
        to: `"litert"`, `"onnx"`, `"openvino"` or `"saved_model"`.
        goal: `"size"` takes the file with the fewest bytes, `"latency"` the one that answers one
            image soonest on this machine, timed in turns.
        calibration: Images for int8, of which 100 are used, spread evenly over all; `None` holds
            out 100 of `images`, or a fifth of fewer, which are not measured then; not for the
            formats `"onnx"` and `"saved_model"`, which need none.
        labels: Class names in order; `None` takes those of `images`.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        verbose: Whether to print, now and then, which of the candidates is tried.

    Returns:
        A `BudgetReport`.

    Raises:
        FileExistsError: If `output` exists.
        ValueError: If an argument is wrong, the images have another number of classes than the
            model or several each, or the model cannot be exported.
        ExportMismatchError: If no precision keeps the budget, not even float32.

    Example:

    >>> held_out = keras_vit.data.read_folder("photos/test")  # doctest: +SKIP
    >>> print(export_within_budget(model, held_out, "shipped", budget=0.01))  # doctest: +SKIP
    """
    check_choice("to", to, tuple(FORMATS))
    check_choice("goal", goal, _GOALS)
    output = pathlib.Path(output).expanduser()
    if output.exists():
        raise FileExistsError(f"{os.fspath(output)!r} already exists. Choose another `output`.")
    if not 0 <= budget < 1:
        raise ValueError(
            f"`budget` is a share of all images, in [0, 1): 0.005 is 0.5 %. Received: {budget}."
        )
    inference = prepare(model, preprocessing=preprocessing)
    _check_task(images, inference)
    samples: list[np.ndarray] = []
    if FORMATS[to].calibrated:
        if calibration is None:
            images, calibration = images.split(min(_CALIBRATION, max(1, images.num_images // 5)))
        samples = list(_decoded(calibration, inference))
    batches = _read_batches(images, inference)
    precisions = [each for each in FORMATS[to].searched if each != "int4" or _has_int4(model)]
    task = f"{to} within a budget of {budget:.2%}"
    found = [Candidate(to, precision) for precision in precisions]
    what = f"exported and measured on {images.num_images:,} images"
    if to == "litert":
        what += ", then int8 with layers in float where it exceeds the budget"
    plan = describe_search(model, found, what)
    progress = Progress(task, len(found), "candidates", verbose, plan=plan)
    answers: dict[Candidate, _Answers] = {}

    def measure(candidate: Candidate, runner: Runner) -> None:
        answers[candidate] = after = _answers(runner, batches, inference)
        candidate.lost = int((before.is_right & ~after.is_right).sum())
        candidate.gained = int((after.is_right & ~before.is_right).sum())
        candidate.drop = (candidate.lost - candidate.gained) / len(after.labels)

    options = {
        "labels": list(images.class_names if labels is None else labels),
        "preprocessing": inference.preprocessing,
    }
    with tempfile.TemporaryDirectory() as folder, progress:
        progress.update(0, "the model itself")
        before = _answers(inference.run, batches, inference)
        pixels = next(batches.as_numpy_iterator())[0]
        search = Search(
            model, pathlib.Path(folder), pixels[:1], measure, samples, progress, **options
        )
        for candidate in found:
            search.add(candidate)
        if to == "litert" and _needs_float_layers(search.candidates, budget, goal):
            progress.total = None  # as many as the search of layers needs
            progress.update(progress.done, "errors of all layers")
            errors = litert_errors(model, samples, preprocessing=inference.preprocessing)
            names = [part_of_name(row.tensor) for row in worst_first(errors)]
            _search_fewest(
                lambda count: (
                    search.add(Candidate(to, "int8", float_layers=tuple(names[:count]))).drop
                    <= budget
                ),
                len(names),
            )
        if not any(candidate.drop <= budget for candidate in search.candidates):
            raise _nothing_found(search.candidates, budget, inference, pixels)
        chosen = _choose(search, budget, goal)
        figures = {
            "model": model.name,
            "data": images.name,
            "calibration_images": len(samples),
            "budget": budget,
            "goal": goal,
            **_figures(search.candidates, chosen),
            **_compare(before, answers[chosen], images),
        }
        source = search.path(chosen)
        inference.check_unchanged()
        with write_atomically(output) as unfinished:
            shutil.copytree(source.parent, unfinished)
            (unfinished / "budget.json").write_text(json.dumps(figures, indent=1), "utf-8")
    return BudgetReport(output / source.name, figures, tuple(search.candidates))


def _check_task(images: ImageSet, inference: Inference) -> None:
    if inference.classes is None:
        raise ValueError(
            f"A budget is about top-1 accuracy. Received: {inference.source.name!r} with outputs "
            f"{', '.join(inference.model.output)}, and no classes. Export it in the precision that "
            "you want; the report has the largest difference."
        )
    if images.task != "single_label" or images.num_classes != inference.classes:
        raise ValueError(
            "A budget is about top-1 accuracy, and needs images with one class each, of the "
            f"{inference.classes} classes of the model. Received: {images.name} with task="
            f"{images.task!r} and {images.num_classes} classes."
        )


def _has_int4(model: keras.Model) -> bool:
    """Whether LiteRT can store the model's weights in 4 bits here."""
    is_installed = importlib.util.find_spec("ai_edge_quantizer") is not None
    return is_installed and not layers_of_part_blocks(model)


def _needs_float_layers(candidates: Sequence[Candidate], budget: float, goal: str) -> bool:
    """Whether int8, the last candidate, exceeds the budget, and nothing smaller keeps it."""
    last = candidates[-1]
    smaller = (each for each in candidates if each.size < last.size)
    is_needless = goal == "size" and any(each.drop <= budget for each in smaller)
    return last.drop > budget and not is_needless


def _search_fewest(is_enough: Callable[[int], bool], total: int) -> None:
    """Tries numbers of layers below `total`, up to the smallest that is enough."""
    low, high = 0, 1
    while high < total and not is_enough(high):
        low, high = high, 2 * high
    if high >= total:
        return  # that is float32
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)


def _nothing_found(
    candidates: Sequence[Candidate], budget: float, inference: Inference, pixels: np.ndarray
) -> ExportMismatchError:
    tried = ", ".join(f"{each.precision}: {each.drop:.2%}" for each in candidates)
    last = candidates[-1]
    lossy = name_lossy_layers(inference, last.format, last.precision, pixels, last.float_layers)
    return ExportMismatchError(
        f"No precision keeps a budget of {budget:.2%}. Drops: {tried}. {lossy}Not even float32 "
        "does, so the file differs from the model: export it in float32 with these images.",
        candidates,
    )


def _choose(search: Search, budget: float, goal: str) -> Candidate:
    """Returns the best candidate within the budget, after all of those were timed in turns."""
    allowed = [candidate for candidate in search.candidates if candidate.drop <= budget]
    search.time(dict.fromkeys([search.candidates[0], *allowed]), _SECONDS)
    if goal == "latency":
        return max(allowed, key=lambda candidate: candidate.images_per_second)
    return min(allowed, key=lambda candidate: candidate.size)


def _figures(candidates: Sequence[Candidate], chosen: Candidate) -> dict[str, Any]:
    """All candidates and the choice, as plain values for JSON."""
    rows = [
        {
            "precision": each.precision,
            "float_layers": list(each.float_layers),
            "bytes": each.size,
            "drop": each.drop,
        }
        for each in candidates
    ]
    return {
        "format": chosen.format,
        **rows[candidates.index(chosen)],
        "float32_bytes": candidates[0].size,
        "latency_ms": 1e3 / chosen.images_per_second,
        "float32_ms": 1e3 / candidates[0].images_per_second,
        "lost": chosen.lost,
        "gained": chosen.gained,
        "candidates": rows,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "versions": library_versions(),
    }


def _compare(before: _Answers, after: _Answers, images: ImageSet) -> dict[str, Any]:
    """Accuracy before and after with intervals, and the worst image, as plain values for JSON."""
    count = len(before.labels)
    fall = before.probabilities - after.probabilities
    is_lost, is_gained = before.is_right & ~after.is_right, after.is_right & ~before.is_right
    # An image whose class was lost is worse than any that is still right.
    worst = int(np.argmax(fall + 2 * is_lost))
    return {
        "images": count,
        "before": before.accuracy(),
        "after": after.accuracy(),
        "drop_interval": drop_interval(int(is_lost.sum()), int(is_gained.sum()), count),
        "worst_image": {
            "file": images.file_names()[worst],
            "true": images.class_names[before.labels[worst]],
            "predicted": images.class_names[after.classes[worst]],
            "before": float(before.probabilities[worst]),
            "after": float(after.probabilities[worst]),
        },
    }


def _answers(run: Runner, batches: Any, inference: Inference) -> _Answers:
    """The most probable class of every image, and the probability of its own."""
    names = [name for name, same in inference.names.items() if same == "logits"]
    parts = []
    with Progress("answers", None, "images") as progress:
        for pixels, labels in batches.as_numpy_iterator():
            outputs = run(pixels)
            logits = outputs["logits" if "logits" in outputs else names[0]].astype("float64")
            shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            parts.append((labels, logits.argmax(-1), shares[np.arange(len(labels)), labels]))
            progress.update(progress.done + len(labels))
    return _Answers(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _read_batches(images: ImageSet, inference: Inference) -> Any:
    """Pixels in [0, 255] of the model's size, preprocessed as in evaluation, and labels.

    They are kept where that takes little memory, as each file is measured on all of them.
    """
    height, width, channels = inference.input_shape
    transform = InputTransform((height, width), inference.preprocessing, False, channels)
    is_small = 4 * images.num_images * height * width * channels <= _KEPT_BYTES
    batch_size = min(_BATCH, images.num_images)
    return eval_batches(images, transform, batch_size, one_hot=False, cache=is_small)


def _decoded(images: ImageSet, inference: Inference) -> Iterator[np.ndarray]:
    """At most 100 images in their own sizes, of all classes: folders are sorted by class."""
    turn = inference.preprocessing.exif_orientation
    for item, _ in images.spread(_CALIBRATION):
        yield decode(
            images.load(item), inference.input_shape[-1], images.max_pixels, exif_orientation=turn
        ).numpy()
