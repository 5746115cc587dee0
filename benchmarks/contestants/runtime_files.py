"""Files in ONNX Runtime, OpenVINO and LiteRT: ours, and timm's own export."""

from __future__ import annotations

import pathlib

from contestants.worker import Run, normalized, random_batch, repeat, serve


def load(cell: dict) -> Run:
    import numpy as np

    images = random_batch(cell)[0]
    folder = pathlib.Path(cell["timm" if cell["interface"] == "timm" else "ours"])
    if cell["interface"] == "timm":  # normalised, channels first
        images = np.ascontiguousarray(normalized(images).transpose(0, 3, 1, 2))
    runtime = cell["who"].split()[0]
    if runtime == "litert":
        return run_litert(folder / f"{cell['precision']}_{cell['batch']}.tflite", images, cell)
    # OpenVINO rounds a float32 file to bfloat16 itself.
    kept = "float32" if runtime == "openvino" and cell["precision"] == "bfloat16" else None
    path = folder / f"{kept or cell['precision']}.onnx"
    open_file = run_openvino if runtime == "openvino" else run_onnxruntime
    return open_file(path, images, cell)


def run_onnxruntime(path: pathlib.Path, images, cell: dict) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cell["threads"]
    if not path.exists() and path.stem == "int8":
        quantize(path)
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return repeat(lambda: session.run(None, {name: images})[0])


def quantize(path: pathlib.Path) -> None:
    """timm's file in 8 bits, as ONNX Runtime's own tool writes it for dynamic quantisation."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source = str(path.with_name("float32.onnx"))
    quantize_dynamic(source, str(path), per_channel=True, weight_type=QuantType.QInt8)


def run_openvino(path: pathlib.Path, images, cell: dict) -> Run:
    import openvino

    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": cell["threads"],
        "INFERENCE_PRECISION_HINT": "bf16" if cell["precision"] == "bfloat16" else "f32",
    }
    core = openvino.Core()
    if "bf16" in options.values() and "BF16" not in core.get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    ):
        raise RuntimeError("OpenVINO has no bfloat16 on this processor")
    model = core.read_model(str(path))
    model.reshape(images.shape)
    request = core.compile_model(model, "CPU", options).create_infer_request()
    return repeat(lambda: request.infer([images])[0])


def run_litert(path: pathlib.Path, images, cell: dict) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path), num_threads=cell["threads"]).get_signature_runner()

    def step(path=path):
        return runner(pixels=images)["logits"]

    return repeat(step)


if __name__ == "__main__":
    serve(load)
