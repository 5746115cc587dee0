"""One tiny model and its images for all exports."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, tiny_config


@pytest.fixture(scope="package")
def model():
    model = build_vit(tiny_config())
    fill_random(model)
    return model


@pytest.fixture(scope="package")
def pixels():
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (6, 32, 32, 3)).astype("float32")
