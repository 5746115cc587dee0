"""Writes a folder for every model of `tests/weights/folders.py`, with images and outputs."""

from __future__ import annotations

import pathlib
import sys

import keras
import numpy as np

from keras_vit.config import make_config
from keras_vit.create import build
from tests.fixtures import fill_random, images_for
from tests.weights.folders import BIT, FOLDERS, SIZES


def main() -> None:
    for name, (layout, fields) in FOLDERS.items():
        config = BIT if name == "bit" else make_config(**{**SIZES, "classes": 10, **fields})
        model = build(config)
        fill_random(model)
        folder = pathlib.Path(sys.argv[1]) / name
        model.save_pretrained(folder, layout)
        images = images_for(model, 2)
        outputs = keras.ops.convert_to_numpy(model(images))
        mean, std = config.preprocessing.per_channel(config.channels)
        pixels = ((images - np.array(mean)) / np.array(std)).astype("float32")
        np.savez(folder / "expected.npz", pixels=pixels, outputs=outputs)


if __name__ == "__main__":
    main()
