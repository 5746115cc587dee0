"""8-bit quantisation for LiteRT that keeps the sensitive operators of a ViT in float."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

# The residual stream has outliers of a hundred times its spread; quantising it to 8 bits can cost
# all accuracy (a published case: 0 % with it, 79 % of 81 % without). So only dense layers and
# convolutions are quantised; these operators stay float.
FLOAT_OPERATORS = (
    "ADD",
    "BATCH_MATMUL",
    "CONCATENATION",
    "DIV",
    "EXPAND_DIMS",
    "GATHER",
    "GELU",
    "L2_NORMALIZATION",
    "LOG",
    "MEAN",
    "MUL",
    "NEG",
    "ONE_HOT",
    "POW",
    "RESHAPE",
    "RSQRT",
    "SELECT_V2",
    "SOFTMAX",
    "SPLIT",
    "SPLIT_V",
    "SQRT",
    "SQUARE",
    "SQUARED_DIFFERENCE",
    "SQUEEZE",
    "STRIDED_SLICE",
    "SUB",
    "SUM",
    "TANH",
    "TOPK_V2",
    "TRANSPOSE",
)


@dataclasses.dataclass(frozen=True)
class LayerError:
    """Quantisation error of the output of one operator.

    Args:
        operator: Type of the operator in LiteRT.
        tensor: Name of its output, to which `float_layers` is compared.
        error: Root mean square error, divided by the width of one of the 256 steps. Uniform
            rounding gives 0.29; far larger errors mean that the range is clipped.
        largest: Largest absolute error.
    """

    operator: str
    tensor: str
    error: float
    largest: float


def quantize(
    make_converter: Callable[[], tf.lite.TFLiteConverter],
    images: np.ndarray,
    float_layers: Sequence[str] = (),
) -> tuple[bytes, list[LayerError]]:
    """Quantises a model to 8 bits, and measures the error of every quantised operator.

    Args:
        make_converter: Returns a new converter of the float model, with a batch size of 1.
        images: Pixels of shape `(B, H, W, C)` in [0, 255], from which ranges are calibrated.
        float_layers: Parts of the names of tensors whose operators stay float.

    Returns:
        The bytes of the file, and a `LayerError` for every quantised operator, the largest first.

    Raises:
        ValueError: If one of `float_layers` matches no quantised tensor.
    """
    with _quiet():
        debugger = _debugger(make_converter, images, ())
        errors = _measure(debugger)
        _check_float_layers(float_layers, errors)
        kept = [row.tensor for row in errors if any(part in row.tensor for part in float_layers)]
        if kept:
            debugger = _debugger(make_converter, images, kept)
            errors = _measure(debugger)
        return debugger.get_nondebug_quantized_model(), errors


def _check_float_layers(float_layers: Sequence[str], errors: list[LayerError]) -> None:
    """Raises a `ValueError` if a part of a name matches no quantised tensor."""
    names = [row.tensor for row in errors]
    unknown = [part for part in float_layers if not any(part in name for name in names)]
    if unknown:
        raise ValueError(
            f"`float_layers` must be parts of the names of quantised tensors. Received: {unknown}, "
            f"which match none of {len(names)}: {', '.join(names[:3])}, ... All are in the result "
            "of keras_vit.export.litert_errors."
        )


def _debugger(
    make_converter: Callable[[], tf.lite.TFLiteConverter],
    images: np.ndarray,
    float_tensors: Sequence[str],
) -> tf.lite.experimental.QuantizationDebugger:
    def batches() -> Iterator[list[np.ndarray]]:
        return ([image[None].astype("float32")] for image in images)

    converter = make_converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = batches
    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=list(FLOAT_OPERATORS), denylisted_nodes=list(float_tensors)
    )
    return tf.lite.experimental.QuantizationDebugger(
        converter=converter, debug_dataset=batches, debug_options=options
    )


def _measure(debugger: tf.lite.experimental.QuantizationDebugger) -> list[LayerError]:
    debugger.run()
    table = io.StringIO()
    debugger.layer_statistics_dump(table)
    table.seek(0)
    errors = [
        LayerError(
            operator=row["op_name"],
            tensor=row["tensor_name"],
            error=math.sqrt(float(row["mean_squared_error"])) / float(row["scale"]),
            largest=float(row["max_abs_error"]),
        )
        for row in csv.DictReader(table)
    ]
    return sorted(errors, key=lambda row: -row.error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the deprecation warning of the interpreter that TensorFlow's own debugger uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter", append=False)
        yield
