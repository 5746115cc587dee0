"""Keras's own test of layers, run on every public layer: a table of cases.

`python -m tests.layers.keras_cases` runs all of them on the backend of KERAS_BACKEND and prints
what failed, as JSON. tests/layers/test_every_layer.py and scripts/backends read this.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import traceback
from typing import Any, NamedTuple

import keras

import keras_vit.layers

_OWNER = "keras.src.testing"  # private to Keras


class Case(NamedTuple):
    """A layer of `keras_vit.layers`, and what Keras's test is given for it.

    Args:
        layer: Name of the layer.
        arguments: Of its constructor.
        inputs: Shape of the input, or by names of call arguments with `_shape`, as in `build`.
        output: Shape of the output.
        dtype: Of the output.
        more: Other arguments of Keras's test.
    """

    layer: str
    arguments: dict[str, Any]
    inputs: Any
    output: Any
    dtype: Any = "float32"
    more: dict[str, Any] | None = None


TOKENS, MAPS = (2, 5, 8), (2, 8, 8, 32)
# Keras's training step passes a single input. Models of several are trained in tests of their own.
SEVERAL = {"run_training_check": False}
CASES = {
    f"{row.layer}-{index}": row
    for index, row in enumerate(
        (
            Case("AddPositionEmbedding", {"grid": (2, 2)}, TOKENS, TOKENS),
            Case("AttentionPooling", {"num_heads": 2, "mlp_dim": 16}, TOKENS, (2, 8)),
            Case("BiTRoot", {"filters": 32}, (2, 16, 16, 3), (2, 4, 4, 32)),
            Case("CausalAttention", {"num_heads": 2}, TOKENS, TOKENS),
            Case("CausalBlock", {"num_heads": 2, "mlp_dim": 16}, TOKENS, TOKENS),
            Case("ClassToken", {}, (2, 4, 8), TOKENS),
            Case("GridAttention", {"num_heads": 2, "grid": (2, 2)}, (2, 4, 8), (2, 4, 8)),
            Case("GroupNorm", {}, MAPS, MAPS),
            Case("LayerScale", {"initial_value": 0.5}, TOKENS, TOKENS),
            Case("MLP", {"hidden_dim": 16, "dropout_rate": 0.1}, TOKENS, TOKENS),
            Case("MLP", {"hidden_dim": 16, "swiglu": True, "inner_norm": True}, TOKENS, TOKENS),
            Case("MeanPooling", {"num_prefix_tokens": 1}, TOKENS, (2, 8)),
            Case(
                "NearestNeighbors",
                {"classes": 3, "num_examples": 6, "num_neighbors": 2},
                (2, 8),
                (2, 3),
            ),
            Case(
                "PairFeatures",
                {"logit_bias": -10.0},
                {"images_shape": (2, 8), "texts_shape": (2, 8)},
                (2, 18),
                more=SEVERAL,
            ),
            Case("PatchDropout", {"rate": 0.5, "seed": 1}, TOKENS, TOKENS),
            Case("PatchEncoder", {"patch_size": 4, "width": 8}, (2, 8, 8, 3), (2, 4, 8)),
            Case(
                "PatchEncoder",
                {"patch_size": 4, "width": 8, "any_size": True},
                (2, 8, 8, 3),
                (2, 2, 2, 8),
            ),
            Case(
                "PatchMask",
                {},
                {"tokens_shape": (2, 4, 8), "sources_shape": (2, 4)},
                (2, 4, 8),
                more={
                    "input_dtype": {"tokens_shape": "float32", "sources_shape": "int32"},
                    **SEVERAL,
                },
            ),
            Case("PostNormBlock", {"num_heads": 2, "mlp_dim": 16}, TOKENS, TOKENS),
            Case("PatchBoxes", {"grid": (2, 3)}, (2, 6, 4), (2, 6, 4)),
            Case(
                "MaskLogits",
                {},
                {"queries_shape": (2, 3, 8), "maps_shape": (2, 4, 6, 8)},
                (2, 3, 4, 6),
                more=SEVERAL,
            ),
            Case(
                "QueryMask",
                {"num_tokens": 10, "grid": (2, 3)},
                (2, 3, 4, 6),
                (2, 1, 10, 10),
                "bool",
                SEVERAL,
            ),
            Case(
                "QueryMask",
                {"num_tokens": 10, "grid": (2, 3), "annealing": (0, 4)},
                (2, 3, 4, 6),
                (2, 1, 10, 10),
                "bool",
                SEVERAL,
            ),
            Case("RMSNorm", {}, TOKENS, TOKENS),
            Case(
                "ResNetStage", {"num_units": 1, "filters": 32, "strides": 2}, MAPS, (2, 4, 4, 128)
            ),
            Case("ResidualUnit", {"filters": 32, "strides": 2}, MAPS, (2, 4, 4, 128)),
            Case("ResizeMaps", {"size": (16, 12)}, MAPS, (2, 16, 12, 32)),
            Case("SelfAttention", {"num_heads": 2, "dropout_rate": 0.1}, TOKENS, TOKENS),
            Case("SelfAttention", {"num_heads": 2, "qk_norm": True}, TOKENS, TOKENS),
            Case("StdConv2D", {"filters": 16, "kernel_size": 3}, MAPS, (2, 8, 8, 16)),
            Case("StemRoot", {"filters": 32}, (2, 16, 16, 3), (2, 4, 4, 32)),
            Case(
                "TokenMerging",
                {"num_merged_tokens": 2},
                {"tokens_shape": (2, 8, 8), "keys_shape": (2, 2, 8, 4)},
                ((2, 6, 8), (2, 6)),
                ("float32", "int32"),
                SEVERAL,
            ),
            Case("TokenPooling", {}, TOKENS, (2, 8)),
            Case("TransformerBlock", {"num_heads": 2, "mlp_dim": 16}, TOKENS, TOKENS),
            Case(
                "TransformerBlock",
                {"num_heads": 2, "mlp_dim": 16, "layer_scale": 0.1, "stochastic_depth_rate": 0.1},
                TOKENS,
                TOKENS,
            ),
            Case(
                "WindowAttention",
                {"num_heads": 2, "grid": (2, 2), "window_size": (1, 2), "num_prefix_tokens": 1},
                TOKENS,
                TOKENS,
            ),
            Case(
                "MergingBlock",
                {"num_heads": 2, "mlp_dim": 16, "num_merged_tokens": 2},
                (2, 8, 8),
                ((2, 6, 8), (2, 6)),
                ("float32", "int32"),
                SEVERAL,
            ),
            Case(
                "RotaryTable",
                {"rope": {"base": 100.0}, "head_dim": 8, "grid": (2, 2)},
                TOKENS,
                ((4, 4), (4, 4)),
                ("float32", "float32"),
                SEVERAL,
            ),
        )
    )
}
# Microbatches take a model, and the TensorFlow backend alone.
CASES["Microbatches-tensorflow"] = Case("Microbatches", {"size": 1}, (2, 8), (2, 4))


def keras_test_case() -> type:
    """Keras's test case. An error says so if it has moved."""
    found = getattr(importlib.import_module(_OWNER), "TestCase", None)
    if not hasattr(found, "run_layer_test"):
        raise AttributeError(
            f"{_OWNER}.TestCase.run_layer_test is gone in Keras {keras.__version__}. It is used to "
            "test every public layer as Keras tests its own."
        )
    return found


def run_case(case: Case) -> None:
    """Runs Keras's test of layers on a case; it raises an `AssertionError` where one fails."""
    arguments = dict(case.arguments)
    if case.layer == "Microbatches":
        arguments["model"] = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    keras_test_case()("run_layer_test").run_layer_test(
        getattr(keras_vit.layers, case.layer),
        init_kwargs=arguments,
        input_shape=case.inputs,
        expected_output_shape=case.output,
        expected_output_dtype=case.dtype,
        supports_masking=False,
        **(case.more or {}),
    )


def main() -> int:
    """Runs every case of this backend, prints the errors by name, and returns their number."""
    backend = keras.backend.backend()
    failures = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for name, case in CASES.items():
            if backend == "tensorflow" or not name.endswith("-tensorflow"):
                try:
                    run_case(case)
                except Exception:
                    failures[name] = traceback.format_exc()
    print(json.dumps({"failures": failures, "backend": backend}))
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
