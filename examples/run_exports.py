"""Runs exported files as one who deploys them does: without keras_vit, in a process of their own.

    python examples/run_exports.py held_out.npz saved_model/1 model.tflite

The .npz file holds `images` and the `logits` of the model they were exported from. Prints, in
JSON, how far each file's logits are from those and for how many images the answer is the same.
"""

from __future__ import annotations

import json
import sys

import numpy as np

sys.modules["keras_vit"] = None  # from here on, importing it fails


def run_saved_model(path, images):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    return loaded.signatures["pixels"](tf.constant(images))["logits"].numpy()


def run_litert(path, images):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner("serving_default")
    return np.concatenate([runner(pixels=image[None])["logits"] for image in images])


def main():
    held_out = np.load(sys.argv[1])
    images, expected = held_out["images"], held_out["logits"]
    results = []
    for path in sys.argv[2:]:
        run = run_litert if path.endswith(".tflite") else run_saved_model
        logits = run(path, images)
        results.append(
            {
                "max_difference": float(np.max(np.abs(logits - expected))),
                "agreement": float(np.mean(logits.argmax(-1) == expected.argmax(-1))),
            }
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
