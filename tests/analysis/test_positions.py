"""Similarity of places against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.analysis.positions import position_similarity
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, tiny_config


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d"])
def test_similarity_is_the_cosine_of_two_places(kind):
    config = tiny_config(image_size=(24, 32), position_embedding=kind, distillation_token=True)
    model = build_vit(config)
    fill_random(model)
    similarity = position_similarity(model)
    assert similarity.shape == (3, 4, 3, 4) and similarity.dtype == "float32"
    table = np.asarray(model.get_layer("position_embedding").table())[0, 2:].reshape(3, 4, -1)
    for y, x, v, u in ((0, 0, 0, 0), (1, 2, 2, 3), (2, 0, 0, 3)):
        a, b = table[y, x], table[v, u]
        expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert similarity[y, x, v, u] == pytest.approx(expected, abs=1e-5)


def test_models_without_an_embedding_of_places_say_so():
    with pytest.raises(ValueError, match="no layer with an embedding of places"):
        position_similarity(build_vit(tiny_config(position_embedding="relative")))
