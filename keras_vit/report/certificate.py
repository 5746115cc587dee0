"""The smallest or fastest export that keeps the accuracy on labelled images, with a card."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
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
from keras_vit.errors import ExportMismatchError, printable
from keras_vit.evaluate.predictions import wilson_interval
from keras_vit.export.fastest import Candidate, time_in_turns
from keras_vit.export.inference import EXPORTED, Inference, prepare
from keras_vit.export.litert import export_litert, layers_of_part_blocks, litert_errors
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.runners import LOADERS, Runner
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.serving import library_versions
from keras_vit.export.verify import ExportReport
from keras_vit.files import write_atomically

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet

_EXPORTS: dict[str, tuple[Callable[..., ExportReport], str, tuple[str, ...]]] = {
    "litert": (export_litert, "model.tflite", ("float32", "float16", "dynamic", "int4", "int8")),
    "onnx": (export_onnx, "model.onnx", ("float32", "float16", "int8")),
    "openvino": (export_openvino, "model.xml", ("float32", "float16", "int8")),
    "saved_model": (export_saved_model, "model", ("float32", "bfloat16", "float16")),
}
_CALIBRATED = ("litert", "openvino")  # in int8; int8 of ONNX takes its ranges at run time
_GOALS = ("size", "latency")
_CALIBRATION = 100  # images for int8
_BATCH = 32
_KEPT_BYTES = 2**28
_Z = 1.959964  # of 95 % of a normal distribution


@dataclasses.dataclass(eq=False)
class Attempt(Candidate):
    """One precision of the file, as measured on the labelled images.

    Args:
        float_layers: Layers of an int8 file that stay float.
        right: Images whose class it finds.
        lost: Images whose class the model finds, and the file does not.
        gained: Images whose class the file finds, and the model does not.
        drop: Accuracy of the model minus that of the file, in [-1, 1].
    """

    float_layers: tuple[str, ...] = ()
    right: int = 0
    lost: int = 0
    gained: int = 0
    drop: float = float("nan")


class _Answers(NamedTuple):
    labels: np.ndarray  # (B,)
    classes: np.ndarray  # (B,), the most probable
    probabilities: np.ndarray  # (B,), of the true class

    @property
    def is_right(self) -> np.ndarray:
        return self.classes == self.labels


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """An exported file, and what it was shown to keep. Printed, it is a short report.

    Args:
        path: The file, or the directory of a SavedModel.
        card: The content of `card.json` beside it, as plain values.
        attempts: All precisions that were tried.
    """

    path: pathlib.Path
    card: dict[str, Any]
    attempts: tuple[Attempt, ...]

    def __str__(self) -> str:
        card = self.card
        before, after, worst = card["before"], card["after"], card["worst_image"]
        kept = card["float_layers"]
        rows = [
            ("file", f"{self.path}, {card['bytes'] / 2**20:.1f} MiB"),
            ("precision", card["precision"] + (f", in float: {', '.join(kept)}" if kept else "")),
            ("accuracy before", _with_interval(before["accuracy"], before["interval"])),
            ("accuracy after", _with_interval(after["accuracy"], after["interval"])),
            ("drop", _with_interval(card["drop"], card["drop_interval"])),
            ("images", f"{card['images']} measured{_held_out(card['calibration_images'])}"),
            ("budget", f"{card['budget']:.2%}, one image is {1 / card['images']:.2%}"),
            ("one image", f"{card['latency_ms']:.2f} ms, before {card['float32_ms']:.2f} ms"),
            (
                "worst image",
                f"{worst['file']}: {worst['true']}, {worst['before']:.1%} before, "
                f"{worst['after']:.1%} after",
            ),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {printable(value)}" for name, value in rows)


def _held_out(count: int) -> str:
    return f", {count} others for the calibration of int8" if count else ""


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
) -> Certificate:
    """Exports the smallest or fastest file whose top-1 accuracy falls by no more than a budget.

    Tries all precisions of a format on labelled images, int4 where `ai-edge-quantizer` is
    installed. For LiteRT, where int8 exceeds the budget, the layers with the largest quantisation
    errors stay float, as few as are needed. The card tells accuracy before and after with 95 %
    intervals (Wilson's; of the drop, Agresti and Min's for matched pairs,
    https://doi.org/10.1002/sim.1781), the image whose class lost most, bytes, latency, and what
    stayed float.

    Args:
        model: A functional classifier.
        images: Images of the task with one class each, that the model was not trained on.
        output: Directory to write: the file and `card.json`. It must not exist.
        budget: Largest drop of the accuracy, in [0, 1): 0.005 is half a per cent of all images.
        to: `"litert"`, `"onnx"`, `"openvino"` or `"saved_model"`.
        goal: `"size"` takes the file with the fewest bytes, `"latency"` the one that answers one
            image soonest on this machine, timed in turns.
        calibration: Images for int8, of which 100 are used, spread evenly over all; `None` holds
            out 100 of `images`, or a fifth of fewer, which are not measured then; not for the
            formats `"onnx"` and `"saved_model"`, which need none.
        labels: Class names in order; `None` takes those of `images`.
        preprocessing: Preprocessing of the images; `None` takes the model's own.

    Returns:
        A `Certificate`.

    Raises:
        FileExistsError: If `output` exists.
        ValueError: If an argument is wrong, the images have another number of classes than the
            model or several each, or the model cannot be exported.
        ExportMismatchError: If no precision keeps the budget, not even float32.

    Example:

    >>> held_out = keras_vit.data.read_folder("photos/test")  # doctest: +SKIP
    >>> print(export_within_budget(model, held_out, "shipped", budget=0.01))  # doctest: +SKIP
    """
    check_choice("to", to, tuple(_EXPORTS))
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
    if calibration is None and to in _CALIBRATED:
        images, calibration = images.split(min(_CALIBRATION, max(1, images.num_images // 5)))
    batches = _Batches(images, inference)
    before = _answers(inference.run, batches, inference)
    with tempfile.TemporaryDirectory() as folder:
        search = _Search(model, inference, images, batches, before, to, calibration, labels, folder)
        for precision in _EXPORTS[to][2]:
            if precision == "int4" and (
                importlib.util.find_spec("ai_edge_quantizer") is None
                or layers_of_part_blocks(model)
            ):
                continue
            search.attempt(precision)
        if to == "litert" and search.asks_for_float_layers(budget, goal):
            search.keep_worst_layers_float(budget)
        chosen = search.choose(budget, goal)
        card = _card(search, chosen, budget, goal)
        source = search.paths[chosen]
        inference.check_unchanged()
        with write_atomically(output) as unfinished:
            unfinished.mkdir()
            for file in source.parent.glob("*"):
                if file.is_dir():
                    shutil.copytree(file, unfinished / file.name)
                else:
                    shutil.copy2(file, unfinished)
            (unfinished / "card.json").write_text(json.dumps(card, indent=1), "utf-8")
    return Certificate(output / source.name, card, tuple(search.attempts))


def _check_task(images: ImageSet, inference: Inference) -> None:
    if images.task != "single_label" or images.num_classes != inference.classes:
        raise ValueError(
            "A budget is about top-1 accuracy, and needs images with one class each, of the "
            f"{inference.classes} classes of the model. Received: {images.name} with task="
            f"{images.task!r} and {images.num_classes} classes."
        )


class _Search:
    """Exports of a model in a temporary folder, each measured on the labelled images."""

    def __init__(
        self,
        model: keras.Model,
        inference: Inference,
        images: ImageSet,
        batches: _Batches,
        before: _Answers,
        to: str,
        calibration: ImageSet | None,
        labels: Sequence[str] | None,
        folder: str,
    ):
        self.inference, self.images, self.before, self.to = inference, images, before, to
        self._batches = batches
        self.attempts: list[Attempt] = []
        self.paths: dict[Attempt, pathlib.Path] = {}
        self.answers: dict[Attempt, _Answers] = {}
        self._runners: dict[Attempt, Runner] = {}
        self._model, self._folder = model, pathlib.Path(folder)
        self._options = {
            "labels": list(images.class_names if labels is None else labels),
            "preprocessing": inference.preprocessing,
            "tolerance": float("inf"),  # the labelled images decide
        }
        self.samples = (
            list(_decoded(calibration, inference))
            if calibration is not None and to in _CALIBRATED
            else []
        )

    def attempt(self, precision: str, float_layers: Sequence[str] = ()) -> Attempt:
        """Exports one precision and measures it."""
        export, name, _ = _EXPORTS[self.to]
        path = self._folder / str(len(self.attempts)) / name
        options = {**self._options, "precision": precision}
        if precision == "int8" and self.to in _CALIBRATED:
            options |= {"calibration": self.samples, "float_layers": float_layers}
        report = export(self._model, path, **options)
        path = pathlib.Path(report.path)
        runner = LOADERS[self.to](path)
        answers = _answers(runner, self._batches, self.inference)
        was_right, is_right = self.before.is_right, answers.is_right
        lost, gained = int((was_right & ~is_right).sum()), int((is_right & ~was_right).sum())
        attempt = Attempt(
            self.to,
            precision,
            max_difference=report.max_difference,
            size=report.size,
            float_layers=tuple(float_layers),
            right=int(is_right.sum()),
            lost=lost,
            gained=gained,
            drop=(lost - gained) / len(is_right),
        )
        self.attempts.append(attempt)
        self.paths[attempt], self.answers[attempt], self._runners[attempt] = path, answers, runner
        return attempt

    def asks_for_float_layers(self, budget: float, goal: str) -> bool:
        """Whether int8, the last attempt, exceeds the budget, and nothing smaller keeps it."""
        last = self.attempts[-1]
        smaller = (each for each in self.attempts if each.size < last.size)
        is_needless = goal == "size" and any(each.drop <= budget for each in smaller)
        return last.drop > budget and not is_needless

    def keep_worst_layers_float(self, budget: float) -> None:
        """Finds how many of the layers with the largest errors int8 has to leave in float."""
        errors = litert_errors(
            self._model, self.samples, preprocessing=self.inference.preprocessing
        )
        names = [part_of_name(row.tensor) for row in errors]
        low, high = 0, 1
        while high < len(names) and self.attempt("int8", names[:high]).drop > budget:
            low, high = high, 2 * high
        if high >= len(names):
            return  # that is float32
        while high - low > 1:
            middle = (low + high) // 2
            if self.attempt("int8", names[:middle]).drop > budget:
                low = middle
            else:
                high = middle

    def choose(self, budget: float, goal: str) -> Attempt:
        """Returns the best attempt within the budget, after all of those were timed in turns."""
        allowed = [attempt for attempt in self.attempts if attempt.drop <= budget]
        if not allowed:
            tried = ", ".join(f"{each.precision}: {each.drop:.2%}" for each in self.attempts)
            raise ExportMismatchError(
                f"No precision keeps a budget of {budget:.2%}. Drops: {tried}. Not even float32 "
                "does, so the file differs from the model: export it in float32 with these images.",
                self.attempts,
            )
        timed = [self.attempts[0], *(each for each in allowed if each is not self.attempts[0])]
        pixels = next(iter(self._batches))[0][:1]
        time_in_turns({attempt: self._runners[attempt] for attempt in timed}, pixels, seconds=2.0)
        if goal == "latency":
            return max(allowed, key=lambda attempt: attempt.images_per_second)
        return min(allowed, key=lambda attempt: attempt.size)


def _card(search: _Search, chosen: Attempt, budget: float, goal: str) -> dict[str, Any]:
    """What the file keeps, as plain values for JSON."""
    before, after, images = search.before, search.answers[chosen], search.images
    count = len(before.labels)
    fall = before.probabilities - after.probabilities
    # An image whose class was lost is worse than any that is still right.
    worst = int(np.argmax(fall + 2 * (before.is_right & ~after.is_right)))
    right = int(before.is_right.sum())
    return {
        "model": search.inference.source.name,
        "data": images.name,
        "images": count,
        "calibration_images": len(search.samples),
        "budget": budget,
        "goal": goal,
        "format": search.to,
        "precision": chosen.precision,
        "float_layers": list(chosen.float_layers),
        "bytes": chosen.size,
        "float32_bytes": search.attempts[0].size,
        "latency_ms": 1e3 / chosen.images_per_second,
        "float32_ms": 1e3 / search.attempts[0].images_per_second,
        "before": {"accuracy": right / count, "interval": wilson_interval(right, count)},
        "after": {
            "accuracy": chosen.right / count,
            "interval": wilson_interval(chosen.right, count),
        },
        "drop": chosen.drop,
        "drop_interval": drop_interval(chosen.lost, chosen.gained, count),
        "lost": chosen.lost,
        "gained": chosen.gained,
        "worst_image": {
            "file": images.file_names()[worst],
            "true": images.class_names[before.labels[worst]],
            "predicted": images.class_names[after.classes[worst]],
            "before": float(before.probabilities[worst]),
            "after": float(after.probabilities[worst]),
        },
        "attempts": [
            {
                "precision": attempt.precision,
                "float_layers": list(attempt.float_layers),
                "bytes": attempt.size,
                "drop": attempt.drop,
            }
            for attempt in search.attempts
        ],
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "versions": library_versions(),
    }


def part_of_name(tensor: str) -> str:
    """The part of a tensor's name that the next export has too: models are numbered in a process.

    Args:
        tensor: Such as `exported_1/block_0_1/mlp_1/hidden_1/MatMul;...`.
    """
    first = tensor.partition(";")[0]
    return first[first.find("/") :] if first.startswith(EXPORTED) else first


def drop_interval(lost: int, gained: int, total: int) -> tuple[float, float]:
    """95 % interval of the difference of two accuracies on the same images.

    Agresti and Min (https://doi.org/10.1002/sim.1781): half an image is added to each of the four
    cells, so that it is not empty where the two agree on all images.

    Args:
        lost: Images that only the first has right.
        gained: Images that only the second has right.
        total: Number of images, at least 1.
    """
    size, b, c = total + 2, lost + 0.5, gained + 0.5
    middle = (b - c) / size
    half = _Z * math.sqrt(b + c - (b - c) ** 2 / size) / size
    return max(-1.0, middle - half), min(1.0, middle + half)


def _answers(run: Runner, batches: _Batches, inference: Inference) -> _Answers:
    """The most probable class of every image, and the probability of its own."""
    own = [name for name, same in inference.names.items() if same == "logits"]
    parts = []
    for pixels, labels in batches:
        outputs = run(pixels)
        logits = outputs["logits" if "logits" in outputs else own[0]].astype("float64")
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        parts.append((labels, logits.argmax(-1), shares[np.arange(len(labels)), labels]))
    return _Answers(*(np.concatenate(part) for part in zip(*parts, strict=True)))


class _Batches:
    """Pixels in [0, 255] of the model's size, preprocessed as in evaluation, and labels.

    They are kept where that takes little memory, as each file is measured on all of them.
    """

    def __init__(self, images: ImageSet, inference: Inference):
        self._images, self._inference = images, inference
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self._kept:
            yield from self._kept
            return
        from keras_vit.data.batches import eval_batches
        from keras_vit.data.input_transform import InputTransform

        height, width, channels = self._inference.input_shape
        transform = InputTransform((height, width), self._inference.preprocessing, False, channels)
        count = self._images.num_images
        is_small = 4 * count * height * width * channels <= _KEPT_BYTES
        found = []
        for pixels, labels in eval_batches(
            self._images, transform, min(_BATCH, count), one_hot=False
        ):
            batch = np.asarray(pixels), np.asarray(labels)
            if is_small:
                found.append(batch)
            yield batch
        self._kept = found


def _decoded(images: ImageSet, inference: Inference) -> Iterator[np.ndarray]:
    """At most 100 images in their own sizes, of all classes: folders are sorted by class."""
    from keras_vit.data.decode import decode

    turn = inference.preprocessing.exif_orientation
    for item, _ in images.spread(_CALIBRATION):
        yield decode(
            images.load(item), inference.input_shape[-1], images.max_pixels, exif_orientation=turn
        ).numpy()
