"""Writes tests/golden/towers.json: logits of small models of images and texts of other projects.

Run with the environment of `scripts/parity-towers`: `PYTHONPATH=. .venv-parity/bin/python -m
scripts.golden.make_towers`. Weights follow a formula, so that the tests make them again and the
file holds configurations, names, shapes, ids and logits alone.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from scripts.golden.eval_cases import formula_arrays
from scripts.peers import towers_theirs as theirs

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "towers.json"
NAMES = ("aimv2-lit", "open-clip-clipa", "tipsv2", "tipsv2-gated")


def make(name: str, folder: pathlib.Path) -> dict[str, Any]:
    is_open_clip = name in theirs.OPEN_CLIP
    (theirs.of_open_clip if is_open_clip else theirs.of_transformers)(name, folder)
    file = folder / ("open_clip_model.safetensors" if is_open_clip else "model.safetensors")
    shapes = {key: value.shape for key, value in load_file(file).items()}
    arrays = formula_arrays(shapes)
    scale = {"temperature": 0.05, "logit_scale": 2.5}
    arrays |= {key: np.asarray(value, "float32") for key, value in scale.items() if key in arrays}
    save_file({key: np.asarray(value) for key, value in arrays.items()}, file, {"format": "pt"})
    answers = np.load(folder / "answers.npz")
    mean, std = (theirs.OPEN_CLIP if is_open_clip else theirs.TRANSFORMERS)[name][-1]
    pixels = (answers["images"] / 255 - np.asarray(mean)) / np.asarray(std)
    pixels = torch.tensor(pixels.transpose(0, 3, 1, 2).astype("float32"))
    model = theirs.load(name, folder)
    with torch.inference_mode():
        found = theirs.runner(name, model)(pixels, torch.tensor(answers["ids"].astype("int64")))
    return {
        "files": {each.name: json.loads(each.read_text()) for each in folder.glob("*config.json")},
        "shapes": shapes, "ids": answers["ids"].tolist(),
        "logits": found["logits"].numpy().round(6).tolist(),
    }  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {name: make(name, pathlib.Path(folder) / name) for name in NAMES}
    OUT.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
