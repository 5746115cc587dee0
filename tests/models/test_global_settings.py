"""Every builder under the global settings of Keras: data format, floats and policies."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import ResNetStem
from tests.fixtures import fill_random, tiny_config

PALETTE = np.random.default_rng(0).uniform(-1, 1, (16, 3)).astype("float32")


def vit(**changes):
    return keras_vit.build_vit(tiny_config(**changes))


def backbone(**changes):
    return vit(**{"patch_size": 16, "image_size": 64, "classes": None, "pooling": None, **changes})


def resnet(**changes):
    return keras_vit.build_resnet(
        keras_vit.ResNetConfig(stages=(1, 1), image_size=32, **{"classes": 10, **changes})
    )


def segmenter(head):
    return keras_vit.models.build_segmenter(backbone(depth=4), 3, head, channels=16)


def image_gpt():
    config = keras_vit.models.ImageGPTConfig(32, 1, 4, image_size=(4, 4), colors=16)
    return keras_vit.models.build_image_gpt(config, PALETTE)


BUILDERS = {
    "vit": vit,
    "hybrid": lambda: vit(patch_size=1, stem=ResNetStem((1, 1))),
    "bit": resnet,
    "bit maps": lambda: resnet(pooling=None, classes=None),
    "pyramid": lambda: keras_vit.models.build_pyramid(backbone(), 16),
    "linear": lambda: segmenter("linear"),
    "dpt": lambda: segmenter("dpt"),
    "feature maps": lambda: keras_vit.models.feature_maps(backbone(), 2),
    "image gpt": image_gpt,
}


def outputs_of(name):
    keras.utils.set_random_seed(0)
    model = BUILDERS[name]()
    fill_random(model, 0.1)
    rng = np.random.default_rng(0)
    images = [rng.uniform(0, 255, (2, *x.shape[1:])).astype("float32") for x in model.inputs]
    images = images if len(images) > 1 else images[0]
    return model, keras.tree.flatten(model.predict(images, verbose=0))


@pytest.mark.parametrize("name", BUILDERS)
def test_data_format(name):
    expected, outputs = outputs_of(name)
    keras.config.set_image_data_format("channels_first")
    try:
        model, received = outputs_of(name)
    finally:
        keras.config.set_image_data_format("channels_last")
    assert [w.shape for w in model.weights] == [w.shape for w in expected.weights]
    for x, y in zip(received, outputs, strict=True):
        np.testing.assert_array_equal(x, y)
