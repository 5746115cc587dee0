"""Tests RMS norm."""

from __future__ import annotations

from keras_vit.layers.norm import RMSNorm
from tests.checks import check_layer


def test_rms_norm_passes_check_layer():
    check_layer(RMSNorm(1e-5), (5, 16))
