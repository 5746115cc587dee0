"""Exports a model to LiteRT in every precision.

    python export/litert/export.py model.keras --images photographs/ --to litert

`--images` are image files of the task, or folders of them. int8 is calibrated with at most a
hundred of them, and all files are checked on them; without images, int8 is left out. Prints size,
difference and latency of every file. Takes minutes for a B/16 on two cores.
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
    parser.add_argument("--to", default="litert", help="directory of the files")
    options = parser.parse_args(arguments)

    model = keras.saving.load_model(options.model)
    path = options.labels and pathlib.Path(options.labels)
    labels = path.read_text(encoding="utf-8-sig").splitlines() if path else None
    images = None
    if options.images:
        images = keras_vit.data.read_images(options.images, model.input_shape[-1], count=100)
    for precision in ("float32", "float16", "dynamic", *(["int8"] if images else [])):
        path = pathlib.Path(options.to) / f"{precision}.tflite"
        calibration = images if precision == "int8" else None
        report = keras_vit.export_litert(
            model, path, precision, labels, images=images, calibration=calibration
        )
        print(report)
    for row in keras_vit.export.litert_errors(model, images)[:5] if images else ():
        rounded = "at run time" if row.at_run_time else "in calibrated ranges"
        print(f"{row.error:.1%}, rounds {rounded}: {row.operator} {row.tensor}")


if __name__ == "__main__":
    main()
