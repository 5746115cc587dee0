"""Export to OpenVINO's IR, for processors, graphics and neural processors of Intel."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.config import Preprocessing
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import Inference, check_labels, check_outputs, prepare
from keras_vit.export.lossy_layers import match_parts
from keras_vit.export.onnx_convert import convert
from keras_vit.export.onnx_graph import save
from keras_vit.export.runners import import_onnx, import_openvino
from keras_vit.export.serving import model_card
from keras_vit.export.verify import (
    ExportReport,
    Images,
    calibration_pixels,
    check_file,
    images_of_check,
)
from keras_vit.files import local_or_remote, write_atomically
from keras_vit.progress import Progress

if TYPE_CHECKING:  # an optional package
    import openvino

_NAME = "openvino"
_OPSET = 20  # with Gelu
_SMALL = 64  # elements; smaller constants stay float32


def export_openvino(
    model: keras.Model,
    path: str | os.PathLike[str],
    precision: str = "float32",
    labels: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    calibration: Images | None = None,
    float_layers: Sequence[str] = (),
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    tolerance: float | None = None,
    verbose: bool | int = True,
) -> ExportReport:
    """Exports a model to OpenVINO's IR, and checks it in OpenVINO against the model.

    Two files are written: the graph, `NAME.xml`, and its weights, `NAME.bin`. The input `pixels` is
    float32 of shape `(batch, H, W, C)`, one image or more, in [0, 255] with the model's image size;
    normalisation is part of the file. The runtime information `model_card` holds preprocessing,
    labels, and one image with the model's outputs, as JSON.

    The check computes in float32. By default, OpenVINO computes in bfloat16 on processors that can,
    whatever the file has: `INFERENCE_PRECISION_HINT` of `compile_model` decides.

    Args:
        model: A functional model, trained in any precision.
        path: File to write, `*.xml`; it must not exist.
        precision: `"float32"`; `"float16"` or `"bfloat16"` (weights in 16 bits); `"int8"` (dense
            layers and convolutions in 8 bits after calibration, by NNCF for transformers).
        labels: Class names in order; `None` takes those of the model, or class indices.
        outputs: As for `export_onnx`.
        calibration: Images for `"int8"`, each of shape `(h, w, C)` and any size, in [0, 255]. A
            hundred images of the task are enough. The model's preprocessing is applied.
        float_layers: Parts of the names of operators that `"int8"` keeps float, such as
            `"block_11/mlp"`.
        images: Images for the check, as for `export_onnx`; `None` takes those of the calibration,
            if there are any.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: As for `export_onnx`.
        tolerance: Largest difference allowed, relative to the largest logit.
        verbose: Whether to print, now and then, which step runs and how long it has taken.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If a file of the two exists.
        ImportError: If `openvino`, `tf2onnx`, or `nncf` for `"int8"`, is not installed.
        MemoryError: If a limit of the process leaves too little address space.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, the number of labels is wrong, `path` does not
            end in `.xml`, or `"int8"` has no calibration images.
        ExportMismatchError: If the outputs differ from the model's. No file is left then.

    Example:

    >>> print(keras_vit.export.export_openvino(model, "model.xml"))
    """
    check_choice("precision", precision, tuple(FORMATS[_NAME].tolerances))
    if not os.fspath(path).endswith(".xml"):
        raise ValueError(
            "The path of an OpenVINO file must end in .xml; its weights get the same name with "
            f".bin. Received: {os.fspath(path)!r}."
        )
    inference = prepare(model, preprocessing=preprocessing, activation=activation)
    outputs = check_outputs(inference, outputs)
    labels = check_labels(labels, inference.classes, model)
    samples = calibration_pixels(inference, precision, calibration, float_layers)
    pixels, of_task = images_of_check(images, inference, samples)
    import_openvino(with_nncf=precision == "int8")
    import_onnx()
    # OpenVINO reads the weights of large models only when they are needed: for saving.
    progress = Progress("export to OpenVINO", 3 if samples is None else 4, "steps", verbose)
    temporary = tempfile.TemporaryDirectory()
    with write_atomically(path) as unfinished, temporary as directory, progress:
        progress.step("converting")
        graph = _convert(inference, outputs, pathlib.Path(directory) / "model.onnx")
        if precision == "bfloat16":
            _store_bfloat16(graph)
        if samples is not None:
            progress.step("quantising")
            graph = _quantize(graph, samples, float_layers)
        progress.step("writing")
        graph.set_rt_info(json.dumps(model_card(inference, _NAME, precision, labels)), "model_card")
        save_graph(graph, unfinished, precision)
        progress.step("checking against the model")
        kind = unfinished, _NAME, precision
        report = check_file(*kind, inference, pixels, of_task, tolerance, float_layers=float_layers)
    return dataclasses.replace(report, path=local_or_remote(path))


def _convert(inference: Inference, outputs: tuple[str, ...], path: pathlib.Path) -> openvino.Model:
    """Converts through our ONNX graph, in which layer norms and GELUs are single operators.

    From TensorFlow's graph OpenVINO makes chains of small operators that it does not fuse.
    """
    import openvino

    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": "NO"})  # Windows does not remove mapped files
    save(convert(inference, outputs, _OPSET), path, external=True, metadata={})
    graph = core.read_model(path)
    # Where (B * T, D) becomes (B, T, ...) and T >= D, as in Ti/16, OpenVINO 2026.4 takes tokens for
    # channels when it moves the scales of int8 layers without bias behind the reshape, unless B * T
    # is known to differ from B.
    graph.reshape(openvino.PartialShape([openvino.Dimension(1, -1), *inference.input_shape]))
    return graph


def _store_bfloat16(graph: openvino.Model) -> None:
    """Stores weights in bfloat16, each with an operator that converts it back when it is loaded."""
    import openvino
    from openvino import opset13 as operators

    for node in graph.get_ordered_ops():
        is_float = node.get_type_name() == "Constant" and (
            node.get_output_element_type(0) == openvino.Type.f32
        )
        if not is_float or np.prod(node.shape) < _SMALL:
            continue
        # OpenVINO's own conversion of an array does not round to the nearest number.
        bits = tf.cast(node.data, tf.bfloat16).numpy().view("uint16")
        tensor = openvino.Tensor(openvino.Type.bf16, node.shape)
        tensor.data.view("uint16")[...] = bits
        half = openvino.op.Constant(tensor)
        half.set_friendly_name(node.get_friendly_name())
        full = operators.convert(half, "f32")
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(full.output(0))


def _quantize(
    graph: openvino.Model, pixels: np.ndarray, float_layers: Sequence[str]
) -> openvino.Model:
    """Quantises dense layers and convolutions to 8 bits; all else stays float.

    NNCF's defaults for transformers are changed in three places. Ranges go from the smallest to the
    largest value, not to the mean of each image's, which clips. Products of queries and keys stay
    float: without a bias in front, OpenVINO 2026.4 computes their 8-bit form wrong on processors
    (an AIMv2 was off by a third of the largest logit, by 3 % in OpenVINO's own reference).
    SmoothQuant is off: with it, the AIMv2 stays as wrong, whose cause was not isolated.
    """
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    types = ("MatMul", "Convolution")
    products = [node for node in graph.get_ordered_ops() if node.get_type_name() in types]
    # Products of two activations, as of queries and keys, have no weights.
    weighted = [node.get_friendly_name() for node in products if _has_weights(node)]
    kept = [node.get_friendly_name() for node in products if not _has_weights(node)]
    kept += match_parts(float_layers, weighted, "dense layers and convolutions")
    with _quiet():
        return nncf.quantize(
            graph,
            nncf.Dataset([image[None] for image in pixels]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(pixels),
            ignored_scope=nncf.IgnoredScope(names=kept),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=-1, convolution=-1),
            ),
        )


def _has_weights(node: openvino.Node) -> bool:
    return node.input_value(1).get_node().get_type_name() == "Constant"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the progress bars and advice that NNCF prints."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def save_graph(graph: openvino.Model, path: pathlib.Path, precision: str) -> None:
    """Writes graph and weights; only `"float16"` compresses the weights here."""
    import openvino

    try:
        openvino.save_model(graph, path, compress_to_fp16=precision == "float16")
    except RuntimeError:  # "iostream error": C++ streams do not tell that the disk is full
        with open(path.with_suffix(".bin"), "ab") as file:
            file.write(bytes(1 << 20))
        raise
