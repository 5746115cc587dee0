"""Classifies an image with a LiteRT file: NumPy, Pillow and ai-edge-litert only.

pip install ai-edge-litert pillow
python export/litert/classify.py litert/int8.tflite cat.jpg
"""

from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image


def classify(model: str, image: str, top: int = 5) -> list[tuple[str, float]]:
    """Labels and logits, the largest first. The image is squashed to the model's size."""
    with zipfile.ZipFile(model) as archive:
        card = json.loads(archive.read("model_card.json"))
    height, width, channels = card["input_shape"]
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    pixels = Image.open(image).convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(pixels, "float32").reshape(1, height, width, channels)
    runner = Interpreter(model_path=model).get_signature_runner("serving_default")
    logits = runner(pixels=pixels)["logits"][0]
    return [(card["labels"][i], float(logits[i])) for i in np.argsort(-logits)[:top]]


if __name__ == "__main__":
    for label, logit in classify(*sys.argv[1:3]):
        print(f"{label}\t{logit:.3f}")
