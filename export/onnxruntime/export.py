"""Exports a model to ONNX in every precision.

    pip install "keras-vision-transformer[onnx]"
    python export/onnxruntime/export.py model.keras --images photographs/ --to onnx

All files are checked on the images (files, or folders of them), by default on synthetic images.
Prints size, difference and latency of every file. Takes minutes for a B/16 on two cores.
"""

from __future__ import annotations

import argparse
import pathlib

import keras

import keras_vit


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .keras file")
    parser.add_argument("--images", nargs="+", help="images of the task, or folders of them")
    parser.add_argument("--labels", help="text file with one class per line")
    parser.add_argument("--to", default="onnx", help="directory of the files")
    parser.add_argument("--opset", type=int, default=20)
    options = parser.parse_args(arguments)

    model = keras.saving.load_model(options.model)
    path = options.labels and pathlib.Path(options.labels)
    labels = path.read_text(encoding="utf-8-sig").splitlines() if path else None
    images = None
    if options.images:
        images = keras_vit.data.read_images(options.images, model.input_shape[-1], count=100)
    for precision in ("float32", "float16", "int8"):
        path = pathlib.Path(options.to) / f"{precision}.onnx"
        print(keras_vit.export_onnx(model, path, precision, labels, options.opset, images=images))


if __name__ == "__main__":
    main()
