"""Small networks of transformers in folders, and what transformers computes with them."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy

from scripts.golden.network_formula import chosen_values, images_of, network_arrays
from tests.official import GOLDEN

CASES = json.loads((GOLDEN / "networks.json").read_text())


def network_folder(name, folder, **changes):
    """Writes the checkpoint of a case, with changes of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    case = CASES[name]
    arrays = network_arrays(case["shapes"], case.get("fixed"))
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**case["config"], **changes}))
    return folder


def check_outputs(outputs, name, tolerance=1e-5):
    """Compares outputs with those of transformers; differences are of the largest value."""
    for key, expected in CASES[name]["outputs"].items():
        found = chosen_values(np.asarray(outputs[key]))
        assert found["shape"] == expected["shape"]
        values, theirs = np.array(found["values"]), np.array(expected["values"])
        assert np.abs(theirs).max() > 0.01
        assert np.abs(values - theirs).max() <= tolerance * np.abs(theirs).max(), key


__all__ = ["CASES", "check_outputs", "images_of", "network_folder"]
