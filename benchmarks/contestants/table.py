"""Who takes part in benchmarks/suite.py, and the environments they need."""

from __future__ import annotations

import dataclasses
import functools
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
# What each environment needs.
ENVIRONMENTS = {
    "ours": [f"{ROOT}[onnx,litert]"],
    "keras_hub": ["tensorflow>=2.18", "keras>=3.11", "keras-hub>=0.21"],
    "torch": [
        *("torch>=2.6", "timm>=1.0.15", "transformers>=4.50"),
        *("safetensors>=0.4.3", "onnx>=1.17", "onnxscript>=0.3"),
    ],
    "runtimes": ["onnxruntime>=1.20", "onnx>=1.17", "openvino>=2025.0", "numpy>=1.26"],
    "litert": ["ai-edge-litert>=1.2", "numpy>=1.26"],
}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """Who takes part in what.

    Args:
        environment: A key of `ENVIRONMENTS`.
        module: What its process runs.
        interface: How the model is called, for the module.
        tasks: What it takes part in.
        precisions: What it can compute in.
        file: What it reads, as a pattern of the cell; `timm/` before what timm writes.
    """

    environment: str
    module: str
    interface: str = ""
    tasks: tuple[str, ...] = ("infer",)
    precisions: tuple[str, ...] = ("float32", "bfloat16")
    file: str | None = None
    options: tuple[tuple[str, object], ...] = ()


KERAS = "contestants.keras_models"
TORCH = "contestants.torch_models"
RUNTIMES = "contestants.runtime_files"
OURS = functools.partial(Contestant, "ours", KERAS)
RUNTIME = functools.partial(Contestant, "runtimes", RUNTIMES)
BOTH, TRAIN = ("infer", "train"), ("train",)
FLOAT_AND_INT8, GRAPH = ("float32", "int8"), (("jit_compile", False),)
CONTESTANTS = {
    "keras_vit predict": OURS("predict"),
    "keras_vit predict graph": OURS("predict", options=GRAPH),
    "keras_vit call": OURS("call"),
    "keras_vit call xla": OURS("call_xla"),
    "keras_vit saved_model": OURS("saved_model", file="saved_model_{precision}"),
    "keras_vit saved_model xla": OURS("saved_model_xla", file="saved_model_xla_{precision}"),
    "keras_vit fit": OURS("fit", TRAIN),
    "keras_vit fit graph": OURS("fit", TRAIN, options=GRAPH),
    "keras_vit fit train.AdamW": OURS("fit", TRAIN, options=(("own_optimizer", True),)),
    "onnxruntime keras_vit": RUNTIME("ours", precisions=FLOAT_AND_INT8, file="{precision}.onnx"),
    "onnxruntime timm": RUNTIME("timm", precisions=FLOAT_AND_INT8, file="timm/float32.onnx"),
    "openvino keras_vit": RUNTIME("ours", file="float32.onnx"),
    "openvino timm": RUNTIME("timm", file="timm/float32.onnx"),
    "litert keras_vit": Contestant(
        "litert",
        RUNTIMES,
        "ours",
        precisions=("float32", "dynamic", "int8"),
        file="{precision}_{batch}.tflite",
    ),
    "timm eager": Contestant("torch", TORCH, "eager", BOTH),
    "timm compiled": Contestant("torch", TORCH, "compiled", BOTH),
    "transformers": Contestant("torch", TORCH, "eager", BOTH),
    "keras_hub predict": Contestant("keras_hub", KERAS, "predict"),
    "keras_hub fit": Contestant("keras_hub", KERAS, "fit", TRAIN),
}
