"""What `keras_vit.export.optimize` tries for a whole model, and what it chooses on this machine.

    python benchmarks/optimize.py vit_ti16 vit_s16 vit_b16 --output docs/benchmarks/optimize.jsonl

Models have random weights and a random head; images are 32 crops of the two photographs of
scikit-learn. Agreement is that with the model's own top-1 class. Prints the table, and one JSON
line a model and batch size. What is not installed is listed with its reason. Needs scikit-learn and
Pillow; `pip install ".[litert,onnx,openvino]"` brings all runtimes.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import pathlib

import numpy as np
from machine import print_machine, write_row
from sklearn.datasets import load_sample_images

import keras_vit

PACKAGES = "tensorflow", "ai-edge-litert", "onnxruntime", "openvino", "nncf"


def crops(count: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    photographs = load_sample_images().images
    images = []
    for index in range(count):
        pixels = photographs[index % len(photographs)]
        top, left = (rng.integers(0, side - size + 1) for side in pixels.shape[:2])
        images.append(pixels[top : top + size, left : left + size])
    return np.stack(images).astype("float32")


def build(variant: str):
    model = keras_vit.create_model(variant, weights=None)
    rng = np.random.default_rng(0)
    for weight in model.get_layer("head").weights:  # made of zeros
        weight.assign(rng.normal(0, 0.5, weight.shape))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--min-agreement", type=float, default=0.99)
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    options = parser.parse_args()
    print_machine()
    installed = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
    for variant in options.variants:
        model = build(variant)
        images = crops(32, model.input_shape[1])
        for batch in options.batches:
            found = keras_vit.export.optimize(
                model, images, batch, options.precisions, options.min_agreement
            )
            print(found, flush=True)
            row = {"variant": variant, "batch": batch, "min_agreement": options.min_agreement}
            row["chosen"] = f"{found.chosen.runtime} {found.chosen.precision}"
            row["candidates"] = [dataclasses.asdict(each) for each in found.candidates]
            row["versions"] = {name: installed.get(name) for name in PACKAGES}
            write_row(row, options.output)


if __name__ == "__main__":
    main()
