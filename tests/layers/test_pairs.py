import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.pairs import PairFeatures
from tests.fixtures import numpy

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 3, 4)).astype("float32")


def test_pairs_have_unit_length_scale_and_bias():
    found = numpy(PairFeatures(math.log(5), -3.0)(X, Y))
    expected = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (X, Y)]
    np.testing.assert_allclose(found[:, :8], np.concatenate(expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(found[:, 8:], np.full((3, 2), (5.0, -3.0)), rtol=1e-6)
    assert PairFeatures()(X, Y)[0, -1] == 0


def test_training_keeps_the_scale_within_its_bounds():
    model = _model(PairFeatures(1.0, name="pairs"))
    model.compile(keras.optimizers.SGD(1e3), keras_vit.train.ContrastiveLoss())
    model.fit([X, X], np.zeros(3), verbose=0)  # equal features: a larger scale is better
    scale = model.get_layer("pairs").scale
    assert float(scale) == pytest.approx(math.log(100))
    open_ended = _model(PairFeatures(4.6, max_logit_scale=None, name="pairs"))
    assert open_ended.get_layer("pairs").scale.constraint is None


def test_a_model_of_pairs_is_saved(tmp_path):
    model = _model(PairFeatures(2.0, -1.0, name="pairs"))
    model.get_layer("pairs").bias.assign(-4.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict([X, Y], verbose=0), numpy(model([X, Y])))


def test_features_of_two_sizes_are_an_error():
    with pytest.raises(ValueError, match=r"features of one size\. Received: 4 and 3"):
        PairFeatures()(X, Y[:, :3])


def _model(layer):
    inputs = [keras.Input((4,), name=name) for name in ("images", "texts")]
    return keras_vit.Model(inputs, layer(*inputs))
