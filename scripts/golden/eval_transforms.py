"""Compares `eval_transform` with timm and transformers: the table in docs/data.md.

`PYTHONPATH=. python scripts/golden/eval_transforms.py`. Their side is in tests/golden, written by
`make_eval.py`. Takes a minute.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
import zlib

import numpy as np
import safetensors.numpy
import tensorflow as tf

import keras_vit
from keras_vit.data.transforms import eval_transform
from keras_vit.weights.image_processors import timm_preprocessing, transformers_preprocessing
from scripts.golden.eval_cases import IMAGES, all_images, formula_arrays

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"


def read_cases() -> dict[str, dict[str, dict]]:
    """Cases by what is compared, `"pixels"` or `"logits"`, and by title."""
    return json.loads((GOLDEN / "eval_transforms.json").read_text())


def transformed(case: dict, is_timm: bool, images: list[np.ndarray]) -> np.ndarray:
    """Our pixels for the fields that a case states, in a graph for images of unknown size."""
    read = timm_preprocessing if is_timm else transformers_preprocessing
    preprocessing, size = read(case["fields"]), tuple(case["image_size"])
    function = tf.function(
        lambda image: eval_transform(image, preprocessing, size),
        input_signature=[tf.TensorSpec((None, None, 3), tf.uint8)],
    )
    return np.stack([function(image) for image in images])


def small_model(title: str, case: dict, folder: pathlib.Path) -> keras_vit.Model:
    """The small model of tests/golden/torch_outputs.json, loaded from a file of the project."""
    shapes = json.loads((GOLDEN / "torch_outputs.json").read_text())[title]["shapes"]
    path = folder / "model.safetensors"
    safetensors.numpy.save_file(formula_arrays(shapes), path)
    name, sidecar = "preprocessor_config.json", case["fields"]
    if title.startswith("timm"):
        name, sidecar = "config.json", {"pretrained_cfg": sidecar}
    (folder / name).write_text(json.dumps(sidecar))
    return keras_vit.from_pretrained(path, num_heads=4, input_shape=(32, 32, 3))


def equal_images(case: dict, pixels: np.ndarray) -> int:
    """Number of images whose pixels are all equal."""
    sums = [zlib.crc32(np.ascontiguousarray(x.astype("uint8")).tobytes()) for x in pixels]
    return sum(a == b for a, b in zip(sums, case["crc32"], strict=False))


def logit_difference(title: str, case: dict, images: list[np.ndarray], folder: str) -> float:
    """Largest difference of the small model's logits from theirs, relative to the largest."""
    model = small_model(title, case, pathlib.Path(folder))
    expected = np.array(case["logits"][: len(images)])
    logits = model.predict(transformed(case, title.startswith("timm"), images), verbose=0)
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


def main() -> None:
    cases, images = read_cases(), all_images()
    print("| transform | image size | images equal to the pixel | its variant on torchvision |")
    print("|---|---|---|---|")
    for title, case in cases["pixels"].items():
        count = equal_images(case, transformed(case, title.startswith("timm"), images))
        other = case.get("torchvision")
        gap = f"mean {other['mean']:.3f}, largest {other['largest']}" if other else ""
        size = "x".join(map(str, case["image_size"]))
        print(f"| {title} | {size} | {count} of {IMAGES} | {gap} |", flush=True)
    for title, case in cases["logits"].items():
        with tempfile.TemporaryDirectory() as folder:
            difference = logit_difference(title, case, images, folder)
        print(f"{title}: logits of {IMAGES} images differ by {difference:.1e}")


if __name__ == "__main__":
    main()
