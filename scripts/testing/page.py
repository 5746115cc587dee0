"""Writes a model, images and the expected outputs for `scripts/check-page`."""

from __future__ import annotations

import base64
import json
import pathlib
import shutil
import sys

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.data.decode import decode
from keras_vit.data.transforms import eval_transform
from tests.fixtures import fill_random

RATIOS: dict = {"crop_ratio": 0.875, "interpolation": "bilinear"}


def main(folder: str, model: str | None = None, *images: str) -> None:
    target = pathlib.Path(folder)
    if model is None:
        preprocessing = keras_vit.Preprocessing(**RATIOS)
        network = keras_vit.create_model("vit_ti16", classes=10, preprocessing=preprocessing)
        fill_random(network, stddev=0.05)
    else:
        network = keras.saving.load_model(model)
    network.save(target / "model.keras")
    labels = getattr(network, "class_names", None) or [f"class {x}" for x in "abcdefghij"]
    (target / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    (target / "images").mkdir()
    for path in images:
        shutil.copy(path, target / "images")
    if not images:
        write_images(target / "images")
    answers = {path.name: answer(network, path) for path in sorted((target / "images").iterdir())}
    (target / "golden.json").write_text(json.dumps({"labels": labels, "images": answers}))


def write_images(folder: pathlib.Path) -> None:
    """Photographs alike: smooth colours with noise, in several formats and sizes."""
    rng = np.random.default_rng(0)
    kinds = [("large.jpg", 900, 1200), ("tall.png", 500, 180), ("small.webp", 60, 90)]
    kinds += [("turned.jpg", 300, 400), ("grey.jpg", 240, 240), ("palette.png", 224, 224)]
    for name, height, width in kinds:
        y, x = np.mgrid[:height, :width][..., None] / max(height, width)
        waves = rng.uniform(2, 30, 3) * y + rng.uniform(2, 30, 3) * x + rng.uniform(0, 6, 3)
        values = 127.5 + 90 * np.sin(waves) + rng.normal(0, 8, (height, width, 3))
        image = Image.fromarray(np.clip(np.round(values), 0, 255).astype("uint8"))
        image = image.convert({"grey.jpg": "L", "palette.png": "P"}.get(name, "RGB"))
        exif = Image.Exif()
        if name == "turned.jpg":
            exif[0x0112] = 6
        lossless = {"lossless": True} if name.endswith("webp") else {"quality": 90}
        image.save(folder / name, exif=exif, **lossless)


def answer(network: keras.Model, path: pathlib.Path) -> dict:
    """Logits, and the pixels that they are of, of one image file."""
    from keras_vit.export.inference import prepare

    inference = prepare(network)
    image = decode(tf.io.read_file(str(path)))
    pixels = eval_transform(image, inference.preprocessing, inference.input_shape[:2])
    logits = inference.run(np.asarray(pixels)[None])["logits"][0]
    encoded = base64.b64encode(np.asarray(pixels, "float32").tobytes()).decode()
    return {"logits": logits.tolist(), "pixels": encoded}


if __name__ == "__main__":
    main(*sys.argv[1:])
