"""Export of models of several named inputs, such as decoders of prompts, to every format."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export import litert, onnx_convert, onnx_graph, openvino
from keras_vit.export.formats import FORMATS
from keras_vit.export.freeze import stack_equal, with_weights
from keras_vit.export.inference import NamedInputs
from keras_vit.export.runners import import_onnx, import_openvino
from keras_vit.export.verify import (
    ExportReport,
    check,
    largest_difference,
    measure_latency,
    size_of,
)
from keras_vit.files import list_names, next_version, publish_version, write_atomically

_OPSET = 20  # with Gelu


def export_several_inputs(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str,
    samples: Sequence[Mapping[str, np.ndarray]],
    shapes: Mapping[str, Sequence[int | None]] | None = None,
) -> ExportReport:
    """Exports a model of several inputs in float32, and checks it on samples of them.

    The file has the inputs and outputs of the model under their names; the batch may have any size,
    in LiteRT and OpenVINO it is 1.

    Args:
        model: A functional model from a dict of inputs to a dict of outputs.
        path: File to write, which must not exist; of `"saved_model"` the directory of the versions.
        format: `"saved_model"`, `"litert"`, `"onnx"` or `"openvino"`.
        samples: Inputs by name, of a batch of 1, on which the file is compared with the model.
        shapes: Shapes of some inputs in the file, after the batch, where the model leaves sizes
            open and the format needs them; `None` keeps all.

    Returns:
        An `ExportReport`; `images` is the number of samples.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If a package of the format is not installed.
        ExportMismatchError: If the outputs differ from the model's. No file is left then.
    """
    named, versions = NamedInputs(model, shapes or {}), pathlib.Path(path).expanduser()
    is_versioned = format == "saved_model"
    path = versions / str(next_version(list_names(versions))) if is_versioned else versions
    with write_atomically(path) as unfinished:
        _WRITERS[format](named, unfinished)
        runner = FORMATS[format].load(unfinished, **({"name": "decode"} if is_versioned else {}))
        pairs = [(runner(dict(x)), {k: y.numpy() for k, y in named(dict(x)).items()})
                 for x in samples]  # fmt: skip
        report = ExportReport(
            unfinished, format, "float32", size_of(unfinished), len(samples),
            max(largest_difference(*pair, 1.0) for pair in pairs), None,
            *measure_latency(runner, dict(samples[0])),
        )  # fmt: skip
        check(report, False)
        if is_versioned:
            path = publish_version(unfinished, versions)
    return dataclasses.replace(report, path=path)


def _write_saved_model(named: NamedInputs, path: pathlib.Path) -> None:
    module = tf.Module()
    module.weights, read = stack_equal(named.variables)

    def decode(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return with_weights(named, read())(inputs)

    function = tf.function(decode).get_concrete_function(**named.inputs())
    tf.saved_model.save(module, os.fspath(path), {"decode": function, "serving_default": function})


def _write_litert(named: NamedInputs, path: pathlib.Path) -> None:
    data, _ = litert.convert(named, tuple(named.model.output), "float32", 1, None, ())
    path.write_bytes(data)
    shapes = {name: list(spec.shape) for name, spec in named.inputs(1).items()}
    litert.pack(path, {"inputs": shapes, "outputs": list(named.model.output)}, [])
    litert.check_operators(path)


def _write_onnx(named: NamedInputs, path: pathlib.Path) -> None:
    import_onnx()
    graph = onnx_convert.convert(named, tuple(named.model.output), _OPSET)
    onnx_graph.save(graph, path, False, {})


def _write_openvino(named: NamedInputs, path: pathlib.Path) -> None:
    core = import_openvino().Core()
    core.set_property({"ENABLE_MMAP": "NO"})  # Windows does not remove mapped files
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "model.onnx"
        _write_onnx(named, file)
        graph = core.read_model(file)
        # An open batch would cost half of the speed.
        graph.reshape({x: [1, *list(x.partial_shape)[1:]] for x in graph.inputs})
        openvino.save_graph(graph, path, "float32")


_WRITERS = {
    "saved_model": _write_saved_model,
    "litert": _write_litert,
    "onnx": _write_onnx,
    "openvino": _write_openvino,
}
