"""Whether exported files give the answers of a model that was trained on real images.

    python benchmarks/agreement.py > docs/benchmarks/agreement.jsonl
    python benchmarks/agreement.py --formats openvino  # where openvino and nncf are installed

Trains a small ViT on each of two tasks from images that scikit-learn and scikit-image bring along:
handwritten digits (10 classes), and crops of photographs of 64 x 64 pixels in colour (which of 20
photographs; test crops come from the right quarter of each, that training never sees). Exports each
model in every precision of LiteRT and ONNX (and OpenVINO), int8 calibrated on 100 training images,
and prints a JSON line for each file (size over float32's, accuracy on test images, top-1 agreement
with the model), and for the smallest file within a budget of accuracy (`find_export`).
About seven minutes of a processor's time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from machine import require

import keras_vit

FILES = (
    ("litert", "float32"),
    ("litert", "float16"),
    ("litert", "dynamic"),
    ("litert", "int8"),
    ("litert", "int4"),
    ("onnx", "float32"),
    ("onnx", "float16"),
    ("onnx", "int8"),
    ("openvino", "float32"),
    ("openvino", "float16"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
)
FORMATS = ("litert", "onnx", "openvino")
NEEDED = {
    "litert": ["ai-edge-litert", "ai-edge-quantizer"],
    "onnx": ["onnxruntime", "tf2onnx"],
    "openvino": ["openvino", "nncf", "tf2onnx"],
}
IMAGES = ("scikit-learn", "scikit-image")
PHOTOGRAPHS = (
    ("skimage/data", "astronaut.png brick.png camera.png cell.png chelsea.png coffee.png"),
    ("skimage/data", "coins.png color.png grass.png gravel.png hubble_deep_field.jpg ihc.png"),
    ("skimage/data", "moon.png motorcycle_left.png page.png retina.jpg rocket.jpg text.png"),
    ("sklearn/datasets/images", "china.jpg flower.jpg"),
)
CROP = 64


def digits():
    """Training and test images of shape (B, 8, 8, 1) in [0, 255], each with their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1) * (255 / 16)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].astype("float32"), labels[order]
    return shifted(images[:1300], labels[:1300]), (images[1300:], labels[1300:])


def shifted(images: np.ndarray, labels: np.ndarray, copies: int = 4):
    """Each image several times, moved by up to a pixel."""
    rng = np.random.default_rng(0)
    moves = rng.integers(-1, 2, (copies, len(images), 2))
    moved = [
        np.roll(image, move, axis=(0, 1))
        for copy in moves
        for image, move in zip(images, copy, strict=True)
    ]
    return np.stack(moved), np.tile(labels, copies)


def photographs():
    """Crops of photographs, shape (B, 64, 64, 3), and which photograph each is from."""
    parts = {"training": ([], []), "test": ([], [])}
    rng = np.random.default_rng(0)
    for label, photograph in enumerate(read_photographs()):
        wall = photograph.shape[1] * 3 // 4
        for part, pixels, count in (
            ("training", photograph[:, :wall], 250),
            ("test", photograph[:, wall:], 100),
        ):
            crops, labels = parts[part]
            crops += [crop(pixels, rng) for _ in range(count)]
            labels += [label] * count
    return [(np.stack(crops), np.array(labels)) for crops, labels in parts.values()]


