"""Exports a model above the 2 GB limit of one ONNX file, and measures time and memory.

    python export/large.py vit_h14 --to runs/large

An H/14 needs 9 GB of memory, 3 GB of disk, and two minutes on two cores. The export compares the
file in ONNX Runtime with the model, and fails if they differ by more than 1e-5 of the largest
logit. Prints a JSON line: that difference, the bytes of the files, seconds, and the peak resident
memory of the process after building the model and after the export.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import resource
import time

import keras
import numpy as np
import onnxruntime
import tensorflow as tf

import keras_vit


def make_model(variant: str) -> keras.Model:
    model = keras_vit.create_model(variant)
    head = model.get_layer("head")  # zeros in a new model would hide all differences
    rng = np.random.default_rng(0)
    head.set_weights([rng.normal(0, 0.05, weight.shape) for weight in head.get_weights()])
    return model


def gigabytes_so_far() -> float:
    """Peak resident memory of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("variant", nargs="?", default="vit_h14")
    parser.add_argument("--to", default="runs/large", help="directory of the files")
    parser.add_argument("--precision", default="float32", choices=("float32", "float16", "int8"))
    options = parser.parse_args(arguments)

    model = make_model(options.variant)
    row = {
        "variant": options.variant,
        "precision": options.precision,
        "parameters": model.count_params(),
        "memory_model_gb": gigabytes_so_far(),
    }
    shape = (2, *model.input_shape[1:])
    images = np.random.default_rng(0).integers(0, 256, shape).astype("float32")
    start = time.perf_counter(), time.process_time()
    path = pathlib.Path(options.to) / f"{options.variant}.onnx"
    report = keras_vit.export_onnx(model, path, options.precision, images=images)
    row |= {
        "seconds": round(time.perf_counter() - start[0]),
        "processor_seconds": round(time.process_time() - start[1]),
        "memory_export_gb": gigabytes_so_far(),
        "difference": float(f"{report.max_difference:.2g}"),
        "files": {file.name: file.stat().st_size for file in sorted(path.parent.iterdir())},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "onnxruntime": onnxruntime.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
