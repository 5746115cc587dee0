"""The section about logits of the page about training runs as it is written."""

from __future__ import annotations

import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit

PAGE = (pathlib.Path(keras_vit.__file__).parents[1] / "docs/training.md").read_text()


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
