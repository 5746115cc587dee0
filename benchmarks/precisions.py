"""Every precision of every format on trained weights of others and real photographs.

    scripts/real-network /tmp/real
    python benchmarks/precisions.py /tmp/real/network PHOTOGRAPHS --name CIFAR-10 \
        --output precisions.jsonl

The network is a ViT-S/14 of DINOv2 that others trained further (not DINOv2 as published). Its head
is a logistic regression on the features of 300 photographs at 224 pixels. PHOTOGRAPHS has a folder
for each class; the results in docs/ are of textile without and with defects (the folder
`textile_images/simulated` in the wheel conformal-clip-data 0.1.4). int8 is calibrated on 100 of the
300. Prints and appends a JSON line for each file: accuracy on other photographs, agreement with the
float32 model in Keras, mean cosine of features, bytes, and processor seconds for an image. Rows
that are in the output are not measured again. `peer` rows are of other projects' own quantisers on
the same model: ONNX Runtime's static one, NNCF's defaults, ai-edge-quantizer's static int8. With
`--timm PYTHON` (an environment with PyTorch and timm) `timm` rows have the features of timm's model
under our head. `--budgets FILE` searches the smallest file that loses at most one point instead,
and adds rows as those of agreement.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from agreement import within_budget
from machine import require, write_row

import keras_vit
from keras_vit.export.formats import FORMATS, newest_version
from keras_vit.export.inference import prepare
from keras_vit.export.verify import resize_images, size_of

TRAINED, CALIBRATED, BATCH, PART, BUDGET = 300, 100, 8, 100, 0.01
PACKAGES = {  # that the rows of a format need
    "litert": ["ai-edge-litert", "ai-edge-quantizer"],
    "onnx": ["onnxruntime", "tf2onnx"],
    "openvino": ["openvino", "nncf", "onnxruntime", "tf2onnx"],
    "peer": [
        "ai-edge-litert",
        "ai-edge-quantizer",
        "openvino",
        "nncf",
        "onnxruntime",
        "sympy",
        "tf2onnx",
    ],
}
RUNS = [
    *(("keras", precision) for precision in ("float32", "bfloat16", "float16")),
    *(("keras", precision) for precision in ("int8", "int4", "float8")),
    *(("saved_model", precision) for precision in ("float32", "bfloat16", "float16")),
    *(("litert", precision) for precision in ("float32", "float16", "dynamic", "int8", "int4")),
    *(("onnx", precision) for precision in ("float32", "float16", "int8")),
    *(("openvino", precision) for precision in ("float32", "float16", "bfloat16", "int8")),
    *(("peer", name) for name in ("onnxruntime", "nncf", "ai-edge-quantizer")),
    *(("timm", precision) for precision in ("float32", "bfloat16", "float16")),
]
OUTPUTS = ("logits", "features")


def classify(network: str, images, cache: pathlib.Path) -> keras.Model:
    """The network with a logistic regression on its features, which are computed once."""
    if not (cache / "model.keras").exists():
        model = keras_vit.from_pretrained(network, input_shape=(224, 224, 3))
        settings = [1e-3, 1e-2, 1e-1]
        result = keras_vit.train.fit_probe(
            model, images, None, cache / "features", "logistic", settings
        )
        result.model.save(cache / "model.keras")
    return keras.saving.load_model(cache / "model.keras")


def find_runner(model, format: str, precision: str, samples, folder: pathlib.Path):
    """A function from pixels to outputs, and bytes of the file, which is written once."""
    if format == "keras":
        return run_keras(model, precision)
    if format == "peer":
        format, name, write = PEERS[precision]
        path = folder / name
        if not path.exists():
            write(model, samples, path)
        if precision == "ai-edge-quantizer":
            return load_whole_numbers(path), size_of(path)
        return FORMATS[format].load(path), size_of(path)
    path = folder / FORMATS[format].file
    if not path.exists():
        options = {"calibration": samples} if precision in FORMATS[format].calibrated else {}
        # The table says how far apart they are, whatever it is.
        options["tolerance"] = 10.0
        if format != "saved_model":  # which has all outputs
            options["outputs"] = OUTPUTS
        FORMATS[format].export(model, path, precision=precision, **options)
    return FORMATS[format].load(newest_version(path)), size_of(path)


def run_keras(model, precision: str):
    if precision in ("int8", "int4", "float8"):
        model.quantize(precision)
        inference = prepare(model, merge=False)
    else:
        inference = prepare(model, precision)
    size = sum(np.asarray(v).nbytes for v in inference.model.variables)
    return traced_once(inference), size


def traced_once(inference):
    """A function from pixels to arrays; `Inference.run` traces the model in every call."""
    function = tf.function(inference, jit_compile=False)
    return lambda pixels: {name: x.numpy() for name, x in function(tf.constant(pixels)).items()}


def write_by_onnxruntime(model, samples, path: pathlib.Path) -> None:
    """ONNX Runtime's static quantiser, after its own preparation, with scales for each channel."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        rest = iter(resize_images(samples, prepare(model)))

        def get_next(self):
            image = next(self.rest, None)
            return None if image is None else {"pixels": image[None]}

    with tempfile.TemporaryDirectory() as folder:
        exact = keras_vit.export_onnx(model, f"{folder}/a.onnx", outputs=OUTPUTS).path
        quant_pre_process(exact, f"{folder}/b.onnx")
        quantization.quantize_static(f"{folder}/b.onnx", path, Reader(), per_channel=True)


