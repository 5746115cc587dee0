"""Comparison of exported files with their models: difference, top-1 agreement, latency."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform, normalize
from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import FORMATS, find_format, newest_version
from keras_vit.export.inference import Inference, prepare
from keras_vit.export.lossy_layers import name_lossy_layers
from keras_vit.export.runners import Runner
from keras_vit.models.quantized import quantized_layers
from keras_vit.progress import Progress

# Top-1 agreement on images of the task, below which a file is an error, and a warning.
REFUSED, WARNED = 0.7, 0.95

_ROUNDING = 0.01  # of resized pixels, which can be 255.00002
_SYNTHETIC = 8  # images where none are passed
_CHECKED = 32  # images of the calibration that a check takes where no others are passed

# One array of pixels of the model's size, or a list of images of any size.
Images = np.ndarray | Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """Result of comparing an exported file with its model.

    Args:
        path: The file or directory; a string if it is a remote address.
        format: A key of `FORMATS`, such as `"onnx"`.
        precision: Precision of the file.
        size: Bytes on disk.
        images: Number of images on which both ran.
        max_difference: Largest absolute difference of any output, divided by the largest absolute
            value of that output in the model (at least 1, except for regression).
        top1_agreement: Share of images for which both have the same top-1 class, in [0, 1]; `None`
            without classes: for features, maps and regression.
        latency_ms: Median latency of the file for one image, in milliseconds.
        processor_ms: Median processor time of all threads for one image, in milliseconds. Other
            work on the machine affects it less.
    """

    path: pathlib.Path | str
    format: str
    precision: str
    size: int
    images: int
    max_difference: float
    top1_agreement: float | None
    latency_ms: float
    processor_ms: float

    def __str__(self) -> str:
        agreement = "" if self.top1_agreement is None else f"top-1 {self.top1_agreement:.2%}, "
        kind = self.format if self.precision == "unknown" else f"{self.format} {self.precision}"
        return (
            f"{self.path} ({kind}): {self.size / 2**20:.1f} MiB, "
            f"difference {self.max_difference:.1e}, {agreement}{self.latency_ms:.1f} ms per image "
            f"({self.images} images)" + FORMATS[self.format].note
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values for JSON."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def verify_export(
    path: str | os.PathLike[str],
    model: keras.Model,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    tolerance: float | None = None,
    activation: str | None = None,
    verbose: bool | int = True,
) -> ExportReport:
    """Runs an exported file and its model on the same images, and reports their differences.

    Args:
        path: A SavedModel version or the directory of its versions, of which the newest is taken;
            a LiteRT file; an ONNX file; or the .xml file of OpenVINO.
        model: The model to compare with; one that Keras quantised computes as it is.
        images: Pixels of shape `(B, H, W, C)` in [0, 255], or a list of images of any size;
            `None` takes synthetic images.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        tolerance: Largest difference allowed, relative to the largest logit; `None` only reports.
        activation: As for the export.
        verbose: Whether to print, now and then, which step runs and how long it has taken.

    Returns:
        An `ExportReport` with the precision `"unknown"`.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If `path` has another format.
        ExportMismatchError: If the difference exceeds `tolerance`.

    Example:

    >>> print(keras_vit.verify_export("model.onnx", model))
    """
    path = newest_version(path)
    format = find_format(path)
    takes_any = format == "saved_model"
    inference = prepare(
        model, "float32", preprocessing, activation, any_size=takes_any, any_aspect=True
    )
    of_task = images is not None
    images = verification_images(images, inference)
    with Progress(f"verification of {path}", 4, "steps", verbose) as progress:
        progress.step("loading the file")
        runner = of_images(FORMATS[format].load(path), inference)
        progress.step("running the model")
        if quantized_layers(model):
            expected = _quantized_outputs(inference, images)
        else:
            expected = expected_outputs(inference, images)
        inference.check_unchanged()
        is_activated = "probabilities" in expected and "logits" not in expected
        run = _with_probabilities(runner, inference) if is_activated else runner
        progress.step("running the file")
        report = compare(
            path, format, "unknown", run, expected, images, smallest_scale=inference.smallest_scale
        )
        progress.step("running both at other sizes")
        report = compare_sizes(report, runner, inference)
    return check(report, of_task, tolerance)


def of_images(runner: Runner, inference: Inference) -> Runner:
    """Makes a runner take what a check has: pixels, or images of any aspect ratio."""
    if not inference.takes_patches or hasattr(runner, "loaded"):  # a SavedModel fits patches itself
        return runner
    return lambda images: runner({k: x.numpy() for k, x in inference.batch(images).items()})


def compare(
    path: str | os.PathLike[str],
    format: str,
    precision: str,
    runner: Runner,
    expected: dict[str, np.ndarray],
    images: np.ndarray,
    batch_size: int = 8,
    smallest_scale: float = 1.0,
) -> ExportReport:
    """Runs an exported file on images and compares its outputs with the model's.

    Args:
        path: The file or directory.
        format: Name of the format.
        precision: Precision of the file.
        runner: Function that runs the file.
        expected: The model's outputs by name.
        images: Pixels of shape `(B, H, W, C)` in [0, 255].
        batch_size: Images per call of the runner.
        smallest_scale: Smallest value that differences are divided by: see `Inference`.

    Returns:
        An `ExportReport`.

    Raises:
        ValueError: If the file has no output of the model, by name.
    """
    if isinstance(images, list):  # of any aspect ratio
        batch_size = 1
    parts = []
    with Progress("answers of the file", len(images), "images") as progress:
        for start in range(0, len(images), batch_size):
            parts.append(runner(images[start : start + batch_size]))
            progress.update(min(start + batch_size, len(images)))
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    latency_ms, processor_ms = measure_latency(runner, images[:1])
    if not outputs.keys() & expected:
        raise ValueError(
            "The file must have an output of the model. Expected one of: "
            f"{', '.join(expected)}. Received: {path} with {', '.join(outputs)}."
        )
    return ExportReport(
        path=pathlib.Path(path),
        format=format,
        precision=precision,
        size=size_of(path),
        images=len(images),
        max_difference=largest_difference(outputs, expected, smallest_scale),
        top1_agreement=_agreement(outputs, expected),
        latency_ms=latency_ms,
        processor_ms=processor_ms,
    )


def check_file(
    path: pathlib.Path,
    format: str,
    precision: str,
    inference: Inference,
    images: np.ndarray,
    of_task: bool,
    tolerance: float | None,
    batch_size: int = 8,
    float_layers: Sequence[str] = (),
) -> ExportReport:
    """Compares a new file with its model, and checks the differences: `compare`, then `check`."""
    runner = of_images(FORMATS[format].load(path), inference)
    expected, scale = expected_outputs(inference, images), inference.smallest_scale
    report = compare(path, format, precision, runner, expected, images, batch_size, scale)
    inference.check_unchanged()
    name_layers = functools.partial(
        name_lossy_layers, inference, format, precision, images, float_layers
    )
    return check(report, of_task, tolerance, name_layers=name_layers)


def calibration_pixels(
    inference: Inference, precision: str, calibration: Images | None, float_layers: Sequence[str]
) -> np.ndarray | None:
    """The calibration images in the model's size; `None` for other precisions than int8."""
    if precision != "int8":
        if float_layers:
            raise ValueError(
                '`float_layers` needs precision="int8": other precisions quantise no activations. '
                f"Received: precision={precision!r}, float_layers={list(float_layers)}."
            )
        return None
    if calibration is None or not len(calibration):
        raise ValueError(
            'precision="int8" needs `calibration`: about a hundred images of the task, each of '
            f"shape (h, w, C), in [0, 255]. Received: {calibration!r}."
        )
    return resize_images(calibration, inference)


