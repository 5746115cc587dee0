"""Writes a folder for every model of `tests/weights/folders.py`, with images and outputs.

With the word "sweep" also for every model of the sweep that agrees, in the layout of its project.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

import keras
import numpy as np

from keras_vit.config import make_config
from keras_vit.create import build
from keras_vit.pretrained import from_pretrained
from keras_vit.runtime.model import Model
from tests.fixtures import fill_random, images_for
from tests.sweep import read_record
from tests.weights.folders import BIT, FOLDERS, SIZES
from tests.weights.test_sweep import AGREES, OUTCOMES, write_files


def main() -> None:
    root, *words = sys.argv[1:]
    for name, (layout, fields) in FOLDERS.items():
        config = BIT if name == "bit" else make_config(**{**SIZES, "classes": 10, **fields})
        model = build(config)
        fill_random(model)
        write(model, layout, pathlib.Path(root) / name)
    if words[:1] == ["sweep"]:
        write_sweep(pathlib.Path(root), words[1:])


def write_sweep(root: pathlib.Path, words: list[str]) -> None:
    """Loads every model of the sweep that agrees, or those with a word, and writes it back."""
    outcomes, refused = json.loads(OUTCOMES.read_text()), 0
    for title, case in read_record().items():
        if outcomes.get(title) != AGREES or (words and not any(word in title for word in words)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            options = dict(case.get("ours", {}))
            model = from_pretrained(write_files(case, pathlib.Path(folder)), **options)
        try:
            write(model, title.split()[0], root / title.replace("/", " "))
        except ValueError as error:
            refused += 1
            print(f"not written: {title}: {str(error)[:300]}", flush=True)
        keras.backend.clear_session()
    print(f"{refused} not written")


def write(model: Model, layout: str, folder: pathlib.Path) -> None:
    model.save_pretrained(folder, layout)
    if getattr(model.config, "takes_patches", False):
        print(f"not compared: {folder.name} takes patches of images in their own sizes", flush=True)
        return
    images = images_for(model, 2)
    outputs = keras.ops.convert_to_numpy(model(images))
    assert model.config is not None
    mean, std = model.config.preprocessing.per_channel(model.config.channels)
    pixels = ((images - np.array(mean)) / np.array(std)).astype("float32")
    np.savez(folder / "expected.npz", pixels=pixels, outputs=outputs)


if __name__ == "__main__":
    main()