def write_by_nncf(model, samples, path: pathlib.Path) -> None:
    """NNCF's defaults for transformers."""
    import nncf
    import openvino

    pixels = resize_images(samples, prepare(model))
    with tempfile.TemporaryDirectory() as folder:
        exact = keras_vit.export_onnx(model, f"{folder}/a.onnx", outputs=OUTPUTS).path
        graph = openvino.Core().read_model(exact)
        data, kind = nncf.Dataset([image[None] for image in pixels]), nncf.ModelType.TRANSFORMER
        graph = nncf.quantize(graph, data, model_type=kind, subset_size=len(pixels))
        openvino.save_model(graph, path, compress_to_fp16=False)


def write_by_ai_edge_quantizer(model, samples, path: pathlib.Path) -> None:
    """ai-edge-quantizer's recipe for 8-bit weights and activations."""
    from ai_edge_quantizer import quantizer, recipe

    pixels = resize_images(samples, prepare(model))
    with tempfile.TemporaryDirectory() as folder:
        exact = keras_vit.export_litert(model, f"{folder}/a.tflite", outputs=OUTPUTS).path
        tool = quantizer.Quantizer(str(exact), recipe.static_wi8_ai8())
        ranges = tool.calibrate({"serving_default": [{"pixels": image[None]} for image in pixels]})
        tool.quantize(ranges).export_model(str(path))


def load_whole_numbers(path: pathlib.Path):
    """A LiteRT file whose images and outputs are integers, as a function of floats."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path), num_threads=os.cpu_count()).get_signature_runner()
    known, given = runner.get_output_details(), runner.get_input_details()["pixels"]
    limits, (scale, zero) = np.iinfo(given["dtype"]), given["quantization"]

    def run(pixels):
        whole = np.clip(np.round(pixels / scale + zero), limits.min, limits.max)
        found = [runner(pixels=each[None].astype(given["dtype"])) for each in whole]
        parts = {name: np.concatenate([each[name] for each in found]) for name in known}
        return {
            name: (x.astype("float32") - known[name]["quantization"][1])
            * known[name]["quantization"][0]
            for name, x in parts.items()
        }

    return run


PEERS = {
    "onnxruntime": ("onnx", "model.onnx", write_by_onnxruntime),
    "nncf": ("openvino", "model.xml", write_by_nncf),
    "ai-edge-quantizer": ("litert", "model.tflite", write_by_ai_edge_quantizer),
}


def outputs_of(model, format, precision, samples, folder: pathlib.Path, files, timm: str):
    """Outputs for all files and the bytes of the weights; timm's has no file."""
    if format == "timm":
        return run_timm(model, precision, timm, files, folder), 0
    runner, size = find_runner(model, format, precision, samples, folder)
    return answer(runner, files, prepare(model), folder), size


def run_timm(model, precision: str, python: str, files, folder: pathlib.Path) -> dict:
    """Outputs of timm's model for all files, under the head of ours."""
    inference = prepare(model)
    pixels = resize_images(keras_vit.data.read_images(files), inference)
    known = inference.preprocessing
    pixels = (pixels - np.asarray(known.mean)) / np.asarray(known.std)
    np.save(folder / "pixels.npy", pixels.astype("float32"))
    keras_vit.save_weights(model, folder / "timm.safetensors", layout="timm")
    script = pathlib.Path(__file__).parent / "contestants" / "timm_precision.py"
    command = [python, script, folder / "timm.safetensors", folder / "pixels.npy"]
    path = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    subprocess.run([*command, folder / "timm.npy", precision], check=True, env=path)
    kernel, bias = model.get_layer("head").get_weights()
    features = np.load(folder / "timm.npy")
    return {"features": features, "logits": features @ kernel + bias}


