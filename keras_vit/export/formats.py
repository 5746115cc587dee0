"""The table of export formats: which function writes a format, how exact it is, and what runs it.

A new format is a module with its export function, and a row of `FORMATS`. This module imports
neither Keras nor TensorFlow, so that commands list formats at once: a function is imported when it
is used.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_vit.reading import open_regular


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A way to run the files of a format, which `find_export` tries.

    Args:
        precisions: Precisions of the file and of the computation.
        options: Further arguments of the export.
        loading: Arguments of the loader for a precision.
    """

    precisions: tuple[str, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loading: Callable[[str], Mapping[str, Any]] = lambda precision: {}


class Rounding(NamedTuple):
    """How a file rounds dense layers.

    Args:
        bits: Of weights; inputs have 8.
        block: Weights of an output that share a scale; `None` is all of them.
        by_token: Whether each token has a scale, or all have one.
    """

    bits: int = 8
    block: int | None = None
    by_token: bool = False


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
        runtimes: What `find_export` runs the files in, by name.
        roundings: How precisions of few bits round.
        calibrated: Precisions whose ranges are measured on images.
        is_file: Whether a file has the format, by its first 8 bytes and its suffix.
        advice: What to do where 8 bits change too many answers.
        note: What the report of a file says at its end.
        program: The program that runs the files, in words.
        platform: The name of the format in Triton.
    """

    name: str
    exporter: str
    loader: str
    file: str
    tolerances: Mapping[str, float]
    runtimes: Mapping[str, Runtime]
    roundings: Mapping[str, Rounding] = dataclasses.field(default_factory=dict)
    calibrated: tuple[str, ...] = ()
    is_file: Callable[[bytes, str], bool] = lambda head, suffix: False  # a directory
    advice: str = "Take another format, whose int8 is calibrated"
    note: str = ""
    program: str = ""
    platform: str = ""

    @property
    def export(self) -> Callable[..., Any]:
        """The function that returns an `ExportReport`, imported now."""
        return pkgutil.resolve_name(f"keras_vit.export.{self.exporter}")

    @property
    def load(self) -> Callable[..., Any]:
        """The function that returns a `Runner`, imported now."""
        return pkgutil.resolve_name(f"keras_vit.export.{self.loader}")


_COMPILED = {"jit_compile": True}  # such a version has signatures with and without XLA
_HALF = ("float32", "bfloat16", "float16")
FORMATS = {
    format.name: format
    for format in (
        Format(
            "saved_model",
            "saved_model:export_saved_model",
            "runners:load_saved_model",
            "model",
            tolerances={"float32": 1e-4, "bfloat16": 0.1, "float16": 2e-2},
            runtimes={"graph": Runtime(_HALF), "xla": Runtime(("float32", "bfloat16"), _COMPILED)},
            program="TensorFlow",
            platform="tensorflow_savedmodel",
        ),
        Format(
            "litert",
            "litert:export_litert",
            "runners:load_litert",
            "model.tflite",
            tolerances={"float32": 1e-4, "float16": 2e-2, "dynamic": 0.5, "int4": 0.5, "int8": 0.5},
            runtimes={"litert": Runtime(("float32", "float16", "dynamic", "int4", "int8"))},
            roundings={
                "dynamic": Rounding(by_token=True),
                "int4": Rounding(4, 32, by_token=True),
                # which has one scale for all tokens only where that loses next to nothing
                "int8": Rounding(by_token=True),
            },
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
            runtimes={"onnxruntime": Runtime(("float32", "float16", "int8"))},
            roundings={"int8": Rounding()},
            is_file=lambda head, suffix: head[:1] == b"\x08",  # ir_version of an ONNX model
            program="ONNX Runtime",
            platform="onnxruntime_onnx",
        ),
        Format(
            "openvino",
            "openvino:export_openvino",
            "runners:load_openvino",
            "model.xml",
            tolerances={"float32": 1e-5, "float16": 2e-2, "bfloat16": 0.1, "int8": 0.5},
            runtimes={
                "openvino": Runtime(
                    (*_HALF, "int8"), loading=lambda precision: {"precision": precision}
                )
            },
            roundings={"int8": Rounding()},
            calibrated=("int8",),
            is_file=lambda head, suffix: head[:5] == b"<?xml" and suffix == ".xml",
            advice="Keep layers in float by `float_layers`",
            note="; checked in float32: elsewhere OpenVINO computes in 16 bits where the processor "
            'can, unless `INFERENCE_PRECISION_HINT` of `compile_model` is "f32"',
            program="OpenVINO",
        ),
    )
}
RUNTIMES = tuple(name for format in FORMATS.values() for name in format.runtimes)
# Formats that `export_for_server` writes for a server; the first is the default.
SERVERS = {"triton": ("onnx", "saved_model"), "ovms": ("openvino",)}
# Precisions and goals of `find_export`; it tries precisions in this order.
PRECISIONS = ("float32", "bfloat16", "float16", "dynamic", "int4", "int8")
GOALS = ("latency", "size")


def list_runs() -> list[tuple[str, str, str]]:
    """Lists what `find_export` can try: format, precision, and runtime."""
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
