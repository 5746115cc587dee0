"""A small Segment Anything in a folder, and what transformers computes with it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy

from scripts.golden.network_formula import chosen_values, images_of, network_arrays
from scripts.golden.prompts import PROMPTS
from tests.official import GOLDEN

GOLDEN_SAM = json.loads((GOLDEN / "promptable.json").read_text())


def write_sam(
    folder: pathlib.Path, arrays: dict[str, np.ndarray], config: dict[str, Any]
) -> pathlib.Path:
    """Writes a checkpoint without `preprocessor_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def sam_arrays():
    return network_arrays(GOLDEN_SAM["shapes"])


def sam_folder(folder, arrays=None, **changes):
    """Writes the checkpoint, with changes of parts of its configuration."""
    config = {**GOLDEN_SAM["config"]}
    for key, values in changes.items():
        config[key] = {**config[key], **values} if isinstance(values, dict) else values
    return write_sam(folder, arrays or sam_arrays(), config)


def check(found, expected, tolerance=1e-5):
    """Compares with transformers; differences are of the largest value."""
    found = chosen_values(np.asarray(found))
    assert found["shape"] == expected["shape"]
    values, theirs = np.array(found["values"]), np.array(expected["values"])
    assert np.abs(theirs).max() > 1e-4
    assert np.abs(values - theirs).max() <= tolerance * np.abs(theirs).max()


def prompts_of(name):
    prompts = dict(PROMPTS[name])
    if prompts.get("masks"):
        prompts["masks"] = images_of((20, 20))[..., 0]
    return prompts


def check_sam(sam):
    """Compares the embeddings of a model without preprocessing, and all masks and scores."""
    embedded = sam.embed(images_of((80, 80)))
    check(embedded.embeddings, GOLDEN_SAM["embeddings"])
    for name, expected in GOLDEN_SAM["cases"].items():
        found = sam.predict(embedded, **prompts_of(name))
        check(found["masks"], expected["masks"])
        check(found["scores"], expected["scores"])
