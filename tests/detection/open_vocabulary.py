"""Small OWL-ViT and OWLv2 in folders, and what transformers computes with them."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy

from scripts.golden.network_formula import chosen_values, network_arrays
from tests.image_text.towers import write_vocabulary
from tests.official import GOLDEN

CASES = json.loads((GOLDEN / "open_vocabulary.json").read_text())


def owl_folder(name, folder, **changes):
    """Writes the checkpoint of a case with a small vocabulary, and changes of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    case = CASES["cases"][name]
    arrays = network_arrays(case["shapes"], case["fixed"])
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**case["config"], **changes}))
    write_vocabulary(folder)
    return folder


def check_owl(outputs, name, way, tolerance=1e-5):
    """Compares outputs with those of transformers; differences are of the largest value."""
    expected = CASES["cases"][name]["outputs"][way]
    for key, theirs in expected.items():
        found = chosen_values(np.asarray(outputs[key]))
        assert found["shape"] == theirs["shape"]
        values, theirs = np.array(found["values"]), np.array(theirs["values"])
        is_text = theirs > -1e30  # not a row that is no text
        np.testing.assert_allclose(values[~is_text], theirs[~is_text], rtol=1e-6)
        scale = np.abs(theirs[is_text]).max()
        assert scale > 0.01
        assert np.abs(values - theirs)[is_text].max() <= tolerance * scale, key
