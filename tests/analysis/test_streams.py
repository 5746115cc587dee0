"""Images of files, arrays and iterables, and as pictures."""

from __future__ import annotations

import weakref

import keras
import numpy as np
import pytest

from keras_vit.analysis.attention import (
    attention_maps,
    attention_rollout,
    mean_attention_distance,
)
from keras_vit.analysis.features import (
    image_features,
    nearest_neighbors,
    patch_components,
    token_norms,
)
from keras_vit.analysis.relevance import class_relevance
from keras_vit.analysis.streams import ImageFiles, displayed, image_batches
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
    files = ImageFiles([tmp_path, tmp_path / "b.png"], model, batch_size=2)
    assert len(files) == 2 and [len(batch) for batch in files] == [2, 1]
    images = np.concatenate(list(files))  # the second time that they are read
    assert images.shape == (3, 16, 32, channels) and images.dtype == "float32"
    np.testing.assert_allclose(images, np.stack([pixels / 127.5 - 1] * 3), atol=1e-5)


def test_missing_and_damaged_images_say_so(tmp_path):
    model, _ = random_vit()
    with pytest.raises(ValueError, match="no images in nothing"):
        ImageFiles([], model)
    with pytest.raises(FileNotFoundError, match=r"There is no image .*lost\.png"):
        ImageFiles([tmp_path / "lost.png"], model)
    (tmp_path / "damaged.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"damaged\.png cannot be read as an image"):
        next(iter(ImageFiles([tmp_path], model)))


MANY, BATCH = 2048, 64


class Stream:
    """Batches that are made when asked for, and counted while anybody holds on to them."""

    def __init__(self, sides):
        self.sides = sides
        self.alive = self.most = 0

    def __iter__(self):
        rng = np.random.default_rng(0)
        for _ in range(MANY // BATCH):
            batch = rng.uniform(0, 255, (BATCH, *self.sides)).astype("float32")
            weakref.finalize(batch, self.let_go)
            self.alive += 1
            self.most = max(self.most, self.alive)
            yield batch

    def let_go(self):
        self.alive -= 1


def test_a_list_would_be_noticed():
    stream = Stream((1, 1, 1))
    assert len(list(stream)) == stream.most == MANY // BATCH


@pytest.mark.parametrize(
    "look",
    [
        attention_maps,
        attention_rollout,
        class_relevance,
        image_features,
        mean_attention_distance,
        lambda model, images: nearest_neighbors(model, np.zeros((1, 8, 12, 3)), images)[0],
        patch_components,
        token_norms,
    ],
)
def test_thousands_of_images_stream_through(look):
    model, _ = random_vit(image_size=(8, 12), patch_size=4, depth=1, width=8, mlp_dim=8)
    stream = Stream(model.input_shape[1:])
    result = look(model, stream)
    assert len(result) in (MANY, 1)
    assert 1 <= stream.most <= 3  # the one at work, and the next
