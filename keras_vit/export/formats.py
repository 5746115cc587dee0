"""The table of export formats: which function writes a format, how exact it is, and what runs it.

A new format is a module with its export function, and a row of `FORMATS`. This module imports
neither Keras nor TensorFlow, so that commands list formats at once: a function is imported when it
is used.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.reading import open_regular


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A way to run the files of a format, which `optimize` tries.

    Args:
        precisions: Precisions of the computation.
        options: Arguments of the export. Without `precision`, the file has that of the computation.
    """

    precisions: tuple[str, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of exported files.

    Args:
        name: The name in `Run.export`, `keras-vit export --to` and reports.
        exporter: `"module:function"` in `keras_vit.export` that writes a file.
        loader: The same of the function that loads a file, as a function of pixels.
        file: Name of the files that a search writes.
        tolerances: Largest difference allowed in each precision, relative to the largest value of
            an output.
        searched: Precisions that `export_within_budget` tries, in this order.
        calibrated: Precisions whose ranges are measured on images.
        runtimes: What `optimize` runs the files in, by name.
        is_file: Whether a file has the format, by its first 8 bytes and its suffix.
        advice: What to do where 8 bits change too many answers.
        note: What the report of a file says at its end.
    """

    name: str
    exporter: str
    loader: str
    file: str
    tolerances: Mapping[str, float]
    searched: tuple[str, ...]
    runtimes: Mapping[str, Runtime]
    calibrated: tuple[str, ...] = ()
    is_file: Callable[[bytes, str], bool] = lambda head, suffix: False  # a directory
    advice: str = "Take another format, whose int8 is calibrated"
    note: str = ""

    @property
    def export(self) -> Callable[..., Any]:
        """The function that returns an `ExportReport`, imported now."""
        return _find(self.exporter)

    @property
    def load(self) -> Callable[..., Any]:
        """The function that returns a `Runner`, imported now."""
        return _find(self.loader)


def _find(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(f"keras_vit.export.{module}"), name)


_COMPILED = {"jit_compile": True}  # such a version has signatures with and without XLA
FORMATS = {
    format.name: format
    for format in (
        Format(
            "saved_model",
            "saved_model:export_saved_model",
            "runners:load_saved_model",
            "model",
            tolerances={"float32": 1e-4, "bfloat16": 0.1, "float16": 2e-2},
            searched=("float32", "bfloat16", "float16"),
            runtimes={
                "graph": Runtime(("float32", "bfloat16"), _COMPILED),
                "xla": Runtime(("float32", "bfloat16"), _COMPILED),
                "constants": Runtime(("bfloat16",), {"constant_weights": True}),
            },
        ),
        Format(
            "litert",
            "litert:export_litert",
            "runners:load_litert",
            "model.tflite",
            tolerances={"float32": 1e-4, "float16": 2e-2, "dynamic": 0.5, "int4": 0.5, "int8": 0.5},
            searched=("float32", "float16", "dynamic", "int4", "int8"),
            runtimes={"litert": Runtime(("float32", "int8"))},
            calibrated=("int8",),
            is_file=lambda head, suffix: head[4:] == b"TFL3",
            advice='Take "int8" with layers in float (`float_layers`, the worst of '
            "`keras_vit.export.litert_errors`)",
        ),
        Format(
            "onnx",
            "onnx:export_onnx",
            "runners:load_onnx",
            "model.onnx",
            tolerances={"float32": 1e-5, "float16": 2e-2, "int8": 0.5},
            searched=("float32", "float16", "int8"),
            runtimes={
                "onnxruntime": Runtime(("float32", "int8")),
                # which rounds a float32 file to bfloat16 itself
                "openvino": Runtime(("float32", "bfloat16"), {"precision": "float32"}),
            },
            is_file=lambda head, suffix: head[:1] == b"\x08",  # ir_version of an ONNX model
        ),
        Format(
            "openvino",
            "openvino:export_openvino",
            "runners:load_openvino",
            "model.xml",
            tolerances={"float32": 1e-5, "float16": 2e-2, "bfloat16": 0.1, "int8": 0.5},
            searched=("float32", "float16", "int8"),
            runtimes={"openvino": Runtime(("int8",))},
            calibrated=("int8",),
            is_file=lambda head, suffix: head[:5] == b"<?xml" and suffix == ".xml",
            advice="Keep layers in float by `float_layers`",
            note="; checked in float32: elsewhere OpenVINO computes in 16 bits where the processor "
            'can, unless `INFERENCE_PRECISION_HINT` of `compile_model` is "f32"',
        ),
    )
}
RUNTIMES = tuple(dict.fromkeys(name for format in FORMATS.values() for name in format.runtimes))
# Formats that `export_for_server` writes for a server; the first is the default.
SERVERS = {"triton": ("onnx", "saved_model"), "ovms": ("openvino",)}
# Precisions that `optimize` tries, in this order.
PRECISIONS = ("float32", "bfloat16", "int8")


def list_runs() -> list[tuple[str, str, str]]:
    """Lists what `optimize` can run: format, precision of the computation, and runtime."""
    return [
        (format.name, precision, name)
        for precision in PRECISIONS
        for format in FORMATS.values()
        for name, runtime in format.runtimes.items()
        if precision in runtime.precisions
    ]


def newest_version(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the newest version in a directory of SavedModel versions; other paths as they are."""
    path = pathlib.Path(path).expanduser()
    if (path / "saved_model.pb").is_file() or not path.is_dir():
        return path
    versions = [int(file.parent.name) for file in path.glob("[0-9]*/saved_model.pb")]
    return path / str(max(versions)) if versions else path


def find_format(path: str | os.PathLike[str]) -> str:
    """Detects the format of an exported file, a key of `FORMATS`.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If it has another format.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{str(path)!r} does not exist.")
    if (path / "saved_model.pb").is_file():
        return "saved_model"
    if path.is_file():
        with open_regular(path) as file:
            head = file.read(8)
        for name, format in FORMATS.items():
            if format.is_file(head, path.suffix):
                return name
    raise ValueError(
        f"An exported file must be one of {', '.join(FORMATS)}; saved_model is a "
        f"directory with saved_model.pb. Received: {str(path)!r}."
    )
