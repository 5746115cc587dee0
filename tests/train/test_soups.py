"""Averages of weights, all of them and those that help."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.train import average_models, select_models
from tests.fixtures import tiny_config, tiny_vit


@pytest.fixture
def files(tmp_path):
    model = tiny_vit(depth=1)
    base = model.get_layer("head").kernel.numpy()
    for name, shift in (("a", 0.1), ("b", -0.3), ("c", 9.0)):
        model.get_layer("head").kernel.assign(base + shift)
        model.save(tmp_path / f"{name}.keras")
    return base, [tmp_path / f"{name}.keras" for name in "abc"]


def shift(model, base):
    return model.get_layer("head").kernel.numpy() - base


def test_the_average_of_all(files):
    base, paths = files
    soup = average_models(paths)
    np.testing.assert_allclose(shift(soup.model, base), 8.8 / 3, rtol=0, atol=1e-5)
    assert soup.files == tuple(paths) and not soup.model.compiled
    assert isinstance(soup.model, keras_vit.Model)


def test_the_greedy_average_leaves_out_what_makes_it_worse(files):
    """Scores alone: a -0.1, b -0.3, c -9; a and b together -0.1, which does not fall."""
    base, paths = files
    soup = select_models(paths[::-1], lambda model: round(float(-abs(shift(model, base)).max()), 4))
    assert [path.stem for path in soup.files] == ["a", "b"]
    assert soup.scores == (-0.1, -0.1)
    np.testing.assert_allclose(shift(soup.model, base), -0.1, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"finite number\. Received: nan"):
        select_models(paths, lambda model: float("nan"))


def test_models_without_an_average(files, tmp_path):
    _, paths = files
    keras_vit.build_vit(tiny_config(depth=1, classes=3)).save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match=r"other\.keras differs in head/bias"):
        average_models([*paths, tmp_path / "other.keras"])
    for wrong in ([], [paths[0], paths[0]]):
        with pytest.raises(ValueError, match=r"one or more `\.keras` files, each once"):
            average_models(wrong)
    with pytest.raises(FileNotFoundError):
        average_models([tmp_path / "none.keras"])
    layer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    layer.layers[0].quantize("int8")
    layer.save(tmp_path / "int8.keras")
    with pytest.raises(ValueError, match="quantised"):
        average_models([tmp_path / "int8.keras"])
