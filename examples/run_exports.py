"""Runs exported files without keras_vit, and compares them with the model's logits.

    python examples/run_exports.py held_out.npz saved_model/1 model.tflite

The .npz file holds `images` and the `logits` of the exported model. Prints the largest difference
of logits and the top-1 agreement of every file as JSON. Takes seconds.
"""

from __future__ import annotations

import json
import sys

import numpy as np

sys.modules["keras_vit"] = None  # importing it fails from here on


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
