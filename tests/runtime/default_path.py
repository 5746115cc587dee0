"""What users do on processors without oneDNN (AVX2), run in new processes."""

from __future__ import annotations

import os
import resource

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import test_util

import keras_vit
from tests.fixtures import tiny_config
from tests.runtime.other_packages import page_faults


def check(folder: str) -> None:
    """Trains, predicts, saves and reloads with XLA, which `compile` has chosen itself."""
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0" and not test_util.IsMklEnabled()
    assert keras_vit.runtime.keep_buffers()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    images, labels = rng.uniform(0, 255, (12, 16, 16, 3)), rng.integers(0, 10, 12)
    model = keras_vit.build_vit(tiny_config(image_size=16, patch_size=8, depth=1))
    model.set_weights([rng.normal(0, 0.1, weight.shape) for weight in model.get_weights()])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    assert model.jit_compile is True
    losses = model.fit(images, labels, 6, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0], losses
    predictions = model.predict(images, 6, verbose=0)
    eager = keras.ops.convert_to_numpy(model(images.astype("float32")))
    np.testing.assert_allclose(predictions, eager, rtol=0, atol=1e-5)
    model.save(f"{folder}/model.keras")
    reloaded = keras.saving.load_model(f"{folder}/model.keras")
    assert reloaded.jit_compile is True
    np.testing.assert_array_equal(reloaded.predict(images, 6, verbose=0), predictions)
    print("trained, predicted, saved")
    print("page faults of products:", page_faults())
    fit_one_replica()


def fit_one_replica() -> None:
    """Prints the page faults of the last steps of `fit` under a strategy."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = keras_vit.build_vit(tiny_config(image_size=128, width=128, mlp_dim=512))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss)
    one = (np.zeros((16, 128, 128, 3), "float32"), np.zeros(16, "int32"))
    faults: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: faults.append(
            resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        )
    )
    data = tf.data.Dataset.from_tensors(one).repeat(9)
    model.fit(data, verbose=0, shuffle=False, callbacks=[note])
    print("page faults of a replica:", faults[-1] - faults[3])
