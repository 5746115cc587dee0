"""Images of files, arrays and iterables, and as pictures."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.analysis.streams import displayed, image_batches, read_images
from tests.models.test_taps import random_vit


def test_arrays_come_in_batches_and_iterables_as_they_are():
    images = np.arange(5 * 2 * 2 * 1).reshape(5, 2, 2, 1)
    assert [len(x) for x in image_batches(images, 2)] == [2, 2, 1]
    stream = [(images[:3], "labels"), images[3:], images[:0]]
    assert [len(x) for x in image_batches(iter(stream))] == [3, 2]
    np.testing.assert_array_equal(np.concatenate(list(image_batches(images, 2))), images)


def test_images_are_shown_as_pixels():
    model, images = random_vit()
    np.testing.assert_array_equal(displayed(model, images), images)
    model, _ = random_vit(include_preprocessing=False)
    np.testing.assert_allclose(displayed(model, images / 127.5 - 1), images, atol=1e-3)
    own = keras.Model(model.input, model.output)
    np.testing.assert_allclose(displayed(own, np.array([[[[-1.0], [1.0]]]])).ravel(), [0, 255])
    assert displayed(own, np.zeros((1, 2, 2, 5))).shape == (1, 2, 2, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_read_as_the_model_takes_them(channels, tmp_path):
    model, _ = random_vit(include_preprocessing=False, channels=channels, image_size=(16, 32))
    pixels = np.random.default_rng(0).integers(0, 256, (16, 32, channels)).astype("float32")
    for name in ("b.png", "a.PNG"):
        keras.utils.save_img(tmp_path / name, pixels, scale=False, file_format="png")
    (tmp_path / "notes.txt").write_text("no image")
    images = read_images([tmp_path, tmp_path / "b.png"], model)
    assert images.shape == (3, 16, 32, channels) and images.dtype == "float32"
    np.testing.assert_allclose(images, np.stack([pixels / 127.5 - 1] * 3), atol=1e-5)
    with pytest.raises(ValueError, match="no images in nothing"):
        read_images([], model)
