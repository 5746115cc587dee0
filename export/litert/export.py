"""Exports a model to LiteRT in every precision.

    python export/litert/export.py model.keras --images photographs/ --to litert

`--images` is a folder of images of the task: int8 is calibrated with them, and all are checked on
them. Without it int8 is left out.
"""

from __future__ import annotations

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import keras_vit


def read_images(folder: str, count: int = 100) -> list[np.ndarray]:
    """The first images of a folder, each uint8 of shape (h, w, 3)."""
    files = sorted(file for file in pathlib.Path(folder).rglob("*") if file.is_file())[:count]
    return [
        tf.io.decode_image(file.read_bytes(), 3, expand_animations=False).numpy() for file in files
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .keras file")
    parser.add_argument("--images", help="folder of images of the task")
    parser.add_argument("--to", default="litert", help="directory of the files")
    options = parser.parse_args(arguments)

    model = keras.saving.load_model(options.model)
    photographs = read_images(options.images) if options.images else None
    for precision in ("float32", "float16", "dynamic", "int8"):
        if precision == "int8" and photographs is None:
            continue
        calibration = photographs if precision == "int8" else None
        path = pathlib.Path(options.to) / f"{precision}.tflite"
        print(keras_vit.export_litert(model, path, precision, calibration=calibration))
    for row in keras_vit.litert_errors(model, photographs)[:5] if photographs else ():
        print(f"{row.error:.2f} steps: {row.operator} {row.tensor}")


if __name__ == "__main__":
    main()