def read_photographs() -> list[np.ndarray]:
    """Photographs in float32, shape (h, w, 3), the large ones halved until crops show something."""
    found = []
    for folder, names in PHOTOGRAPHS:
        package, _, below = folder.partition("/")
        folder = pathlib.Path(importlib.import_module(package).__file__).parent / below
        found += keras_vit.data.read_images([folder / name for name in names.split()])
    photographs = []
    for image in found:
        while min(image.shape[:2]) > 600:
            image = image[: len(image) // 2 * 2, : image.shape[1] // 2 * 2]
            image = (image[::2, ::2] // 2 + image[1::2, 1::2] // 2).astype("uint8")
        photographs.append(image.astype("float32"))
    return photographs


def crop(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random square, as it is or mirrored."""
    top, left = (rng.integers(0, side - CROP + 1) for side in pixels.shape[:2])
    return pixels[top : top + CROP, left : left + CROP][:, :: rng.choice([-1, 1])]


def train(data, classes: int, patch_size: int, epochs: int) -> keras.Model:
    images, labels = data
    keras.utils.set_random_seed(0)
    config = keras_vit.make_config(
        patch_size=patch_size,
        width=96,
        depth=4,
        num_heads=4,
        mlp_dim=384,
        image_size=images.shape[1:3],
        channels=images.shape[3],
        classes=classes,
        position_embedding="sincos_2d",  # so few images teach no places
    )
    model = keras_vit.build_vit(config)
    steps = epochs * -(-len(images) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, 0.0, "rate", 2e-3, steps // 10)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.3, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(images, labels, batch_size=64, epochs=epochs, verbose=0)
    return model


def measure(model: keras.Model, calibration: np.ndarray, test, formats: list[str]) -> list[dict]:
    """A row a file: what it weighs and what it answers, beside the model."""
    rows, exact = [], {}
    for format, precision in FILES:
        if format not in formats:
            continue
        is_calibrated = precision == "int8" and format != "onnx"
        options = {"calibration": calibration} if is_calibrated else {}
        row, size = run_file(model, format, precision, test, options)
        row["size"] = round(size / exact.setdefault(format, size), 3)
        rows.append(row)
    return rows


def run_file(model, format: str, precision: str, test, options: dict) -> tuple[dict, int]:
    images, labels = test
    loaders = {"litert": run_litert, "onnx": run_onnx, "openvino": run_openvino}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.xml"  # a name that OpenVINO demands
        export = getattr(keras_vit.export, f"export_{format}")
        # The table says how far apart they are, whatever it is.
        report = export(model, path, precision, images=images, tolerance=10.0, **options)
        answers = loaders[format](path, images).argmax(-1)
    row = {"format": format, "precision": precision, "images": len(images)}
    row["difference"] = float(f"{report.max_difference:.2g}")
    row["top1_agreement"] = round(report.top1_agreement, 4)
    row["accuracy"] = round(float(np.mean(answers == labels)), 4)
    return row, report.size


def run_litert(path: pathlib.Path, images: np.ndarray) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path)).get_signature_runner("serving_default")
    return np.concatenate([runner(pixels=image[None])["logits"] for image in images])


def run_onnx(path: pathlib.Path, images: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"pixels": images})[0]


def run_openvino(path: pathlib.Path, images: np.ndarray) -> np.ndarray:
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(str(path), "CPU", options)([images])["logits"]


BUDGETS = (("litert", 0.0), ("litert", 0.005), ("onnx", 0.0), ("openvino", 0.0))


def within_budgets(
    model: keras.Model, calibration: np.ndarray, test, formats: list[str]
) -> list[dict]:
    """A row for each budget: the smallest file that keeps it."""
    names = [str(number) for number in range(model.output_shape[-1])]
    images = keras_vit.data.read_arrays(*test, names)
    samples = keras_vit.data.read_arrays(calibration, np.arange(len(calibration)) % 2, names)
    return [
        within_budget(model, images, to, budget, samples) for to, budget in BUDGETS if to in formats
    ]


def within_budget(model: keras.Model, images, to: str, budget: float, samples=None) -> dict:
    """The smallest file of a format that keeps a budget."""
    found = keras_vit.export.find_export(
        model,
        images,
        goal="size",
        budget=budget,
        runtimes=[{"onnx": "onnxruntime"}.get(to, to)],
        calibration=samples,
    ).figures
    row = {"to": to, "budget": budget, "precision": found["precision"]}
    row["float_layers"] = len(found["float_layers"])
    row["size"] = round(found["size"] / found["candidates"][0]["size"], 3)
    row["accuracy"] = round(found["after"]["accuracy"], 4)
    row |= {"lost": found["lost"], "gained": found["gained"]}
    row["drop_interval"] = [round(value, 4) for value in found["drop_interval"]]
    row["exports"] = len(found["candidates"])
    return row


TASKS = {
    "digits": (digits, {"classes": 10, "patch_size": 2, "epochs": 20}),
    "photographs": (photographs, {"classes": 20, "patch_size": 16, "epochs": 20}),
}


def versions() -> dict:
    names = [
        "tensorflow",
        "keras",
        "ai-edge-litert",
        "ai-edge-quantizer",
        "onnxruntime",
        "openvino",
        "nncf",
        "scikit-learn",
        "scikit-image",
    ]
    found = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name.replace("-", "_")] = importlib.metadata.version(name)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--formats", nargs="+", default=["litert", "onnx"], choices=FORMATS)
    options = parser.parse_args(arguments)
    formats = options.formats
    require(*{package for name in formats for package in NEEDED[name]}, *IMAGES)
    for name in options.tasks:
        load, settings = TASKS[name]
        training, (images, labels) = load()
        model = train(training, **settings)
        answers = model.predict(images, verbose=0).argmax(-1)
        row = {"format": "model", "images": len(images)}
        row["accuracy"] = round(float(np.mean(answers == labels)), 4)
        # Spread over all classes, however the images are sorted.
        calibration = training[0][:: -(-len(training[0]) // 100)]
        test = images, labels
        rows = [row, *measure(model, calibration, test, formats)]
        rows += within_budgets(model, calibration, test, formats)
        for row in rows:
            print(json.dumps({"task": name, **row, **versions()}), flush=True)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
