"""ONNX, for ONNX Runtime and what else reads it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import types
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.config import Preprocessing
from keras_vit.export.files import check_labels
from keras_vit.export.inference import check_outputs, prepare
from keras_vit.export.onnx_convert import convert
from keras_vit.export.onnx_graph import OPSETS, Graph, save
from keras_vit.export.onnx_precision import to_float16, to_int8
from keras_vit.export.serving import model_card
from keras_vit.export.verify import (
    ExportReport,
    Images,
    Runner,
    check,
    check_precision,
    compare,
    verification_images,
)
from keras_vit.files import write_atomically

# Largest difference allowed, relative to the largest logit, and least top-1 agreement.
TOLERANCES: dict[str, tuple[float | None, float | None]] = {
    "float32": (1e-5, None),
    "float16": (2e-2, None),
    "int8": (0.5, None),
}
_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes of constants that leave room for the nodes


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike,
    precision: str = "float32",
    labels: Sequence[str] | None = None,
    opset: int = 20,
    outputs: Sequence[str] | None = None,
    external_data: bool | None = None,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Writes a model as an ONNX file, and checks it in ONNX Runtime against the model.

    The file reads `pixels`, float32 of shape `(batch, H, W, C)` in [0, 255] and of the model's
    size; normalisation is inside. Layer norms are one operator each, GELUs too from opset 20 on,
    attention from 23 on, and the batch is the only open dimension. The file's metadata hold, as
    JSON, a `model_card` with the preprocessing, the labels, and one image with the model's outputs.

    Args:
        model: A functional model, trained in any precision.
        path: File to write, usually ending in `.onnx`; it must not exist.
        precision: `"float32"`, `"float16"` (but layer norms and softmax), or `"int8"` (weights of
            dense layers in 8 bits a channel, their inputs quantised as they come).
        labels: Name of each class in order; `None` takes their numbers.
        opset: Version of ONNX's operators, 18 to 23.
        outputs: Any of `"logits"`, `"probabilities"`, `"features"`; `None` takes the logits, or
            the features of a model without a head.
        external_data: Whether weights go to a file beside it, `NAME.data`; `None` does so where
            they pass the 2 GB that one file can hold.
        images: Pixels of shape `(B, H, W, C)` in [0, 255] to check on, or a list of images of any
            size, as `read_images` makes; `None` takes stored ones.
        preprocessing: How images become the model's pixels; `None` takes the model's own.
        tolerance: Largest difference allowed, relative to the largest logit.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If there is something at `path`.
        ImportError: If `tf2onnx` or `onnxruntime` is not installed.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, or the labels are not one a class.
        ExportMismatchError: If the file does not do what the model does; none is left then.

    Example:

    >>> print(keras_vit.export_onnx(model, "model.onnx"))
    """
    check_precision(precision, TOLERANCES)
    if opset not in OPSETS:
        raise ValueError(
            f"`opset` must be one of {', '.join(map(str, OPSETS))}. Received: {opset}."
        )
    import_onnx()
    inference = prepare(model, preprocessing=preprocessing)
    outputs = check_outputs(inference, outputs)
    labels = check_labels(labels, inference.classes)
    images = verification_images(images, inference)
    with write_atomically(path) as unfinished:
        graph = convert(inference, outputs, opset)
        card = json.dumps(model_card(inference, precision, labels))
        _write(graph, unfinished, precision, external_data, {"model_card": card})
        runner = load_onnx(unfinished)
        expected = inference.run(images)
        report = compare(unfinished, "onnx", precision, runner, expected, images)
        check(report, *TOLERANCES[precision], tolerance)
    return dataclasses.replace(report, path=pathlib.Path(path))


def load_onnx(path: str | os.PathLike) -> Runner:
    """A function from pixels to named outputs that runs an ONNX file in ONNX Runtime.

    Raises:
        ImportError: If `onnxruntime` is not installed.
    """
    import_onnx()
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        arrays = session.run(names, {"pixels": np.asarray(pixels, "float32")})
        return dict(zip(names, arrays, strict=True))

    return run


def import_onnx() -> types.ModuleType:
    """The package `onnx`, where all that an export needs is installed.

    Raises:
        ImportError: If something is missing. The message says how to install it.
    """
    try:  # the last two only to know that they are there
        import onnx
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "ONNX files are made by tf2onnx and run by onnxruntime. Install both with "
            '`pip install "keras_vit[onnx]"`.'
        ) from error
    return onnx


def _write(
    graph: Graph,
    path: pathlib.Path,
    precision: str,
    external_data: bool | None,
    metadata: dict[str, str],
) -> None:
    """Writes the graph in one precision, with or without a file of weights beside it."""
    if precision == "float16":
        to_float16(graph)
    external = external_data
    if external is None:
        external = sum(array.nbytes for array in graph.constants.values()) > _PROTOBUF_LIMIT
    if precision != "int8":
        save(graph, path, external, metadata)
        return
    exact = path.with_name(path.name + ".float32")
    save(graph, exact, external, metadata)
    to_int8(exact, path, external)
    for file in path.parent.glob(exact.name + "*"):
        file.unlink()
