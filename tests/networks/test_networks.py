"""Dense networks of transformers: outputs are theirs, in every file, and strictly read."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from tests.networks.cases import CASES, check_outputs, images_of, network_folder


def load(name, folder, **options):
    size = (*CASES[name]["size"], 3)
    options = {**CASES[name].get("options", {}), **options}
    return keras_vit.from_pretrained(
        network_folder(name, folder), input_shape=size, include_preprocessing=False, **options
    )


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_theirs_and_keras_files_keep_them(name, tmp_path):
    model, images = load(name, tmp_path), images_of(CASES[name]["size"])
    outputs = model.predict(images, verbose=0)
    check_outputs(outputs, name)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    found = again.predict(images, verbose=0)
    for key in outputs:
        np.testing.assert_array_equal(found[key], outputs[key])
    assert again.published == model.published
