"""Steps of our own models mean the same under XLA."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.models.vit import build_vit
from keras_vit.runtime.xla_checks import check_graph
from keras_vit.segmentation.model import build_segmenter
from tests.fixtures import KERAS, tiny_config

OWN_GRAPHS = {
    "merging": {"num_merged_tokens": 2},
    "chunks of queries": {"query_chunk_size": 2},
    "dropout": {"dropout_rate": 0.1, "stochastic_depth_rate": 0.1, "patch_dropout_rate": 0.5},
    "relative biases": {"position_embedding": "relative_bias", "position_on_class_token": False},
}


old_keras = pytest.mark.skipif(
    KERAS < (3, 12), reason="losses of Keras 3.11 multiply labels by masks"
)


@old_keras
@pytest.mark.parametrize("changes", OWN_GRAPHS.values(), ids=OWN_GRAPHS)
def test_our_own_models_may_be_compiled(changes):
    """A new operation in a layer, or in TensorFlow, would cost XLA's speed without an error."""
    optimizer = keras.optimizers.AdamW(1e-3, clipnorm=1.0, gradient_accumulation_steps=2)
    model = build_vit(tiny_config(image_size=16, patch_size=4, depth=1, **changes))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    check_steps(model, loss, ["accuracy"], (None,), optimizer)


@old_keras
def test_a_segmenter_may_be_compiled():
    model = build_segmenter(build_vit(tiny_config(depth=1, classes=None)), 4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    metrics = [keras.metrics.MeanIoU(4, ignore_class=255, sparse_y_pred=False)]
    check_steps(model, loss, metrics, model.output.shape[:3], "sgd")


def check_steps(model, loss, metrics, label_shape, optimizer):
    model.compile(optimizer, loss, metrics=metrics, jit_compile=False)
    shapes = model.input.shape[1:], label_shape[1:]
    model._symbolic_build(data_batch=tuple(np.zeros((2, *shape), "float32") for shape in shapes))
    specs = tf.TensorSpec((None, *shapes[0])), tf.TensorSpec(label_shape, "uint8")
    for step in (model.train_step, model.test_step):
        is_valid = check_graph(tf.function(step, autograph=False).get_concrete_function(specs))
        batch = [tf.zeros((2, *shapes[0])), tf.zeros((2, *shapes[1]), "uint8")]
        assert is_valid(tuple(batch))
        batch[1] += np.uint8(255)  # the class that is ignored
        assert is_valid(tuple(batch))
        batch[1] -= np.uint8(1)
        assert not is_valid(tuple(batch))
