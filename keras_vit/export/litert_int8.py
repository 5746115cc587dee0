"""8-bit LiteRT files that keep in float what a Vision Transformer needs in float."""

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

# The residual stream has outliers of a hundred times its spread; 8 bits for it can cost every
# correct answer (a published case: 0 % with it, 79 % of 81 % without). So dense layers and
# convolutions are quantised, and what lies between them is not.
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
    """What 8 bits do to the output of one operator.

    Args:
        operator: Its kind in LiteRT.
        tensor: Name of its output, which `float_layers` matches a part of.
        error: Root mean square of the error over the width of one of the 256 steps. An even
            spread of values gives 0.29; far more means that the steps do not cover the values.
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
    """An 8-bit file, and the error of each quantised operator, the largest first.

    Args:
        make_converter: Makes a converter of the float model, for batches of 1.
        images: Pixels of shape `(B, H, W, C)` in [0, 255] to find the range of each tensor.
        float_layers: Parts of names of tensors whose operators stay float.

    Returns:
        The bytes of the file, and a `LayerError` for each quantised operator.
    """
    with _quiet():
        debugger = _debugger(make_converter, images, ())
        errors = _measure(debugger)
        kept = [row.tensor for row in errors if any(part in row.tensor for part in float_layers)]
        if kept:
            debugger = _debugger(make_converter, images, kept)
            errors = _measure(debugger)
        return debugger.get_nondebug_quantized_model(), errors


def _debugger(make_converter, images: np.ndarray, kept: Sequence[str]):
    def batches() -> Iterator[list[np.ndarray]]:
        return ([image[None].astype("float32")] for image in images)

    converter = make_converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = batches
    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=list(FLOAT_OPERATORS), denylisted_nodes=list(kept)
    )
    return tf.lite.experimental.QuantizationDebugger(
        converter=converter, debug_dataset=batches, debug_options=options
    )


def _measure(debugger) -> list[LayerError]:
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
def _quiet():
    """Without the warning that TensorFlow's own debugger uses an interpreter that will go."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter", append=False)
        yield
