"""One tiny model, its images and its SavedModels for all export tests."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export.saved_model import export_saved_model
from tests.fixtures import tiny_vit

LABELS = [f"class {letter}" for letter in "abcdefghij"]


@pytest.fixture(scope="package")
def model():
    return tiny_vit()


@pytest.fixture(scope="package")
def pixels():
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (6, 32, 32, 3)).astype("float32")


# Tests that use these fixtures are in one group, so that one worker builds them.
@pytest.fixture(scope="package")
def exported(model, tmp_path_factory):
    """Report of a SavedModel with labels and warm-up requests."""
    path = tmp_path_factory.mktemp("serving") / "tiny"
    return export_saved_model(model, path, labels=LABELS, warmup_batch_sizes=(1, 4))


@pytest.fixture(scope="package")
def compiled(model, tmp_path_factory):
    """Path of a SavedModel compiled by XLA."""
    path = tmp_path_factory.mktemp("compiled") / "tiny"
    return export_saved_model(model, path, jit_compile=True).path


@pytest.fixture(scope="package")
def loaded(exported):
    return tf.saved_model.load(str(exported.path))
