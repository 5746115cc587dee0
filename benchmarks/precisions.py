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
that are in the output are not measured again; their table ends it. `--budgets FILE` searches the
smallest file that loses at most one point instead.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from machine import read_rows, require, write_row

import keras_vit
import keras_vit.data
import keras_vit.export
from keras_vit.export.formats import FORMATS, newest_version
from keras_vit.export.inference import prepare
from keras_vit.export.verify import resize_images, size_of

TRAINED, CALIBRATED, BATCH, PART, BUDGET = 300, 100, 8, 100, 0.01
PACKAGES = {  # that the rows of a format need
    "litert": ["ai-edge-litert", "ai-edge-quantizer"],
    "onnx": ["onnxruntime", "tf2onnx"],
    "openvino": ["openvino", "nncf", "onnxruntime", "tf2onnx"],
}
RUNS = [
    *(("keras", precision) for precision in ("float32", "bfloat16", "float16")),
    *(("keras", precision) for precision in ("int8", "int4", "float8")),
    *(("saved_model", precision) for precision in ("float32", "bfloat16", "float16")),
    *(("litert", precision) for precision in ("float32", "float16", "dynamic", "int8", "int4")),
    *(("onnx", precision) for precision in ("float32", "float16", "int8")),
    *(("openvino", precision) for precision in ("float32", "float16", "bfloat16", "int8")),
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
            found: dict = {name: np.concatenate([x[name] for x in outputs]) for name in OUTPUTS}
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


def within_budget(model: keras.Model, images, to: str, samples) -> dict:
    """The smallest file of a format that keeps the budget."""
    found = keras_vit.export.find_export(
        model,
        images,
        goal="size",
        budget=BUDGET,
        runtimes=[{"onnx": "onnxruntime"}.get(to, to)],
        calibration=samples,
    ).figures
    return {
        "to": to,
        "budget": BUDGET,
        "precision": found["precision"],
        "float_layers": len(found["float_layers"]),
        "size": round(found["size"] / found["candidates"][0]["size"], 3),
        "accuracy": round(found["after"]["accuracy"], 4),
        "drop_interval": [round(value, 4) for value in found["drop_interval"]],
        "exports": len(found["candidates"]),
    }


def table(rows: list[dict], photographs: str) -> list[str]:
    """A line for each format and precision, the most bits first."""
    columns = f"{photographs}: format | precision | cosine | top-1 agreement | accuracy | MiB"
    lines = [f"| {columns} | images per processor second |", f"|{'---|' * 7}"]
    order = {run: index for index, run in enumerate(RUNS)}
    rows = [row for row in rows if (row["format"], row["precision"]) in order]
    rows = [row for row in rows if row["photographs"] == photographs]
    for row in sorted(rows, key=lambda row: order[row["format"], row["precision"]]):
        name = f"{row['precision']} {row['note']}".strip()
        lines.append(
            f"| {row['format']} | {name} | {row['cosine']:.5f} | {row['agreement']:.1%} "
            f"| {row['accuracy']:.1%} | {row['bytes'] / 2**20:.1f} | {1 / row['processor_s']:.1f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("network")
    parser.add_argument("photographs")
    parser.add_argument("--output", type=pathlib.Path, help="rows of all precisions")
    parser.add_argument("--name", required=True, help="of the photographs, kept in the rows")
    parser.add_argument("--cache", type=pathlib.Path, default="/tmp/precisions")
    parser.add_argument("--count", type=int, default=1000, help="photographs to test on")
    parser.add_argument("--only", nargs="+", help="such as litert/int8")
    parser.add_argument("--budgets", type=pathlib.Path, help="search within a budget, no more")
    parser.add_argument("--note", default="", help='kept in the rows, such as "before"')
    options = parser.parse_args()
    if not options.output and not options.budgets:
        parser.error("--output FILE, or --budgets FILE, is missing")
    chosen = options.only or ["/".join(run) for run in RUNS]
    runs = [run for run in RUNS if "/".join(run) in chosen]
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
            versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
            smallest = within_budget(model, held_out, to, trained)
            write_row({"task": options.name, **smallest, **versions}, options.budgets)
        return
    folder = options.cache / "exact"
    folder.mkdir(exist_ok=True)
    exact = answer(traced_once(inference), files, inference, folder)
    keys = ("photographs", "format", "precision", "note")
    done = {tuple(row[key] for key in keys) for row in read_rows(options.output)}
    names = ("tensorflow", "keras", *packages)
    versions = {name: importlib.metadata.version(name) for name in names}
    for format, precision in runs:
        key = dict(zip(keys, (options.name, format, precision, options.note), strict=True))
        if tuple(key.values()) in done:
            continue
        model = classify(options.network, trained, options.cache)  # as Keras changes it in place
        folder = options.cache / f"{format}-{precision}-{options.note}"
        folder.mkdir(exist_ok=True)
        runner, size = find_runner(model, format, precision, samples, folder)
        found = answer(runner, files, prepare(model), folder)
        row: dict = {**key, "images": len(files), **compare(found, exact, labels), "bytes": size}
        row["processor_s"] = round(float(found["seconds"].mean()), 3)
        write_row({**row, **versions}, options.output)
        keras.backend.clear_session()
    print("\n".join(table(read_rows(options.output), options.name)))


if __name__ == "__main__":
    main()
