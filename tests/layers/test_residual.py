"""Standardised convolutions, group norm, and the units of the two ResNets."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.layers.convolution import GroupNorm, StdConv2D
from keras_vit.layers.residual import BiTRoot, ResidualUnit, ResNetStage, StemRoot
from tests import reference_resnet
from tests.checks import check_layer
from tests.fixtures import fill_random


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (StdConv2D(8, 3), (7, 6, 4), (7, 6, 8)),
        (StdConv2D(8, 3, 2, "same", "variance"), (8, 7, 4), (4, 4, 8)),
        (StdConv2D(8, 3, 2, "fixed", "variance"), (8, 7, 4), (4, 4, 8)),
        (StdConv2D(8, (3, 2), 2, "valid", None), (8, 7, 4), (3, 3, 8)),
        (GroupNorm(), (5, 4, 64), (5, 4, 64)),
        (StemRoot(32), (17, 16, 3), (5, 4, 32)),
        (BiTRoot(32), (17, 16, 3), (5, 4, 32)),
        (ResidualUnit(32), (5, 4, 128), (5, 4, 128)),
        (ResidualUnit(32, 2), (5, 4, 64), (3, 2, 128)),
        (ResidualUnit(32, 2, True, 1e-5, "variance"), (5, 4, 64), (3, 2, 128)),
        (ResNetStage(2, 32, 2, True, 1e-5, "variance"), (5, 4, 32), (3, 2, 128)),
    ],
    ids=lambda value: value.name if isinstance(value, keras.Layer) else None,
)
def test_layer(layer, shape, expected):
    check_layer(layer, shape, expected, atol=2e-5)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-2])
def test_group_norm_computes_what_that_of_keras_does(epsilon):
    ours, theirs = GroupNorm(epsilon), keras.layers.GroupNormalization(32, epsilon=epsilon)
    images = np.random.default_rng(0).normal(5, 0.1, (2, 6, 5, 64)).astype("float32")
    ours(images), theirs(images)
    fill_random(ours)
    theirs.set_weights(ours.get_weights())
    expected = reference_resnet.group_norm(
        images.astype("float64"), ours.gamma.numpy(), ours.beta.numpy(), epsilon
    )
    np.testing.assert_allclose(ours(images), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours(images), theirs(images), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StdConv2D(0, 3), r"`filters` must be a positive integer"),
        (lambda: StdConv2D(8, 3, padding="full"), "`padding` must be one of 'same'"),
        (
            lambda: StdConv2D(8, 3, standardization="yes"),
            r"must be None or one of 'std', 'variance",
        ),
        (lambda: GroupNorm().build((None, 4, 4, 48)), r"multiple of 32 channels. Received: 48"),
        (lambda: ResidualUnit(32, 0), r"`strides` must be a positive integer"),
        (lambda: ResNetStage(0, 32), r"`num_units` must be a positive integer"),
        (lambda: StemRoot(-1), r"`filters` must be a positive integer"),
        (lambda: BiTRoot(1.5), r"`filters` must be a positive integer"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
