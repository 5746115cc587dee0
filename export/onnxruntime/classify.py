"""Logits of an image from an ONNX file: NumPy, Pillow and onnxruntime only.

pip install onnxruntime pillow
python export/onnxruntime/classify.py onnx/float32.onnx cat.jpg
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from PIL import Image


def classify(model: str, image: str, top: int = 5) -> list[tuple[int, float]]:
    """Classes and logits, the largest first. The image is squashed to the model's size."""
    session = onnxruntime.InferenceSession(model, providers=onnxruntime.get_available_providers())
    _, height, width, channels = session.get_inputs()[0].shape
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    pixels = Image.open(image).convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(pixels, "float32").reshape(1, height, width, channels)
    logits = session.run(["logits"], {"pixels": pixels})[0][0]
    return [(int(i), float(logits[i])) for i in np.argsort(-logits)[:top]]


if __name__ == "__main__":
    for index, logit in classify(*sys.argv[1:3]):
        print(f"{index}\t{logit:.3f}")
