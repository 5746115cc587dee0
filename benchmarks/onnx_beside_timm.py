"""Our ONNX file beside timm's own export of the same network, in ONNX Runtime on this machine.

    python benchmarks/onnx_beside_timm.py export runs/onnx      # where torch, timm and onnx are
    python benchmarks/onnx_beside_timm.py measure runs/onnx     # with the extra onnx

The first writes random weights of a timm ViT and what `timm.utils.onnx.onnx_export` makes of it,
by both of PyTorch's exporters. The second loads the same weights into our model, exports it, and
runs all files in one process and in turns: every round runs each once, so what else the machine
does meets all alike. Prints a JSON line for each file (nodes as written, and after ONNX Runtime's
optimizer) and for each file, batch and number of threads: the median over the rounds of the wall
time and of the processor's time of a call, and both over the faster of timm's. Ours also
normalises the pixels.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import tempfile
import time

import numpy as np
from machine import describe_machine

VARIANT, TIMM = "vit_b16", "vit_base_patch16_224"
IMAGE_SIZE = 224
TIMMS = ("timm_dynamo", "timm_torchscript")


def export_timm(folder: pathlib.Path) -> None:
    import timm
    import torch
    from safetensors.torch import save_file
    from timm.utils.onnx import onnx_export

    torch.manual_seed(0)
    model = timm.create_model(TIMM).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.02).add_("norm" in name and name.endswith("weight"))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "timm.safetensors")
    for name in TIMMS:
        image = torch.zeros(2, 3, IMAGE_SIZE, IMAGE_SIZE)
        path = str(folder / f"{name}.onnx")
        onnx_export(model, path, image, check=False, use_dynamo=name == "timm_dynamo")
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    (folder / "versions.json").write_text(json.dumps(versions))


def export_ours(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Our files, by name, of the weights that timm's have."""
    import keras_vit

    model = keras_vit.create_model(VARIANT, weights=folder / "timm.safetensors")
    paths = {}
    for name, options in {"keras_vit": {}, "keras_vit_opset_23": {"opset": 23}}.items():
        paths[name] = folder / f"{name}.onnx"
        paths[name].unlink(missing_ok=True)
        keras_vit.export_onnx(model, paths[name], **options)
    return paths


def open_session(path: pathlib.Path, threads: int, optimized: str = ""):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.optimized_model_filepath = optimized
    if optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return onnxruntime.InferenceSession(os.fspath(path), options, ["CPUExecutionProvider"])


def count_nodes(path: pathlib.Path) -> dict:
    """Nodes in a file, and how many of which kind ONNX Runtime makes of them."""
    import onnx

    with tempfile.TemporaryDirectory() as scratch:
        optimized = os.path.join(scratch, "optimized.onnx")
        open_session(path, 1, optimized)
        written, fused = (onnx.load(file).graph.node for file in (path, optimized))
    kinds = collections.Counter(node.op_type for node in fused)
    return {
        "nodes": len(written),
        "shape_nodes": sum(node.op_type == "Shape" for node in written),
        "nodes_optimized": len(fused),
        "kinds_optimized": dict(kinds.most_common()),
    }


def make_call(session, images: np.ndarray):
    """A call of a session with the images as it takes them, and their logits."""
    value = session.get_inputs()[0]
    if value.shape[-1] != 3:  # timm's: normalised, channels first
        images = np.ascontiguousarray(((images - 127.5) / 127.5).transpose(0, 3, 1, 2))
    return lambda: session.run(None, {value.name: images})[0]


def measure(paths: dict[str, pathlib.Path], batch: int, threads: int, rounds: int) -> list[dict]:
    shape = (batch, IMAGE_SIZE, IMAGE_SIZE, 3)
    images = np.random.default_rng(0).integers(0, 256, shape).astype("float32")
    calls = {name: make_call(open_session(path, threads), images) for name, path in paths.items()}
    expected = calls[TIMMS[0]]()
    times: dict[str, list] = {name: [] for name in calls}
    differences = {name: np.abs(call() - expected).max() for name, call in calls.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter(), time.process_time()
            call()
            times[name].append(
                (time.perf_counter() - start[0], time.process_time() - start[1]),
            )
    medians = {name: np.median(seconds, axis=0) for name, seconds in times.items()}
    wall, busy = np.min([medians[name] for name in TIMMS], axis=0)
    return [
        {
            "file": name,
            "batch": batch,
            "threads": threads,
            "rounds": rounds,
            "wall_ms": round(1e3 * median[0], 1),
            "processor_ms": round(1e3 * median[1], 1),
            "wall_beside_timm": round(median[0] / wall, 3),
            "processor_beside_timm": round(median[1] / busy, 3),
            "difference": float(f"{differences[name] / np.abs(expected).max():.1e}"),
        }
        for name, median in medians.items()
    ]


def describe_run(folder: pathlib.Path) -> dict:
    """The variant, the machine and all versions."""
    import keras
    import onnxruntime
    import tensorflow as tf

    return {
        "variant": VARIANT,
        **describe_machine(),
        "onnxruntime": onnxruntime.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        **json.loads((folder / "versions.json").read_text()),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=("export", "measure"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)

    if options.step == "export":
        export_timm(options.folder)
        return
    ours = export_ours(options.folder)
    paths = {**ours, **{name: options.folder / f"{name}.onnx" for name in TIMMS}}
    machine = describe_run(options.folder)
    for name, path in paths.items():
        print(json.dumps({"file": name, **count_nodes(path), **machine}), flush=True)
    for threads in options.threads:
        for batch in options.batches:
            for row in measure(paths, batch, threads, options.rounds):
                print(json.dumps({**row, **machine}), flush=True)


if __name__ == "__main__":
    main()
