"""Batches of images from arrays and iterables, and images for display."""

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
from keras_vit.analysis.image_batches import displayed, image_batches
from keras_vit.analysis.patch_features import (
    image_features,
    nearest_neighbors,
    patch_components,
    token_norms,
)
from keras_vit.analysis.relevance import class_relevance
from tests.models.test_feature_extraction import random_vit


def test_arrays_are_split_and_iterables_keep_their_batches():
    images = np.arange(5 * 2 * 2 * 1).reshape(5, 2, 2, 1)
    assert [len(x) for x in image_batches(images, 2)] == [2, 2, 1]
    stream = [(images[:3], "labels"), images[3:], images[:0]]
    assert [len(x) for x in image_batches(iter(stream))] == [3, 2]
    np.testing.assert_array_equal(np.concatenate(list(image_batches(images, 2))), images)


def test_images_are_displayed_as_pixels():
    model, images = random_vit()
    np.testing.assert_array_equal(displayed(model, images), images)
    model, _ = random_vit(include_preprocessing=False)
    np.testing.assert_allclose(displayed(model, images / 127.5 - 1), images, atol=1e-3)
    plain = keras.Model(model.input, model.output)
    np.testing.assert_allclose(displayed(plain, np.array([[[[-1.0], [1.0]]]])).ravel(), [0, 255])
    assert displayed(plain, np.zeros((1, 2, 2, 5))).shape == (1, 2, 2, 1)


BATCHES = 32


class Stream:
    """Batches made on demand; counts those that are still referenced."""

    def __init__(self, sides, batch_size=8):
        self.batch_shape = (batch_size, *sides)
        self.alive = self.most = 0

    def __iter__(self):
        rng = np.random.default_rng(0)
        for _ in range(BATCHES):
            batch = rng.uniform(0, 255, self.batch_shape).astype("float32")
            weakref.finalize(batch, self.release)
            self.alive += 1
            self.most = max(self.most, self.alive)
            yield batch

    def release(self):
        self.alive -= 1


def test_the_count_detects_a_list():
    stream = Stream((1, 1, 1))
    assert len(list(stream)) == stream.most == BATCHES


@pytest.mark.parametrize(
    "look",
    [
        attention_maps,
        class_relevance,
        lambda model, images: nearest_neighbors(model, np.zeros((1, 8, 12, 3)), images)[0],
        *(
            pytest.param(look, marks=pytest.mark.slow)
            for look in (
                *(attention_rollout, image_features, mean_attention_distance),
                *(patch_components, token_norms),
            )
        ),
    ],
)
def test_one_batch_at_a_time_is_in_memory(look):
    model, _ = random_vit(image_size=(8, 12), patch_size=4, depth=1, width=8, mlp_dim=8)
    stream = Stream(model.input_shape[1:])
    result = look(model, stream)
    assert len(result) in (8 * BATCHES, 1)
    assert 1 <= stream.most <= 3  # the current batch, and the next
