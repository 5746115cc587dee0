"""Runs exported files: SavedModel, LiteRT, ONNX and OpenVINO behind one function signature."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import types
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_vit.export.formats import find_format
from keras_vit.installation import needing
from keras_vit.reading import MAX_BYTES, read_text
from keras_vit.runtime.private_names import litert_operators
from keras_vit.runtime.processors import count_cores

if TYPE_CHECKING:  # an optional package
    from ai_edge_litert.interpreter import Interpreter

# A runner takes pixels (B, H, W, C) in [0, 255], or inputs by name, and returns named arrays. Its
# attribute `card` is the JSON of the model card in the file, see `serving.model_card`, or None.
Runner = Callable[[Any], dict[str, np.ndarray]]


def load_saved_model(path: str | os.PathLike[str], name: str = "pixels") -> Runner:
    """Loads a signature of a SavedModel, such as that of pixels of the model's size.

    Args:
        path: The version.
        name: The signature.
    """
    loaded = tf.saved_model.load(os.fspath(path))
    # A model of images of any aspect ratio takes no pixels of one size.
    signature = loaded.signatures[name if name in loaded.signatures else "float_images"]

    def run(inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, dict):
            outputs = signature(**{key: tf.constant(x) for key, x in inputs.items()})
        else:
            outputs = signature(tf.constant(inputs, signature.inputs[0].dtype))
        return {name: value.numpy() for name, value in outputs.items()}

    run.loaded = loaded  # type: ignore[attr-defined]  # keeps the variables alive
    card = pathlib.Path(path, "assets.extra", "model_card.json")
    run.card = read_text(card) if card.is_file() else None  # type: ignore[attr-defined]
    return run


def load_litert(path: str | os.PathLike[str]) -> Runner:
    """Loads a LiteRT file as a function from pixels to named outputs.

    A file with a fixed batch size takes any number of images: they are passed in batches of that
    size, the last image repeated as often as needed.

    Raises:
        ImportError: If `ai_edge_litert` is not installed.
        ValueError: If the file has no model card at its end.
    """
    try:  # it stands at the end: LiteRT 1.2 ends the process on a file that is cut off
        with zipfile.ZipFile(path) as archive:
            card = archive.open("model_card.json").read(MAX_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{path} is damaged, or no file that `export_litert` wrote.") from error
    runner = _interpreter(path).get_signature_runner("serving_default")
    details = runner.get_input_details()
    fixed = int(next(iter(details.values()))["shape_signature"][0])

    def run(inputs: Any) -> dict[str, np.ndarray]:
        arrays = _by_name(inputs)
        count = len(next(iter(arrays.values())))
        step = fixed if fixed > 0 else count
        rows = np.minimum(np.arange(-(-count // step) * step), count - 1)  # the last is repeated
        parts = [
            runner(**{name: x[rows[start : start + step]] for name, x in arrays.items()})
            for start in range(0, len(rows), step)
        ]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {name: values[:count] for name, values in outputs.items()}

    run.card = card.decode()  # type: ignore[attr-defined]
    return run


def count_litert_operators(path: str | os.PathLike[str]) -> collections.Counter[str]:
    """Counts the operators of each type in a LiteRT file."""
    return collections.Counter(each["op_name"] for each in litert_operators(_interpreter(path)))


@dataclasses.dataclass(frozen=True)
class LiteRTKernels:
    """Operators of a LiteRT file that XNNPACK computes on this machine.

    Args:
        xnnpack: Operators that XNNPACK computes, counted by name.
        builtin: Operators that are left to LiteRT's built-in kernels, counted by name.
        parts: Number of times per image that XNNPACK starts.
    """

    xnnpack: collections.Counter[str]
    builtin: collections.Counter[str]
    parts: int

    def __str__(self) -> str:
        taken, left = self.xnnpack.total(), self.builtin.total()
        names = ", ".join(f"{count} {name}" for name, count in self.builtin.most_common())
        return (
            f"XNNPACK computes {taken} of {taken + left} operators in {self.parts} parts, built-in "
            f"kernels {names or 'none'}"
        )


def litert_kernels(path: str | os.PathLike[str]) -> LiteRTKernels:
    """Counts the operators of a LiteRT file that XNNPACK computes, and those that are left.

    Slower kernels compute each operator that XNNPACK leaves, which splits the rest into parts.

    Args:
        path: The file.

    Returns:
        A `LiteRTKernels`.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If it is no LiteRT file.
        ImportError: If `ai_edge_litert` is not installed.

    Example:

    >>> print(keras_vit.export.litert_kernels("model.tflite"))
    """
    if find_format(path) != "litert":
        raise ValueError(f"`path` must be a LiteRT file. Received: {os.fspath(path)!r}.")
    interpreter = _interpreter(path)
    operators = {each["index"]: each for each in litert_operators(interpreter)}
    makers = {int(tensor): each for each in operators.values() for tensor in each["outputs"]}
    interpreter.allocate_tensors()  # now delegates take their operators
    delegates = [each for each in litert_operators(interpreter) if each["index"] not in operators]
    taken: set[int] = set()
    for delegate in delegates:  # back from its outputs to its inputs
        ends = {int(tensor) for tensor in delegate["inputs"]}
        tensors = [int(tensor) for tensor in delegate["outputs"]]
        while tensors:
            tensor = tensors.pop()
            if tensor in ends or tensor not in makers or makers[tensor]["index"] in taken:
                continue
            taken.add(makers[tensor]["index"])
            tensors += [int(each) for each in makers[tensor]["inputs"]]
    names = {index: each["op_name"] for index, each in operators.items()}
    return LiteRTKernels(
        collections.Counter(names[index] for index in taken),
        collections.Counter(name for index, name in names.items() if index not in taken),
        len(delegates),
    )


def _interpreter(path: str | os.PathLike[str]) -> Interpreter:
    with needing("litert", "LiteRT files need ai-edge-litert"):
        from ai_edge_litert.interpreter import Interpreter
    return Interpreter(model_path=os.fspath(path), num_threads=count_cores())


def load_onnx(path: str | os.PathLike[str]) -> Runner:
    """Loads an ONNX file in ONNX Runtime as a function from pixels to named outputs.

    Raises:
        ImportError: If `onnxruntime` is not installed.
    """
    import_onnx()
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Any) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, _by_name(inputs)), strict=True))

    metadata = session.get_modelmeta().custom_metadata_map
    run.card = metadata.get("model_card")  # type: ignore[attr-defined]
    return run


def _by_name(inputs: Any) -> dict[str, np.ndarray]:
    return inputs if isinstance(inputs, dict) else {"pixels": np.asarray(inputs, "float32")}


def load_openvino(path: str | os.PathLike[str], precision: str = "float32") -> Runner:
    """Loads an OpenVINO or ONNX file in OpenVINO as a function from pixels to named outputs.

    Args:
        path: The file.
        precision: `"bfloat16"` computes in it, which is OpenVINO's own choice on processors that
            can, whatever the file has; all others in float32.

    Raises:
        ImportError: If `openvino` is not installed.
        ValueError: If the processor has no bfloat16 units.
    """
    core = import_openvino().Core()
    if precision == "bfloat16" and "BF16" not in core.get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    ):
        raise ValueError("OpenVINO has no bfloat16 on this processor.")
    hint = "bf16" if precision == "bfloat16" else "f32"
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint}
    read = core.read_model(os.fspath(path))
    # Where the compiler removes the last operator, such as a bias of zeros, it adds another name.
    names = [output.get_any_name() for output in read.outputs]
    compiled = core.compile_model(read, "CPU", options)
    request = compiled.create_infer_request()

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        results = request.infer(_by_name(pixels))
        return {name: np.array(results[index]) for index, name in enumerate(names)}

    has_card = read.has_rt_info("model_card")
    card = read.get_rt_info("model_card").value if has_card else None
    run.card = card  # type: ignore[attr-defined]
    return run


def import_openvino(with_nncf: bool = False) -> types.ModuleType:
    """Imports `openvino`, and checks that `nncf` is installed where it quantises.

    Raises:
        ImportError: If a package is missing. The message says how to install it.
    """
    with needing("openvino", "OpenVINO needs openvino, and its int8 needs nncf"):
        import openvino

        if with_nncf:
            import nncf  # noqa: F401 - only whether it is there
    return openvino


def import_onnx() -> types.ModuleType:
    """Imports `onnx`, and checks that the other packages of an export are installed.

    Raises:
        ImportError: If a package is missing. The message says how to install it.
    """
    with needing("onnx", "ONNX exports need tf2onnx and onnxruntime"):
        import onnx
        import onnxruntime  # noqa: F401 - only whether it is there
        import tf2onnx  # noqa: F401 - only whether it is there
    return onnx
