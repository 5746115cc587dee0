"""Tests the settings of augmentation."""

from __future__ import annotations

import pytest

from keras_vit.data.augmentation import Augmentation


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("crop", "circle", "`crop` must be one of 'inception'"),
        ("area_range", (0.5, 0.1), "`area_range` must be shares of the area, the least first"),
        ("rand_augment", (2, 30), r"a magnitude in \[0, 20\]. Received: \(2, 30\)"),
        ("mixup", -1.0, "`mixup` must be 0 or more"),
        ("label_smoothing", 1.0, "`label_smoothing` must be a number in"),
        ("cutmix", 1.0, 'CutMix needs mixing="timm"'),
    ],
)
def test_augmentations_are_checked(field, value, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**{field: value})
