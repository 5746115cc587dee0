"""Whether an exported file does what the model does."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_vit.data.transforms import eval_view
from keras_vit.errors import ExportMismatchError
from keras_vit.export.files import size_of
from keras_vit.export.inference import Inference

# A runner takes pixels (B, H, W, C) in [0, 255] and returns named arrays.
Runner = Callable[[np.ndarray], dict[str, np.ndarray]]
# Pixels of the model's size in one array, or images of any size in a list.
Images = np.ndarray | Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """An exported file beside the model it was made from.

    Args:
        path: The file or directory.
        format: `"saved_model"`, `"litert"` or `"onnx"`.
        precision: What the file computes in.
        size: Bytes on disk.
        images: How many images both ran on.
        max_difference: Largest absolute difference of any output, over the largest absolute value
            of that output in the model (1 at least).
        top1_agreement: Share of images for which both have the same largest logit, in [0, 1];
            `None` without a head.
        latency_ms: Median time of the file for one image, in milliseconds.
        processor_ms: Median of the time that all threads together spent on it, in milliseconds,
            which other work on the machine disturbs less.
    """

    path: pathlib.Path
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
        return (
            f"{self.path} ({self.format} {self.precision}): {self.size / 2**20:.1f} MiB, "
            f"difference {self.max_difference:.1e}, {agreement}{self.latency_ms:.1f} ms an image "
            f"({self.images} images)"
        )

    def to_dict(self) -> dict:
        """The fields as plain values, for JSON."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def compare(
    path: str | os.PathLike,
    format: str,
    precision: str,
    runner: Runner,
    expected: dict[str, np.ndarray],
    images: np.ndarray,
    batch_size: int = 8,
) -> ExportReport:
    """Runs an exported file on images and compares with the model's outputs for them.

    Args:
        path: The file or directory, for its size.
        format: Name of the format.
        precision: What the file computes in.
        runner: Runs the file.
        expected: The model's outputs by name.
        images: Pixels of shape `(B, H, W, C)` in [0, 255].
        batch_size: Images in a call of the runner.

    Returns:
        An `ExportReport`.
    """
    parts = [runner(images[i : i + batch_size]) for i in range(0, len(images), batch_size)]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    latency_ms, processor_ms = measure_latency(runner, images[:1])
    shared = [name for name in ("logits", "features", "probabilities") if name in outputs]
    return ExportReport(
        path=pathlib.Path(path),
        format=format,
        precision=precision,
        size=size_of(path),
        images=len(images),
        max_difference=max(_difference(outputs[name], expected[name]) for name in shared),
        top1_agreement=_agreement(outputs, expected),
        latency_ms=latency_ms,
        processor_ms=processor_ms,
    )


def check(
    report: ExportReport,
    max_difference: float | None,
    min_agreement: float | None = None,
    tolerance: float | None = None,
) -> ExportReport:
    """The report, where it is within tolerance.

    Args:
        report: What was measured.
        max_difference: Largest difference allowed; `None` allows any.
        min_agreement: Least top-1 agreement allowed, in [0, 1]; `None` allows any.
        tolerance: The user's own largest difference, which replaces both.

    Returns:
        `report`.

    Raises:
        ExportMismatchError: If it is not within tolerance.
    """
    if tolerance is not None:
        max_difference, min_agreement = tolerance, None
    far = max_difference is not None and not report.max_difference <= max_difference
    agreement = report.top1_agreement
    apart = min_agreement is not None and agreement is not None and agreement < min_agreement
    if far or apart or not np.isfinite(report.max_difference):
        raise ExportMismatchError(
            f"The {report.format} export does not do what the model does: largest difference "
            f"{report.max_difference:.2e} (allowed: {max_difference}), top-1 agreement "
            f"{agreement} (at least: {min_agreement}) on {report.images} images. No file was left. "
            "Pass images like those of the task, try another precision, or set the tolerance.",
            report,
        )
    return report


def check_precision(precision: str, precisions: Iterable[str]) -> None:
    """Raises ValueError where a format does not have a precision."""
    if precision not in precisions:
        raise ValueError(
            f"`precision` must be one of {', '.join(map(repr, precisions))}. "
            f"Received: {precision!r}."
        )


def verification_images(images: Images | None, inference: Inference) -> np.ndarray:
    """The images given, as float32 pixels of the model's size, or stored ones.

    Raises:
        ValueError: If their shape or values are not those of pixels that the model reads.
    """
    if images is None:
        return stored_images(inference.input_shape)
    if isinstance(images, list | tuple) and len(images):
        return resize_images(images, inference)
    images = np.asarray(images)
    if images.shape[1:] != inference.input_shape or not len(images):
        raise ValueError(
            f"`images` must be pixels of shape (B, {', '.join(map(str, inference.input_shape))}), "
            f"one image or more. Received: shape {images.shape}."
        )
    if not np.isfinite(images).all() or images.min() < 0 or images.max() > 255:
        raise ValueError(
            "`images` must be pixels in [0, 255], before any normalisation. Received: values from "
            f"{images.min()} to {images.max()}."
        )
    return images.astype("float32")


def resize_images(images: Images, inference: Inference) -> np.ndarray:
    """Images of any size as float32 pixels of the model's size, by its own eval view.

    Raises:
        ValueError: If one has another number of channels, or values that are no pixels.
    """
    channels = inference.input_shape[-1]
    for index, image in enumerate(images):
        if np.ndim(image) != 3 or image.shape[-1] != channels:
            raise ValueError(
                f"An image must have the shape (h, w, {channels}). Received: image {index} of "
                f"shape {np.shape(image)}."
            )
    view = functools.partial(
        eval_view, preprocessing=inference.preprocessing, image_size=inference.input_shape[:2]
    )
    return np.stack([view(image) for image in images])


def measure_latency(runner: Runner, images: np.ndarray, repeats: int = 5) -> tuple[float, float]:
    """Medians of the wall time and the processor's time of a call, in milliseconds.

    A first call does not count.
    """
    runner(images)
    times = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        runner(images)
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    latency_ms, processor_ms = np.median(times, axis=0) * 1e3
    return float(latency_ms), float(processor_ms)


def stored_images(input_shape: tuple[int, int, int], count: int = 8) -> np.ndarray:
    """Images for a check where none are given: smooth colour fields with noise, always the same.

    Args:
        input_shape: Height, width and channels.
        count: Number of images.

    Returns:
        float32 array of shape `(count, *input_shape)`, whole numbers in [0, 255].
    """
    rng = np.random.default_rng(0)
    height, width, channels = input_shape
    y, x = np.mgrid[:height, :width] / max(height, width)
    shape = (count, 1, 1, channels)
    waves = rng.uniform(1, 12, shape) * y[..., None] + rng.uniform(1, 12, shape) * x[..., None]
    images = 127.5 + 100 * np.sin(waves + rng.uniform(0, 6, shape))
    return np.clip(np.round(images + rng.normal(0, 10, images.shape)), 0, 255).astype("float32")


def _difference(output: np.ndarray, expected: np.ndarray) -> float:
    if output.shape != expected.shape:
        return float("inf")
    difference = np.max(np.abs(output.astype("float64") - expected)) / max(
        1.0, np.max(np.abs(expected))
    )
    return float("inf") if np.isnan(difference) else float(difference)


def _agreement(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float | None:
    if "logits" not in outputs:
        return None
    return float(np.mean(outputs["logits"].argmax(-1) == expected["logits"].argmax(-1)))
