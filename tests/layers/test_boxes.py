"""Boxes that patches predict."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.layers.boxes import PatchBoxes
from tests.checks import check_layer


def test_without_a_prediction_a_box_ends_in_its_patch():
    check_layer(PatchBoxes((3, 2)), (6, 4))
    boxes = np.asarray(PatchBoxes((3, 4))(np.zeros((1, 12, 4), "float32")))[0]
    np.testing.assert_allclose(boxes[5], [2 / 4, 2 / 3, 1 / 4, 1 / 3], atol=2e-4)
    np.testing.assert_allclose(boxes[8], [1 / 4, 1, 1 / 4, 1 / 3], atol=2e-4)


def test_another_grid_is_an_error():
    with pytest.raises(ValueError, match=r"2 x 3 patches predicts boxes of shape \(B, 6, 4\)"):
        PatchBoxes((2, 3))(np.zeros((1, 5, 4), "float32"))
