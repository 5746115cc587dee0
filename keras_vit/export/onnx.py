"""Export to ONNX, for ONNX Runtime and other runtimes."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

import keras

from keras_vit.checks import check_choice
from keras_vit.config import Preprocessing
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import check_labels, check_outputs, prepare
from keras_vit.export.onnx_convert import convert
from keras_vit.export.onnx_graph import OPSETS, Graph, save
from keras_vit.export.onnx_precision import to_float16, to_int8
from keras_vit.export.runners import import_onnx
from keras_vit.export.serving import model_card
from keras_vit.export.verify import ExportReport, Images, check_file, verification_images
from keras_vit.files import local_or_remote, write_atomically
from keras_vit.progress import Progress

_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes of constants; the rest of the 2 GB is for the nodes


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike[str],
    precision: str = "float32",
    labels: Sequence[str] | None = None,
    opset: int = 20,
    outputs: Sequence[str] | None = None,
    external_data: bool | None = None,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    tolerance: float | None = None,
    verbose: bool | int = True,
) -> ExportReport:
    """Exports a model to an ONNX file, and checks it in ONNX Runtime against the model.

    The input `pixels` is float32 of shape `(batch, H, W, C)` in [0, 255] with the model's image
    size; normalisation is part of the file. Each layer norm is one operator, each GELU too from
    opset 20 on. The batch is the only dynamic dimension. The metadata hold a `model_card` as JSON:
    preprocessing, labels, and one image with the model's outputs. A model of images of any aspect
    ratio has the inputs `patches` and `grid` instead, as `keras_vit.data.fit_patches` returns them.

    Args:
        model: A functional model, trained in any precision.
        path: File to write, usually `*.onnx`; it must not exist.
        precision: `"float32"`, `"float16"` (except layer norms and softmax), or `"int8"` (weights
            of dense layers in 8 bits per channel, their inputs quantised at run time).
        labels: Class names in order; `None` takes those of the model, or class indices.
        opset: Version of the ONNX operator set, 18 to 22.
        outputs: Any of `"logits"`, `"probabilities"`, `"features"` and the names of a model that
            gives a dict; `None` takes all of the dict, or else the logits, or the features of a
            model without a head.
        external_data: Whether weights go to a second file, `NAME.data`; `None` does so if they
            exceed the 2 GB limit of one file.
        images: Pixels of shape `(B, H, W, C)` in [0, 255] for the check, or a list of images of
            any size, as `read_images` returns; `None` takes synthetic images.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: Function from logits to probabilities, `"softmax"` or `"sigmoid"`; `None` takes
            the activation of the head, or softmax if the head has none; `"linear"` leaves
            probabilities out, as for regression.
        tolerance: Largest difference allowed, relative to the largest logit.
        verbose: Whether to print, now and then, which step runs and how long it has taken.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If `tf2onnx` or `onnxruntime` is not installed.
        MemoryError: If a limit of the process leaves too little address space.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, or the number of labels is wrong.
        ExportMismatchError: If the outputs differ from the model's. No file is left then.

    Example:

    >>> print(keras_vit.export_onnx(model, "model.onnx"))
    """
    check_choice("precision", precision, tuple(FORMATS["onnx"].tolerances))
    check_choice("opset", opset, OPSETS)
    import_onnx()
    inference = prepare(model, preprocessing=preprocessing, activation=activation, any_aspect=True)
    outputs = check_outputs(inference, outputs)
    labels = check_labels(labels, inference.classes, model)
    pixels, of_task = verification_images(images, inference), images is not None
    progress = Progress("export to ONNX", 3, "steps", verbose)
    with write_atomically(path) as unfinished, progress:
        progress.step("converting")
        graph = convert(inference, outputs, opset)
        progress.step(f"writing in {precision}")
        card = json.dumps(model_card(inference, "onnx", precision, labels))
        _write(graph, unfinished, precision, external_data, {"model_card": card})
        progress.step("checking against the model")
        kind = unfinished, "onnx", precision
        report = check_file(*kind, inference, pixels, of_task, tolerance)
    return dataclasses.replace(report, path=local_or_remote(path))


def _write(
    graph: Graph,
    path: pathlib.Path,
    precision: str,
    external_data: bool | None,
    metadata: dict[str, str],
) -> None:
    """Writes the graph in one precision, with or without a second file of weights."""
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
