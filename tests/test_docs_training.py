"""Blocks of docs/training.md run as they stand."""

from __future__ import annotations

import pathlib
import re

import keras
import numpy as np
import pytest

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:(currentThread|getName)\(:DeprecationWarning")  # of KerasTuner
def test_ensembles_siamese_models_and_a_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = PAGE.partition("\n## Ensembles, siamese")[2].partition("\n## ")[0]
    ensemble, siamese, search = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(compile(ensemble, "docs/training.md", "exec"), names)
    images = np.random.default_rng(0).uniform(0, 255, (8, 32, 32, 3)).astype("float32")
    expected = np.mean([member(images) for member in names["members"]], axis=0)
    loaded = keras.saving.load_model("ensemble.keras")
    np.testing.assert_allclose(loaded(images), expected, atol=1e-5)
    assert (tmp_path / "ensemble").is_dir()

    exec(compile(siamese, "docs/training.md", "exec"), names)
    pairs = {"left": images, "right": images[::-1].copy()}
    model, backbone = names["siamese"], names["backbone"]
    one, other = (np.asarray(backbone(x)) for x in pairs.values())
    cosine = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    np.testing.assert_allclose(np.asarray(model(pairs))[:, 0], cosine, atol=1e-5)
    before = np.array(backbone.weights[0])
    model.fit(pairs, np.zeros(8), verbose=0)
    assert (before != np.array(backbone.weights[0])).any()

    pytest.importorskip("keras_tuner")
    names |= {"images": images, "labels": np.arange(8) % 10}
    exec(compile(search, "docs/training.md", "exec"), names)
    assert set(names["tuner"].get_best_hyperparameters()[0].values) == {
        "depth_rate",
        "learning_rate",
    }


def test_losses_metrics_and_weights():
    section = PAGE.partition("## Losses, metrics and weights")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict = {}
    exec(compile(block, "docs/training.md", "exec"), names)
    shares, labels = np.asarray(names["probabilities"])[:, 0], names["labels"]
    results, is_right = names["results"], (shares > 0.5) == labels
    assert results["accuracy"] == pytest.approx(is_right.mean())
    assert results["weighted_accuracy"] == pytest.approx(
        np.average(is_right, weights=1 + 2 * labels)
    )
    assert results["auc"] == pytest.approx(float(keras.metrics.AUC()(labels, shares)))
    assert results["recall"] == pytest.approx((shares[labels] > 0.5).mean())
