"""Which dense layers lose the accuracy of 4-bit weights, on trained weights of others.

    scripts/real-network /tmp/real
    python benchmarks/four_bits.py /tmp/real/network PHOTOGRAPHS --output four_bits.jsonl

Network, head and photographs are those of precisions.py, with fewer photographs. Kernels of some
dense layers are rounded to 4 bits in blocks of 32 inputs, as LiteRT's int4 stores them, and the
others stay in float: one kind of layer, one block, then all but them. Prints and appends a JSON
line for each: cosine of features, agreement with the float32 model, and accuracy.
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from machine import write_row
from precisions import OUTPUTS, TRAINED, classify, compare

import keras_vit
from keras_vit.export.inference import prepare
from keras_vit.export.verify import resize_images

BLOCK, LARGEST = 32, 7  # inputs that share a scale; levels of each sign
KINDS = ("attention/qkv", "attention/output", "mlp/hidden", "mlp/output")


def rounded(kernel: np.ndarray) -> np.ndarray:
    """A kernel `(inputs, outputs)` after storing it in 4 bits."""
    blocks = kernel.reshape(-1, BLOCK, kernel.shape[1])
    scale = np.maximum(np.abs(blocks).max(1, keepdims=True) / LARGEST, 1e-30)
    return (np.round(blocks / scale) * scale).reshape(kernel.shape)


def groups(paths: list[str]) -> dict[str, list[str]]:
    """Kernels that are rounded together, by the name of a row."""
    found = {kind: [path for path in paths if kind in path] for kind in KINDS}
    blocks = dict.fromkeys(path.partition("/")[0] for path in paths)
    found |= {block: [path for path in paths if path.startswith(f"{block}/")] for block in blocks}
    others = {f"all but {name}": [p for p in paths if p not in own] for name, own in found.items()}
    return {"none": [], "all": paths, **found, **others}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("photographs")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, default="/tmp/precisions")
    parser.add_argument("--count", type=int, default=300, help="photographs to test on")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    rest, trained = keras_vit.data.read_folder(options.photographs).split(TRAINED)
    tested = rest.split(1000)[1].split(options.count)[1]
    inference = prepare(classify(options.network, trained, options.cache))
    model = inference.model
    pixels = resize_images(keras_vit.data.read_images(tested.file_names()), inference)
    kernels = {v.path: v for v in model.variables if any(f"{k}/kernel" in v.path for k in KINDS)}
    values = {path: variable.numpy() for path, variable in kernels.items()}
    exact: dict = {}
    for name, chosen in groups(list(kernels)).items():
        for path, variable in kernels.items():
            variable.assign(rounded(values[path]) if path in chosen else values[path])
        found = {key: [] for key in OUTPUTS}
        for start in range(0, len(pixels), 25):
            outputs = model.predict_on_batch(pixels[start : start + 25])
            for key in OUTPUTS:
                found[key].append(np.asarray(outputs[key]))
        found = {key: np.concatenate(parts) for key, parts in found.items()}
        exact = exact or found
        row = {"rounded": name, "kernels": len(chosen), "photographs": len(pixels)}
        write_row({**row, **compare(found, exact, tested.labels)}, options.output)


if __name__ == "__main__":
    main()
