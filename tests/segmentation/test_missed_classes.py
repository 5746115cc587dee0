"""Classes with an IoU of 0 are named after every epoch, and at the end with what to do."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.segmentation.masks import read_mask_arrays
from keras_vit.segmentation.missed_classes import WatchClasses

NAMES = ["sky", "road", "car", "sea"]


def fit(bias, labels, validation=None, epochs=2, quiet=False, rate=0.0):
    """Trains logits that are the same for all pixels, the bias alone."""
    labels = np.array(labels)[:, None, :]  # (B, 1, W)
    x = keras.Input((1, labels.shape[2], 3))
    layer = keras.layers.Conv2D(4, 1, kernel_initializer="zeros")
    model = keras.Model(x, layer(x))
    layer.bias.assign(bias)
    metric = keras.metrics.MeanIoU(4, ignore_class=255, sparse_y_pred=False)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=[metric])
    images = np.zeros((*labels.shape, 3), "uint8")
    watch = WatchClasses(read_mask_arrays(images, labels, NAMES), "Do this.", quiet)
    if validation is not None:
        own = np.array(validation)[:, None, :]
        validation = np.zeros((*own.shape, 3)), own
    options = {"validation_data": validation, "epochs": epochs, "callbacks": [watch]}
    model.fit(images.astype("float32"), labels, verbose=0, **options)


def test_classes_that_stay_at_zero_are_named_with_what_to_do(capsys):
    fit([1, 0, 0, 0], [[0, 0, 0, 0, 0, 1, 2, 255]])
    out, error = capsys.readouterr()
    assert out == "  IoU 0: road, car\n" * 2  # no mask has sea: it cannot be found
    assert error == (
        "keras-vit: warning: No pixel of these classes was found in any epoch, their IoU is 0: "
        "road (14.29%), car (14.29%); in brackets their share of the training masks. Do this.\n"
    )
    fit([1, 0, 0, 0], [[0, 0, 0, 1]], quiet=True)
    out, error = capsys.readouterr()
    assert not out and "road (25.00%)" in error


def test_classes_without_training_masks_are_named(capsys):
    fit([1, 0, 0, 0], [[0, 0, 0, 1]], validation=[[0, 1, 3, 3]])
    out, error = capsys.readouterr()
    assert out == "  IoU 0: road, sea\n" * 2
    first, second = error.splitlines()
    assert "road (25.00%);" in first and "sea" not in first
    assert "No training mask has a pixel of these classes: sea. Check --classes" in second


@pytest.mark.parametrize(
    ("bias", "labels", "epochs", "said"),
    [
        ([1, 0, 0, 0], [[0, 0, 0, 0]], 1, ""),  # one class, and it is found
        ([0.2, 0, -9, -9], [[0, 1, 1, 1]], 2, "  IoU 0: road\n"),  # found in the second epoch
    ],
)
def test_classes_that_are_found_are_not_named(bias, labels, epochs, said, capsys):
    fit(bias, labels, epochs=epochs, rate=1.0)
    out, error = capsys.readouterr()
    assert error == "" and out.replace("  IoU 0: sky\n", "") == said
