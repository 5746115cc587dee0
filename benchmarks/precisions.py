"""Every precision of every format on trained weights of others and real photographs.

    scripts/real-network /tmp/real
    python benchmarks/precisions.py /tmp/real/network PHOTOGRAPHS --output precisions.jsonl

The network is a ViT-S/14 of DINOv2 that others trained further (not DINOv2 as published). Its head
is a logistic regression on the features of 300 photographs at 224 pixels. PHOTOGRAPHS has a folder
for each class; the results in docs/ are of textile without and with defects (the folder
`textile_images/simulated` in the wheel conformal-clip-data 0.1.4). int8 is calibrated on 100 of the
300. Prints and appends a JSON line for each file: accuracy on other photographs, agreement with the
float32 model in Keras, mean cosine of features, bytes, and processor seconds for an image. Rows
that are in the output are not measured again. `peer` rows are of other projects' own quantisers on
the same model: ONNX Runtime's static one, NNCF's defaults, ai-edge-quantizer's static int8.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from machine import write_row

import keras_vit
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import prepare
from keras_vit.export.verify import resize_images

TRAINED, CALIBRATED, BATCH = 300, 100, 8
PACKAGES = ("tensorflow", "keras", "ai-edge-litert", "ai-edge-quantizer", "onnxruntime")
PACKAGES += ("openvino", "nncf")
RUNS = [
    *(("keras", precision) for precision in ("float32", "bfloat16", "float16")),
    *(("keras", precision) for precision in ("int8", "int4", "float8")),
    *(("saved_model", precision) for precision in ("float32", "bfloat16", "float16")),
    *(("litert", precision) for precision in ("float32", "float16", "dynamic", "int8", "int4")),
    *(("onnx", precision) for precision in ("float32", "float16", "int8")),
    *(("openvino", precision) for precision in ("float32", "float16", "bfloat16", "int8")),
    *(("peer", name) for name in ("onnxruntime", "nncf", "ai-edge-quantizer")),
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
    """A function from pixels to outputs, and the bytes of the weights."""
    if format == "keras":
        return run_keras(model, precision)
    if format == "peer":
        return PEERS[precision](model, samples, folder)
    path = folder / FORMATS[format].file
    is_calibrated = precision in FORMATS[format].calibrated
    options = {"calibration": samples} if is_calibrated else {}
    # The table says how far apart they are, whatever it is.
    report = FORMATS[format].export(
        model, path, precision, outputs=OUTPUTS, tolerance=10.0, **options
    )
    return FORMATS[format].load(report.path), report.size


def run_keras(model, precision: str):
    if precision in ("int8", "int4", "float8"):
        model.quantize(precision)
        inference = prepare(model, merge=False)
    else:
        inference = prepare(model, precision)
    size = sum(np.asarray(v).nbytes for v in inference.model.variables)
    return inference.run, size


def float_onnx(model, folder: pathlib.Path) -> pathlib.Path:
    return keras_vit.export_onnx(model, folder / "float.onnx", outputs=OUTPUTS).path


def run_onnxruntime(model, samples, folder: pathlib.Path):
    """ONNX Runtime's static quantiser, after its own preparation, at its defaults."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        rest = iter(resize_images(samples, prepare(model)))

        def get_next(self):
            image = next(self.rest, None)
            return None if image is None else {"pixels": image[None]}

    path = folder / "static.onnx"
    quant_pre_process(float_onnx(model, folder), folder / "prepared.onnx")
    quantization.quantize_static(folder / "prepared.onnx", path, Reader(), per_channel=True)
    return FORMATS["onnx"].load(path), path.stat().st_size


def run_nncf(model, samples, folder: pathlib.Path):
    """NNCF's defaults for transformers."""
    import nncf
    import openvino

    pixels = resize_images(samples, prepare(model))
    graph = openvino.Core().read_model(float_onnx(model, folder))
    data = nncf.Dataset([image[None] for image in pixels])
    graph = nncf.quantize(
        graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(pixels)
    )
    openvino.save_model(graph, folder / "model.xml", compress_to_fp16=False)
    size = sum(file.stat().st_size for file in folder.glob("model.*"))
    return FORMATS["openvino"].load(folder / "model.xml"), size


def run_ai_edge_quantizer(model, samples, folder: pathlib.Path):
    """ai-edge-quantizer's recipe for 8-bit weights and activations."""
    from ai_edge_quantizer import quantizer, recipe

    exact = keras_vit.export_litert(model, folder / "float.tflite", outputs=OUTPUTS).path
    tool = quantizer.Quantizer(str(exact), recipe.static_wi8_ai8())
    pixels = resize_images(samples, prepare(model))
    ranges = tool.calibrate({"serving_default": [{"pixels": image[None]} for image in pixels]})
    path = folder / "static.tflite"
    tool.quantize(ranges).export_model(str(path))
    return FORMATS["litert"].load(path), path.stat().st_size


PEERS = {
    "onnxruntime": run_onnxruntime,
    "nncf": run_nncf,
    "ai-edge-quantizer": run_ai_edge_quantizer,
}


def answers(runner, images, inference) -> tuple[dict[str, np.ndarray], float]:
    """Outputs of a runner for all images, and processor seconds for each."""
    parts, seconds = [], 0.0
    for start in range(0, len(images), BATCH):
        pixels = resize_images(images[start : start + BATCH], inference)
        begin = time.process_time()
        parts.append(runner(pixels))
        seconds += time.process_time() - begin if start else 0.0  # the first call compiles
    found = {name: np.concatenate([part[name] for part in parts]) for name in OUTPUTS}
    return found, seconds / max(len(images) - BATCH, 1)


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
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, default="/tmp/precisions")
    parser.add_argument("--count", type=int, default=1000, help="photographs to test on")
    parser.add_argument("--only", nargs="+", help="such as litert/int8")
    parser.add_argument("--note", default="", help='kept in the rows, such as "before"')
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    rest, trained = keras_vit.data.read_folder(options.photographs).split(TRAINED)
    _, tested = rest.split(options.count)
    model = classify(options.network, trained, options.cache)
    inference = prepare(model)
    names = np.asarray(trained.file_names())
    samples = keras_vit.data.read_images(names[:: TRAINED // CALIBRATED][:CALIBRATED])
    images = keras_vit.data.read_images(tested.file_names())
    labels = np.asarray(tested.rows[1])
    known = options.cache / f"exact-{options.count}.npz"
    if not known.exists():
        found, seconds = answers(inference.run, images, inference)
        np.savez(known, seconds=seconds, **found)
    exact = dict(np.load(known))
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    done = {(row["format"], row["precision"], row["note"]) for row in map(json.loads, lines)}
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    for format, precision in RUNS:
        if (format, precision, options.note) in done:
            continue
        if options.only and f"{format}/{precision}" not in options.only:
            continue
        model = classify(options.network, trained, options.cache)  # as Keras changes it in place
        with tempfile.TemporaryDirectory() as folder:
            runner, size = find_runner(model, format, precision, samples, pathlib.Path(folder))
            found, seconds = answers(runner, images, inference)
        row = {"format": format, "precision": precision, "note": options.note}
        row |= {"images": len(images), **compare(found, exact, labels), "bytes": size}
        row |= {"processor_s": round(seconds, 3), **versions}
        write_row(row, options.output)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
