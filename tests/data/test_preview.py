"""Tests the preview of a pipeline."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data.image_set import read_arrays
from keras_vit.data.input_transform import InputTransform
from tests.data.test_batches import PLAIN


def test_a_preview_shows_what_the_model_gets(tmp_path):
    """Here of a model that normalises outside: the sheet has pixels again."""
    x = np.arange(6, dtype="uint8")[:, None, None, None] * 40 + np.zeros((1, 8, 8, 3), "uint8")
    transform = InputTransform((8, 8), Preprocessing(), normalize=True)
    path = tmp_path / "sheet.png"
    options = {"rows": 2, "columns": 3}
    keras_vit.data.write_preview(
        read_arrays(x, np.arange(6)), transform, path, PLAIN, seed=1, **options
    )
    sheet = tf.io.decode_png(path.read_bytes()).numpy()
    assert sheet.shape == (24, 36, 3)  # 8 pixels and a gap of 4
    tiles = sheet.reshape(2, 12, 3, 12, 3)[:, :8, :, :8]
    assert sorted(tiles[:, 0, :, 0, 0].ravel()) == [0, 40, 80, 120, 160, 200]
    assert (tiles == tiles[:, :1, :, :1]).all() and (sheet[8:12] == 255).all()