def answer(runner, files, inference, folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Outputs for all files and processor seconds of an image, kept after every so many files."""
    parts = []
    for start in range(0, len(files), PART):
        kept = folder / f"answers-{start}.npz"
        if not kept.exists():
            images = keras_vit.data.read_images(files[start : start + PART])
            pixels = resize_images(images, inference)
            runner(pixels[:BATCH])  # the first call compiles
            batches, begin = range(0, len(pixels), BATCH), time.process_time()
            outputs = [runner(pixels[i : i + BATCH]) for i in batches]
            seconds = (time.process_time() - begin) / len(pixels)
            found = {name: np.concatenate([each[name] for each in outputs]) for name in OUTPUTS}
            np.savez(kept, seconds=np.full(len(pixels), seconds), **found)
        parts.append(dict(np.load(kept)))
    return {name: np.concatenate([part[name] for part in parts])[: len(files)] for name in parts[0]}


def compare(found: dict, exact: dict, labels: np.ndarray) -> dict:
    a, b = found["features"].astype("float64"), exact["features"].astype("float64")
    cosines = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    classes, known = found["logits"].argmax(-1), exact["logits"].argmax(-1)
    return {
        "cosine": round(float(cosines.mean()), 5),
        "agreement": round(float(np.mean(classes == known)), 4),
        "accuracy": round(float(np.mean(classes == labels)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("network")
    parser.add_argument("photographs")
    parser.add_argument("--output", type=pathlib.Path, help="rows of all precisions")
    parser.add_argument("--name", required=True, help="of the photographs, kept in the rows")
    parser.add_argument("--cache", type=pathlib.Path, default="/tmp/precisions")
    parser.add_argument("--timm", help="Python of an environment with timm and PyTorch")
    parser.add_argument("--count", type=int, default=1000, help="photographs to test on")
    parser.add_argument("--only", nargs="+", help="such as litert/int8")
    parser.add_argument("--budgets", type=pathlib.Path, help="search within a budget, no more")
    parser.add_argument("--note", default="", help='kept in the rows, such as "before"')
    options = parser.parse_args()
    if not options.output and not options.budgets:
        parser.error("--output FILE, or --budgets FILE, is missing")
    chosen = options.only or ["/".join(run) for run in RUNS]
    runs = [run for run in RUNS if "/".join(run) in chosen and (run[0] != "timm" or options.timm)]
    packages = sorted({name for format, _ in runs for name in PACKAGES.get(format, ())})
    require(*packages)
    options.cache.mkdir(parents=True, exist_ok=True)
    rest, trained = keras_vit.data.read_folder(options.photographs).split(TRAINED)
    _, tested = rest.split(1000)
    order = np.random.default_rng(0).permutation(1000)[: options.count]  # of all classes
    files, labels = np.asarray(tested.file_names())[order], np.asarray(tested.rows[1])[order]
    model = classify(options.network, trained, options.cache)
    inference = prepare(model)
    spread = trained.file_names()[:: TRAINED // CALIBRATED][:CALIBRATED]
    samples = keras_vit.data.read_images(spread)
    if options.budgets:
        held_out = tested.subset(np.sort(order))
        for to in options.only or ("litert", "onnx", "openvino"):
            row = {"task": f"{options.name}, ViT-S/14 of others"}
            row |= within_budget(model, held_out, to, BUDGET, trained)
            write_row(
                {**row, "tensorflow": tf.__version__, "keras": keras.__version__}, options.budgets
            )
        return
    folder = options.cache / "exact"
    folder.mkdir(exist_ok=True)
    exact = answer(traced_once(inference), files, inference, folder)
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    keys = ("photographs", "format", "precision", "note")
    done = {tuple(row[key] for key in keys) for row in map(json.loads, lines)}
    names = ("tensorflow", "keras", *packages)
    versions = {name: importlib.metadata.version(name) for name in names}
    for format, precision in runs:
        key = dict(zip(keys, (options.name, format, precision, options.note), strict=True))
        if tuple(key.values()) in done:
            continue
        model = classify(options.network, trained, options.cache)  # as Keras changes it in place
        folder = options.cache / f"{format}-{precision}-{options.note}"
        folder.mkdir(exist_ok=True)
        found, size = outputs_of(model, format, precision, samples, folder, files, options.timm)
        row = {**key, "images": len(files), **compare(found, exact, labels), "bytes": size}
        if "seconds" in found:
            row["processor_s"] = round(float(found["seconds"].mean()), 3)
        row |= versions
        write_row(row, options.output)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