def compare_sizes(report: ExportReport, runner: Runner, inference: Inference) -> ExportReport:
    """Includes images of other sizes in a report, of a SavedModel that takes them.

    Two images that are larger than the model's are resized by the signature `images`, and by
    `eval_transform`. A model of any size takes pixels of two other sizes.

    Args:
        report: The comparison of pixels of the model's size.
        runner: Function that runs the file.
        inference: The model.

    Returns:
        The report with the largest difference; as it is where the file takes no other sizes.
    """
    height, width, channels = inference.input_shape
    pairs = []
    signatures = getattr(getattr(runner, "loaded", None), "signatures", {})
    if "images" in signatures and not inference.takes_patches:  # whose check resizes
        shape = (height * 3 // 2 + 1, width * 4 // 3 + 1, channels)
        images = synthetic_images(shape, count=2).astype("uint8")
        outputs = signatures["images"](images=tf.constant(images))
        outputs = {name: value.numpy() for name, value in outputs.items()}
        pairs.append((outputs, inference.run(resize_images(list(images), inference))))
    if inference.any_size:
        for size in ((height * 3 // 2, width), (height, width // 2 + 1)):  # the second is padded
            pixels = synthetic_images((*size, channels), count=2)
            pairs.append((runner(pixels), expected_outputs(inference, pixels)))
    worst = [largest_difference(*pair, inference.smallest_scale) for pair in pairs]
    return dataclasses.replace(report, max_difference=max([report.max_difference, *worst]))


def check(
    report: ExportReport,
    of_task: bool,
    tolerance: float | None = None,
    min_agreement: float | None = None,
    name_layers: Callable[[], str] = str,
) -> ExportReport:
    """Raises an error if an export differs from its model by more than its format allows.

    Top-1 agreement counts on images of the task alone: below `REFUSED` it is an error, below
    `WARNED` a warning, in all formats and precisions. Synthetic images say little about it.

    Args:
        report: The comparison.
        of_task: Whether the user passed the images.
        tolerance: The user's largest difference, which replaces all limits.
        min_agreement: Lowest agreement of any images, in [0, 1]; `None` has none.
        name_layers: Returns a sentence on the layers that lose most, for the error.

    Returns:
        `report`.

    Raises:
        ExportMismatchError: If a limit is exceeded.
    """
    tolerances = FORMATS[report.format].tolerances
    known = tolerances.get(report.precision)  # `verify_export` knows no precision
    allowed = known if tolerance is None else tolerance
    agreement = report.top1_agreement
    if tolerance is not None or known is None or agreement is None:
        agreement, least = 1.0, 0.0
    else:
        least = max(min_agreement or 0.0, REFUSED if of_task else 0.0)
    is_close = np.isfinite(report.max_difference)
    if allowed is not None:
        is_close = is_close and report.max_difference <= allowed
    found = f"largest difference {report.max_difference:.2e}"
    found += "" if allowed is None else f" (allowed: {allowed:g})"
    if report.top1_agreement is not None:
        found += f", top-1 agreement {report.top1_agreement:.1%} (at least: {least:.1%})"
    found += f" on {report.images} {'images that were passed' if of_task else 'synthetic images'}"
    advice = _advice(report, known, of_task)
    if not is_close or agreement < least:
        raise ExportMismatchError(
            f"The {report.format} export differs from the model: {found}. {name_layers()}{advice}",
            report,
        )
    if of_task and agreement < WARNED:
        warnings.warn(
            f"The {report.format} export in {report.precision} often answers another class than "
            f"the model: {found}. {advice}",
            stacklevel=3,
        )
    return report


def _advice(report: ExportReport, known: float | None, of_task: bool) -> str:
    """Advice about a file that differs: rounding of its precision, or a wrong file."""
    format = FORMATS[report.format]
    if report.precision in format.roundings:
        images = "" if of_task else " Pass images of the task as `images`, for a fair comparison."
        return (
            f'{format.advice}, or "float16"; `keras_vit.export.find_export(..., goal="size")` '
            f"finds the smallest file for a budget of accuracy.{images}"
        )
    is_near = report.max_difference <= math.sqrt(known or 0.5)  # half of the digits
    if not is_near or (report.top1_agreement is not None and report.top1_agreement < 0.5):
        return (
            "This is more than rounding: the file computes something else than the model. Do not "
            "raise `tolerance`. Compare another format, and the model without its last layers, to "
            "find the layer; for `verify_export`, check that the file is of this model."
        )
    if report.precision in ("float16", "bfloat16"):
        return 'This is rounding of 16 bits. Take "float32", or images of the task as `images`.'
    images = "" if of_task else " Pass images of the task as `images`;"
    return f"This may be rounding.{images} `tolerance` allows more if their classes agree."


def expected_outputs(inference: Inference, images: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the model's outputs for the images of a check.

    Raises:
        ValueError: If outputs are not finite: nothing can be compared with them.
    """
    outputs = inference.run(images)
    if all(np.isfinite(values).all() for values in outputs.values()):
        _warn_of_quantized(inference, images, outputs)
        return outputs
    broken = [v.path for v in inference.model.variables if not np.isfinite(np.asarray(v)).all()]
    cause = f"These weights are: {', '.join(broken)}" if broken else "All weights are finite"
    raise ValueError(
        f"Outputs of the model {inference.model.name!r} are NaN or infinite. {cause}. Train or "
        "load the model again before you export it."
    )


def _with_probabilities(runner: Runner, inference: Inference) -> Runner:
    """Adds probabilities to logits: a quantised model with an activation has no logits."""

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        outputs = runner(pixels)
        if "logits" in outputs and "probabilities" not in outputs:
            values = inference.probabilities_of(tf.constant(outputs["logits"]))
            outputs = {**outputs, "probabilities": values.numpy()}
        return outputs

    return run


def _warn_of_quantized(
    inference: Inference, images: np.ndarray, outputs: dict[str, np.ndarray]
) -> None:
    """Warns that a file has float kernels of a quantised model, and how far its outputs are."""
    quantized = quantized_layers(inference.source)
    if not quantized:
        return
    modes = ", ".join(sorted({str(layer.quantization_mode) for layer in quantized}))
    expected = _quantized_outputs(inference, images)
    difference = largest_difference(outputs, expected, inference.smallest_scale)
    agreement = _agreement(outputs, expected)
    warnings.warn(
        f"Keras quantised {len(quantized)} layers of {inference.source.name!r} ({modes}). The file "
        "holds their kernels dequantised, as floats, and does not round the inputs of the layers. "
        f"On {len(images)} images the outputs differ from the quantised model's by up to "
        f"{difference:.1e} of the largest value"
        f"{'' if agreement is None else f', top-1 agreement {agreement:.2%}'}.",
        stacklevel=4,
    )


def _quantized_outputs(inference: Inference, images: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of a model that Keras quantised, as it computes them itself."""
    return prepare(
        inference.source,
        preprocessing=inference.preprocessing,
        activation=inference.activation,
        merge=False,
        any_size=inference.any_size,
        any_aspect=True,
    ).run(images)


def images_of_check(
    images: Images | None, inference: Inference, samples: np.ndarray | None
) -> tuple[np.ndarray, bool]:
    """Pixels for the check of a calibrated file, and whether they are of the task.

    Args:
        images: What the user passed; `None` takes some of `samples`, or else synthetic images.
        inference: The model.
        samples: Pixels of the calibration, if there is one.

    Returns:
        float32 pixels of the model's size, and whether they are no synthetic images.
    """
    if images is None and samples is not None:
        return samples[:: -(-len(samples) // _CHECKED)], True  # spread over all
    return verification_images(images, inference), images is not None


def verification_images(images: Images | None, inference: Inference) -> np.ndarray:
    """Converts images to float32 pixels of the model's size; `None` gives synthetic images.

    Raises:
        ValueError: If the model cannot take pixels of their shape or range.
    """
    if inference.takes_patches:
        return _images_of_any_aspect(images, inference)
    if images is None:
        choose = getattr(inference.source, "clearest_images", None)
        if choose is None:
            return synthetic_images(inference.input_shape)
        pixels = synthetic_images(inference.input_shape, 4 * _SYNTHETIC)
        normalized = normalize(pixels, inference.preprocessing) if inference.normalizes else pixels
        return pixels[choose(np.asarray(normalized), _SYNTHETIC)]
    if isinstance(images, list | tuple) and len(images):
        return resize_images(images, inference)
    images = np.asarray(images)
    if images.shape[1:] != inference.input_shape or not len(images):
        raise ValueError(
            f"`images` must be pixels of shape (B, {', '.join(map(str, inference.input_shape))}), "
            f"with at least one image. Received: shape {images.shape}."
        )
    _check_range([images])
    return images.astype("float32")


def _images_of_any_aspect(images: Images | None, inference: Inference) -> Any:
    """Images for a model that takes any aspect ratio, one by one; by default of four ratios."""
    height, width, channels = inference.input_shape
    if images is None:
        sizes = ((height, width), (height, 2 * width), (2 * height, width // 2), (height // 2, 1))
        return [synthetic_images((*size, channels), count=1)[0] for size in sizes]
    images = [np.asarray(image, "float32") for image in images]
    _check_images(images, channels)
    return images


def resize_images(images: Images, inference: Inference) -> np.ndarray:
    """Preprocesses images of any size to float32 pixels of the model's size, as in evaluation.

    Raises:
        ValueError: If an image has another number of channels, or values that are no pixels.
    """
    _check_images(images, inference.input_shape[-1])
    view = functools.partial(
        eval_transform, preprocessing=inference.preprocessing, image_size=inference.input_shape[:2]
    )
    return np.stack([view(image) for image in images])


def _check_images(images: Images, channels: int) -> None:
    """Raises a `ValueError` unless all images have `channels`, and pixels in [0, 255]."""
    for index, image in enumerate(images):
        if np.ndim(image) != 3 or image.shape[-1] != channels:
            raise ValueError(
                f"An image must have the shape (h, w, {channels}). Received: image {index} of "
                f"shape {np.shape(image)}."
            )
    _check_range(images)


def _check_range(images: Images) -> None:
    """Raises a `ValueError` unless the values of all images are pixels in [0, 255]."""
    low = np.min([np.min(image) for image in images])  # NaN if any value is
    high = np.max([np.max(image) for image in images])
    if not (low >= -_ROUNDING and high <= 255 + _ROUNDING):
        raise ValueError(
            f"Images must be pixels in [0, 255], not normalised. Received: values from {low:g} to "
            f"{high:g}."
        )
    if 0 < high <= 1:
        raise ValueError(
            f"Images must be pixels in [0, 255]. Received: values from {low:g} to {high:g}, which "
            "look like a range of [0, 1]. Multiply by 255."
        )


def measure_latency(runner: Runner, images: Any, repeats: int = 5) -> tuple[float, float]:
    """Median wall time and processor time of a call in milliseconds, after one warm-up call."""
    runner(images)
    times = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        runner(images)
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    latency_ms, processor_ms = np.median(times, axis=0) * 1e3
    return float(latency_ms), float(processor_ms)


def synthetic_images(input_shape: tuple[int, int, int], count: int = _SYNTHETIC) -> np.ndarray:
    """Generates fixed images for checks: smooth colour fields with noise.

    Args:
        input_shape: Height, width and channels.
        count: Number of images.

    Returns:
        float32 array of shape `(count, *input_shape)`, integers in [0, 255].
    """
    rng = np.random.default_rng(0)
    height, width, channels = input_shape
    y, x = np.mgrid[:height, :width] / max(height, width)
    shape = (count, 1, 1, channels)
    waves = rng.uniform(1, 12, shape) * y[..., None] + rng.uniform(1, 12, shape) * x[..., None]
    images = 127.5 + 100 * np.sin(waves + rng.uniform(0, 6, shape))
    return np.clip(np.round(images + rng.normal(0, 10, images.shape)), 0, 255).astype("float32")


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a file with its external weights, or of all files in a directory."""
    path = pathlib.Path(path)
    weights = path.with_suffix(".bin") if path.suffix == ".xml" else f"{path}.data"
    files = path.rglob("*") if path.is_dir() else [path, pathlib.Path(weights)]
    files = [file for file in files if file.is_file()]
    return sum(file.stat().st_size for file in files)


def largest_difference(
    outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray], smallest_scale: float
) -> float:
    """Largest difference of an output over its largest value, at least `smallest_scale`.

    Of decisions, booleans, it is the share of all that differ.
    """
    worst, decisions = 0.0, [np.zeros(1, bool)]
    for name in outputs.keys() & expected:
        if outputs[name].shape != expected[name].shape:
            return float("inf")
        if expected[name].dtype == bool:
            decisions.append((outputs[name] != expected[name]).ravel())
            continue
        difference = np.max(np.abs(outputs[name].astype("float64") - expected[name]))
        difference /= max(smallest_scale, np.max(np.abs(expected[name])))
        worst = max(worst, float("inf") if np.isnan(difference) else float(difference))
    return max(worst, float(np.concatenate(decisions).mean()))


def _agreement(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float | None:
    """Top-1 agreement of logits or probabilities; `None` for features, regression or one output.

    A model may have names of its own for them, which are found by their largest values.
    """
    logits = expected.get("logits")
    scores = expected.get("probabilities")  # regression has logits alone, and so have class maps
    if scores is None and logits is not None and logits.ndim == 4:
        scores = logits
    if scores is None or scores.shape[-1] == 1:
        return None
    best = (scores if logits is None else logits).argmax(-1)
    for name, values in outputs.items():
        known = expected.get(name)
        if known is not None and np.array_equal(known.argmax(-1), best):
            return float(np.mean(values.argmax(-1) == best))
    return None
