import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.texts.text_tower import TextConfig, build_text_tower
from tests.fixtures import fill_random, numpy

TINY = TextConfig(40, width=32, depth=2, num_heads=4, mlp_dim=48, context_length=8)


TIPS = {"positions": "sinusoidal", "pooling": "mean", "pad_id": 0, "causal": False, "gelu": "relu"}


@pytest.mark.parametrize("fields", [{"end_id": 3}, TIPS], ids=("clip", "tips"))
def test_a_text_tower_is_saved_and_loaded(fields, tmp_path):
    tower = build_text_tower(dataclasses.replace(TINY, projection_size=None, **fields))
    fill_random(tower)
    ids = np.random.default_rng(0).integers(4, 40, (3, 8)).astype("int32")
    ids[:, 5] = 3
    tower.save(tmp_path / "tower.keras")
    again = keras.saving.load_model(tmp_path / "tower.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), tower.predict(ids, verbose=0))
    assert tower.output_shape == (None, 32)


def test_padding_is_left_out_where_it_has_an_id():
    config = dataclasses.replace(TINY, projection_size=None, **TIPS)
    tower = build_text_tower(config)
    fill_random(tower)
    shorter = build_text_tower(dataclasses.replace(config, context_length=5))
    shorter.set_weights(tower.get_weights())
    ids = np.random.default_rng(0).integers(1, 40, (3, 8)).astype("int32")
    ids[:, 5:] = 0
    np.testing.assert_allclose(numpy(tower(ids)), numpy(shorter(ids[:, :5])), rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_what_follows_the_end_counts_without_a_causal_mask_alone(causal):
    tower = build_text_tower(dataclasses.replace(TINY, causal=causal, end_id=3))
    fill_random(tower)
    ids = np.full((2, 8), 9, "int32")
    ids[:, 3] = 3
    ids[1, 5] = 20
    first, second = numpy(tower(ids))
    assert (np.abs(first - second).max() < 1e-6) == causal


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "max"}, "`pooling` must be one of 'eot', 'last', 'mean'"),
        ({"pooling": "mean"}, "leaves out padding. Set `pad_id`"),
        ({"positions": "none"}, "`positions` must be one of 'learned', 'sinusoidal'"),
        ({"norm": "batch"}, "`norm` must be one of 'layer', 'rms'"),
        ({"without_bias": ("head",)}, "`without_bias` must be one of"),
        ({"num_heads": 5}, "`num_heads` must divide `width`"),
        ({"depth": 0}, "`depth` must be a positive integer"),
        ({"projection_size": -1}, "`projection_size` must be a positive integer"),
        ({"gelu": "silu"}, "`gelu` must be one of"),
    ],
)
def test_values_out_of_their_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **changes)
