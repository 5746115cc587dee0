"""Export to LiteRT (TensorFlow Lite), for phones and small processors."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import pathlib
import tempfile
import types
import zipfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.config import Preprocessing
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import (
    Inference,
    NamedInputs,
    check_address_space,
    check_labels,
    check_outputs,
    prepare,
)
from keras_vit.export.litert_int8 import LayerError, quantize
from keras_vit.export.litert_metadata import LABELS, add_metadata
from keras_vit.export.runners import count_litert_operators
from keras_vit.export.serving import model_card
from keras_vit.export.verify import (
    ExportReport,
    Images,
    calibration_pixels,
    check_file,
    images_of_check,
)
from keras_vit.files import local_or_remote, write_atomically
from keras_vit.installation import needing
from keras_vit.progress import Progress

_BLOCK = 32  # weights that share a scale in int4


def export_litert(
    model: keras.Model,
    path: str | os.PathLike[str],
    precision: str = "float32",
    labels: Sequence[str] | None = None,
    batch_size: int | None = None,
    outputs: Sequence[str] | None = None,
    calibration: Images | None = None,
    float_layers: Sequence[str] = (),
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    tolerance: float | None = None,
    verbose: bool | int = True,
) -> ExportReport:
    """Exports a model to a LiteRT file of built-in operators, and checks it against the model.

    The input `pixels` is float32 in [0, 255] with the model's image size; normalisation is part of
    the file. `labels.txt` and `model_card.json` are packed into the file as LiteRT does:
    `unzip model.tflite labels.txt` extracts one. A model of images of any aspect ratio has the
    inputs `patches` and `grid` instead, as `keras_vit.data.fit_patches` returns them.

    Args:
        model: A functional model, trained in any precision.
        path: File to write, usually `*.tflite`; it must not exist.
        precision: `"float32"`; `"float16"` (weights in 16 bits); `"dynamic"` (weights in 8 bits,
            inputs of dense layers quantised at run time); `"int8"` (dense layers and convolutions
            in 8 bits after calibration, or at run time where its ranges lose too much; residual
            stream, softmax and layer norms float); `"int4"`
            (weights of dense layers in 4 bits, with a scale for each 32 of them, those of
            convolutions in 8 bits; it needs `ai-edge-quantizer`).
        labels: Class names in order; `None` takes those of the model, or class indices.
        batch_size: Images per call; `None` allows any number, `"int8"` takes 1. A file of a given
            number refuses others, and its model card states it. Delegates of graphics processors
            and other accelerators may need a given number.
        outputs: As for `export_onnx`.
        calibration: Images for `"int8"`, each of shape `(h, w, C)` and any size, in [0, 255]. A
            hundred images of the task are enough. The model's preprocessing is applied.
        float_layers: Parts of the names of tensors that `"int8"` keeps float, such as
            `"block_11/mlp"`: see `litert_errors`.
        images: Images for the check, as for `export_onnx`; `None` takes those of the calibration,
            if there are any.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: As for `export_onnx`.
        tolerance: Largest difference allowed, relative to the largest logit.
        verbose: Whether to print, now and then, which step runs and how long it has taken.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If `ai_edge_litert`, or for `"int4"` `ai_edge_quantizer`, is not installed.
        MemoryError: If a limit of the process leaves too little address space.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, the number of labels is wrong, or `"int8"` has
            no calibration images or another batch size than 1.
        ExportMismatchError: If the outputs differ from the model's. No file is left then.

    Example:

    >>> print(keras_vit.export_litert(model, "model.tflite"))
    """
    check_choice("precision", precision, tuple(FORMATS["litert"].tolerances))
    inference = prepare(model, preprocessing=preprocessing, activation=activation, any_aspect=True)
    if inference.takes_patches and precision.startswith("int"):
        raise ValueError(
            f"{model.name!r} takes images of any aspect ratio (max_num_patches), and is converted "
            f"in float precision. Received: precision={precision!r}."
        )
    outputs = check_outputs(inference, outputs)
    labels = check_labels(labels, inference.classes, model)
    if precision == "int4":
        import_quantizer()  # before any work
        _check_int4(inference.source)
    samples = calibration_pixels(inference, precision, calibration, float_layers)
    pixels, of_task = images_of_check(images, inference, samples)
    if samples is not None:
        if batch_size not in (None, 1):
            raise ValueError(f'precision="int8" needs batch_size=1. Received: {batch_size}.')
        batch_size = 1
    progress = Progress("export to LiteRT", 2, "steps", verbose)
    with write_atomically(path) as unfinished, progress:
        progress.step(f"converting to {precision}")
        data, _ = convert(inference, outputs, precision, batch_size, samples, float_layers)
        if not inference.takes_patches:
            classes = [name for name in outputs if inference.has_classes(name)]
            data = add_metadata(data, inference.source.name, inference.input_shape[-1], classes)
        unfinished.write_bytes(data)
        pack(unfinished, model_card(inference, "litert", precision, labels, batch_size), labels)
        check_operators(unfinished)
        progress.step("checking against the model")
        kind = unfinished, "litert", precision, inference
        limits = pixels, of_task, tolerance, batch_size or 4
        report = check_file(*kind, *limits, float_layers)
    return dataclasses.replace(report, path=local_or_remote(path))


def litert_errors(
    model: keras.Model,
    calibration: Images,
    float_layers: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
) -> list[LayerError]:
    """Error of every layer in 8 bits with ranges from calibration, the largest first.

    `export_litert` keeps these ranges where errors are small (`LayerError.at_run_time`). To keep
    layers float, pass a part of their tensors' names as its `float_layers`.

    Args:
        model: A functional model.
        calibration: Images of the task, each of shape `(h, w, C)` and any size, in [0, 255].
        float_layers: Parts of the names of tensors that stay float.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: As for `export_onnx`.

    Returns:
        A `LayerError` for every quantised layer.
    """
    inference = prepare(model, preprocessing=preprocessing, activation=activation)
    samples = calibration_pixels(inference, "int8", calibration, float_layers)
    outputs = check_outputs(inference, None)
    return convert(inference, outputs, "int8", 1, samples, float_layers)[1]


def convert(
    inference: Inference | NamedInputs,
    outputs: Sequence[str],
    precision: str,
    batch_size: int | None,
    samples: np.ndarray | None,
    float_layers: Sequence[str],
) -> tuple[bytes, list[LayerError]]:
    """Converts through a SavedModel with one signature, which names the tensors."""
    check_address_space(inference)
    module = tf.Module()
    module.variables_read = inference.variables
    spec = inference.inputs(batch_size)
    named = spec if isinstance(spec, dict) else {"pixels": spec}

    def function(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = {name: _fix_shape(x) for name, x in inputs.items()}
        results = inference(inputs if isinstance(spec, dict) else inputs["pixels"])
        return {name: results[name] for name in outputs}

    with tempfile.TemporaryDirectory() as directory:
        signature = tf.function(function).get_concrete_function(**named)
        tf.saved_model.save(module, directory, signature)

        def make_converter() -> tf.lite.TFLiteConverter:
            converter = tf.lite.TFLiteConverter.from_saved_model(directory)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            return converter

        if samples is not None:
            return quantize(make_converter, samples, float_layers)
        converter = make_converter()
        if precision == "int4":
            return _to_int4(converter.convert()), []
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert(), []


def _fix_shape(x: tf.Tensor) -> tf.Tensor:
    """Makes a file refuse inputs that are resized to another shape.

    LiteRT's reshapes count elements only, so two images of half the height pass for one, and five
    images give the row of one. Split into one part of a given size, an axis must have that size;
    converters drop all other checks.
    """
    for axis, size in enumerate(x.shape):
        if size is not None:
            (x,) = tf.raw_ops.SplitV(value=x, size_splits=[size], axis=axis, num_split=1)
    return x


def import_quantizer() -> types.ModuleType:
    """Imports the package that stores weights in 4 bits.

    Raises:
        ImportError: If it is not installed.
    """
    with needing("int4", 'precision="int4" needs ai-edge-quantizer'):
        return importlib.import_module("ai_edge_quantizer.quantizer")


def _to_int4(data: bytes) -> bytes:
    """Stores the weights of dense layers of a float32 file in 4 bits, in blocks."""
    quantizer = import_quantizer()
    from ai_edge_quantizer import qtyping, recipe_manager

    operators = qtyping.TFLOperationName
    recipes = recipe_manager.RecipeManager()
    recipes.add_dynamic_config(regex=".*", operation_name=operators.CONV_2D, num_bits=8)
    recipes.add_dynamic_config(
        regex=".*",
        operation_name=operators.FULLY_CONNECTED,
        num_bits=4,
        granularity=qtyping.QuantGranularity[f"BLOCKWISE_{_BLOCK}"],
    )
    quiet = io.StringIO()  # for its progress and a summary
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        result = quantizer.Quantizer(data, recipes.get_quantization_recipe()).quantize()
    return bytes(result.quantized_model)


def _check_int4(model: keras.Model) -> None:
    """Raises a `ValueError` if inputs of dense layers are no whole blocks."""
    kernels = [x for x in model.variables if x.path.endswith("kernel") and len(x.shape) == 2]
    odd = [f"{x.path} ({x.shape[0]})" for x in kernels if x.shape[0] % _BLOCK]
    if odd:
        raise ValueError(
            f'precision="int4" needs dense layers whose inputs are a multiple of {_BLOCK}. '
            f'Received: {", ".join(odd[:3])}. Take "dynamic" or "int8".'
        )


def check_operators(path: pathlib.Path) -> None:
    """Raises a `ValueError` if a file needs more than LiteRT's built-in operators."""
    foreign = [name for name in count_litert_operators(path) if name.startswith(("Flex", "CUSTOM"))]
    if foreign:
        raise ValueError(
            f"The model needs operators that LiteRT does not have: {', '.join(foreign)}. Replace "
            "the layers that use them."
        )


def pack(path: pathlib.Path, card: dict[str, Any], labels: list[str]) -> None:
    """Appends labels and model card as a zip archive, where LiteRT's tools expect them."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(LABELS, "".join(f"{label}\n" for label in labels))
        archive.writestr("model_card.json", json.dumps(card, indent=1))
