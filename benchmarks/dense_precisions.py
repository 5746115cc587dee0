"""Maps of a trained dense model of others in every format and precision, on photographs.

    scripts/real-network FOLDER
    python benchmarks/dense_precisions.py FOLDER --output docs/benchmarks/dense_precisions.jsonl
    python benchmarks/dense_precisions.py FOLDER --show docs/benchmarks/dense_precisions.jsonl

The model is that of examples/dense_model_of_others.py: a saliency map in [0, 1] of 224 x 224
pixels. Each row compares the maps of a file with those of the model in Keras on 20 pictures (14
photographs of scikit-image and scikit-learn, 6 of textile): intersection over union of what is
above 0.5 (mean of the pictures, and the worst), mean and largest difference, bytes, and processor
seconds of a picture. int8 is calibrated on 64 others: squares of eight further photographs of
scikit-image, and textile. `bytes` is the SavedModel through the bytes of PNG files, `salient` the
share of pixels above 0.5. Rows that are in the output are not measured again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import runpy
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from machine import require, write_row

import keras_vit
from keras_vit.export.formats import FORMATS, newest_version
from keras_vit.export.verify import size_of

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "dense_model_of_others.py"
TESTED = "astronaut camera chelsea coffee coins color hubble_deep_field ihc motorcycle_left retina"
TESTED = [*TESTED.split(), "rocket", "moon"]
CALIBRATED = "brick cell grass gravel page text clock_motion microaneurysms"
RUNS = [
    ("saved_model", "float32"),
    ("saved_model", "bytes"),
    *(("litert", precision) for precision in ("float32", "float16", "dynamic", "int8")),
    *(("onnx", precision) for precision in ("float32", "float16", "int8")),
    *(("openvino", precision) for precision in ("float32", "float16", "int8")),
]
NEEDED = {
    "litert": ["ai-edge-litert"],
    "onnx": ["onnxruntime", "tf2onnx"],
    "openvino": ["openvino", "nncf", "onnxruntime", "tf2onnx"],
}


def pictures(textile: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels to test on, `(20, 224, 224, 3)` in [0, 255], and others to calibrate on."""
    import skimage
    from sklearn.datasets import load_sample_images

    data = pathlib.Path(skimage.__file__).parent / "data"

    def photographs(names):
        found = [next(data.glob(f"{name}.*")) for name in names]
        return keras_vit.data.read_images(found)

    def of_textile(start, count):
        files = [sorted(folder.glob("*.jpg")) for folder in sorted(textile.iterdir())]
        return keras_vit.data.read_images([f for each in files for f in each[start:][:count]])

    tested = [*map(square, photographs(TESTED)), *map(square, load_sample_images().images)]
    tested += of_textile(0, 2)
    others = [part for image in photographs(CALIBRATED.split()) for part in corners(image)]
    return resized(tested), resized([*others, *of_textile(2, 11)])[:64]


def square(image):
    side = min(image.shape[:2])
    top, left = (np.array(image.shape[:2]) - side) // 2
    return image[top : top + side, left : left + side]


def corners(image):
    """Four squares of two thirds of the shorter side."""
    side = 2 * min(image.shape[:2]) // 3
    return [
        image[top : top + side, left : left + side]
        for top in (0, image.shape[0] - side)
        for left in (0, image.shape[1] - side)
    ]


def resized(images) -> np.ndarray:
    """Whole numbers, as an image file holds them."""
    pixels = [tf.image.resize(image, (224, 224), antialias=True).numpy() for image in images]
    return np.stack(pixels).round().clip(0, 255)


def find_runner(model, format: str, precision: str, samples, folder: pathlib.Path):
    """A function from pixels to maps, and the bytes of the file."""
    path = folder / FORMATS[format].file
    options = {"calibration": samples} if precision in FORMATS[format].calibrated else {}
    saved = "float32" if precision == "bytes" else precision
    # The table says how far apart they are, whatever it is.
    FORMATS[format].export(model, path, precision=saved, tolerance=10.0, **options)
    path = newest_version(path)
    if precision != "bytes":
        run = FORMATS[format].load(path)
        return lambda pixels: run(pixels)["importance"], size_of(path)
    loaded = tf.saved_model.load(str(path))

    def from_bytes(pixels):
        files = [tf.io.encode_png(tf.cast(image, tf.uint8)) for image in pixels]
        answers = loaded.signatures["serving_default"](image_bytes=tf.stack(files))
        return answers["importance"].numpy()

    return from_bytes, size_of(path)


def compare(maps: np.ndarray, exact: np.ndarray) -> dict:
    """How far maps are from those of the model."""
    found, known = maps > 0.5, exact > 0.5
    axes = (1, 2, 3)
    union = (found | known).sum(axes)
    shares = np.where(union, (found & known).sum(axes) / np.maximum(union, 1), 1.0)
    difference = np.abs(maps - exact)
    return {
        "iou": round(float(shares.mean()), 4),
        "worst_iou": round(float(shares.min()), 4),
        "mean_difference": float(f"{difference.mean():.2g}"),
        "largest_difference": float(f"{difference.max():.2g}"),
    }


def table(rows: list[dict]) -> str:
    lines = ["| format | precision | mean IoU | worst IoU | mean difference | largest | MiB |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["format"], row["precision"], f"{row['iou']:.3f}", f"{row['worst_iou']:.3f}"]
        cells += [f"{row['mean_difference']:.1e}", f"{row['largest_difference']:.1e}"]
        lines.append(f"| {' | '.join(cells)} | {row['bytes'] / 2**20:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="that scripts/real-network wrote")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", help="such as litert/int8")
    parser.add_argument("--note", default="", help='kept in the rows, such as "before"')
    parser.add_argument("--show", type=pathlib.Path, help="only print the table of such a file")
    options = parser.parse_args()
    if options.show:
        print(table([json.loads(line) for line in options.show.open()]))
        return
    runs = [run for run in RUNS if "/".join(run) in (options.only or ["/".join(run)])]
    packages = sorted({name for format, _ in runs for name in NEEDED.get(format, ())})
    require("scikit-image", "scikit-learn", "safetensors", *packages)
    exists = options.output and options.output.exists()
    lines = options.output.read_text().splitlines() if exists else []
    keys = ("format", "precision", "note")
    done = {tuple(row[key] for key in keys) for row in map(json.loads, lines)}
    example = runpy.run_path(str(EXAMPLE))
    model = example["build"](options.folder)
    example["load_decoder"](model, options.folder / "decoder.safetensors")
    pixels, samples = pictures(options.folder / "textile")
    exact = model.predict(pixels, batch_size=4, verbose=0)
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", *packages)}
    for format, precision in runs:
        if (format, precision, options.note) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            run, size = find_runner(model, format, precision, samples, pathlib.Path(folder))
            run(pixels[:1])  # the first call compiles
            begin = time.process_time()
            maps = np.concatenate([run(image[None]) for image in pixels])
            seconds = (time.process_time() - begin) / len(pixels)
        row = {"format": format, "precision": precision, "note": options.note}
        row |= {"pictures": len(pixels), "salient": round(float((exact > 0.5).mean()), 3)}
        row |= {**compare(maps, exact), "bytes": size, "processor_s": round(seconds, 3)}
        write_row({**row, "calibrated_on": len(samples), **versions}, options.output)


if __name__ == "__main__":
    main()
