import math

import numpy as np
import pytest

from keras_vit.layers.text import EndOfTextPooling, SinusoidalPositions
from tests.checks import check_layer
from tests.fixtures import numpy

TOKENS = np.arange(2 * 6 * 3, dtype="float32").reshape(2, 6, 3)


@pytest.mark.parametrize(
    ("end_id", "ids", "positions"),
    [
        (7, [[1, 7, 2, 7, 9, 9], [1, 2, 3, 4, 5, 7]], (1, 5)),  # the first of two, and the last
        (None, [[1, 8, 9, 9, 0, 0], [9, 1, 1, 1, 1, 1]], (2, 0)),  # the largest id of a text
        (2, [[0, 9, 2, 1, 1, 1], [0, 2, 1, 1, 1, 2]], (2, 1)),  # MetaCLIP 2
    ],
)
def test_the_token_at_the_end_of_the_text_is_taken(end_id, ids, positions):
    pooled = numpy(EndOfTextPooling(end_id)(TOKENS, np.array(ids, "int32")))
    np.testing.assert_array_equal(pooled, TOKENS[[0, 1], positions])


def test_a_text_without_an_end_gives_zeros():
    pooled = numpy(EndOfTextPooling(7)(TOKENS, np.ones((2, 6), "int32")))
    np.testing.assert_array_equal(pooled, np.zeros((2, 3)))


def test_sines_and_cosines_are_added_to_scaled_tokens():
    angles = np.arange(6)[:, None] * 10_000.0 ** (-np.arange(4) / 3)
    tokens = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    expected = math.sqrt(8) * tokens + np.concatenate([np.sin(angles), np.cos(angles)], 1)
    np.testing.assert_allclose(numpy(SinusoidalPositions()(tokens)), expected, atol=1e-6)
    check_layer(SinusoidalPositions(), (6, 8))
    with pytest.raises(ValueError, match=r"an even width of 4 or more\. Received: 7"):
        SinusoidalPositions()(tokens[..., :7])
