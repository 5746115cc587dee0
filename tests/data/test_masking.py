"""Masked patches as data: who is corrupted, and what is to be predicted."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_vit

SIZE, PATCH = 32, 8
PATCHES = (SIZE // PATCH) ** 2


def images(count=6, channels=3):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, SIZE, SIZE, channels)).astype("float32")


def masked(dataset=None, **changes):
    if dataset is None:
        dataset = tf.data.Dataset.from_tensor_slices(images()).batch(4)
    batches = list(keras_vit.data.mask_patches(dataset, PATCH, **changes).as_numpy_iterator())
    inputs, targets, weights = zip(*batches, strict=True)
    sources = np.concatenate([x["sources"] for x in inputs])
    return (
        np.concatenate([x["images"] for x in inputs]),
        sources,
        *map(np.concatenate, (targets, weights)),
    )


def patches_of(x):
    """`(B, N, pixels, C)`, by loops."""
    starts = range(0, SIZE, PATCH)
    parts = [x[:, i : i + PATCH, j : j + PATCH] for i in starts for j in starts]
    return np.stack(parts, axis=1).reshape(len(x), PATCHES, PATCH**2, -1)


def test_shares_are_the_papers():
    dataset = tf.data.Dataset.from_tensor_slices(images(400)).batch(100)
    _, sources, _, weights = masked(dataset)
    assert ((weights > 0).sum(axis=1) == PATCHES // 2).all()
    assert np.unique(weights).tolist() == [0, 2]  # mean 1: the loss is that of the corrupted
    here = np.arange(PATCHES)
    assert (sources[weights == 0] == np.broadcast_to(here, sources.shape)[weights == 0]).all()
    corrupted = sources[weights > 0]
    stays = (sources == here)[weights > 0]
    assert np.mean(corrupted == -1) == pytest.approx(0.8, abs=0.03)
    assert np.mean(stays) == pytest.approx(0.1, abs=0.02)
    replaced = corrupted[(corrupted >= 0) & ~stays]
    assert len(replaced) / len(corrupted) == pytest.approx(0.1, abs=0.02)
    assert set(replaced) == set(range(PATCHES))  # any of the image
    assert (weights > 0).mean(axis=0).min() > 0.4  # no place is spared


def test_the_rate_is_an_option():
    _, sources, _, weights = masked(rate=0.15, masked=1.0, replaced=0.0)
    assert ((weights > 0).sum(axis=1) == round(0.15 * PATCHES)).all()
    assert ((sources == -1) == (weights > 0)).all()
    np.testing.assert_allclose(weights.mean(), 1, rtol=1e-6)


def test_targets_are_three_bits_of_the_mean_colour():
    x, _, targets, _ = masked()
    np.testing.assert_array_equal(x, images())  # the images are not touched
    level = (patches_of(x).mean(axis=2) // 32).astype(int)
    expected = level[..., 0] * 64 + level[..., 1] * 8 + level[..., 2]
    np.testing.assert_array_equal(targets, expected)
    white = tf.data.Dataset.from_tensors(np.full((1, SIZE, SIZE, 3), 255.0, "float32"))
    assert (masked(white)[2] == 511).all()
    grey = tf.data.Dataset.from_tensors(np.full((1, SIZE, SIZE, 1), 64, "uint8"))
    assert (masked(grey)[2] == 2).all()


def test_targets_of_the_small_patch():
    x, _, targets, weights = masked(target="small_patch")
    assert weights.shape == (6, PATCHES, 1)
    squares = patches_of(x).reshape(6, PATCHES, 4, 2, 4, 2, 3).mean(axis=(3, 5))
    level = (squares.reshape(6, PATCHES, 16, 3) // 32).astype(int)
    np.testing.assert_array_equal(targets, level @ [64, 8, 1])


def test_targets_of_all_pixels():
    x, _, targets, _ = masked(target="pixels")
    expected = patches_of(x).reshape(6, PATCHES, -1) / 127.5 - 1
    np.testing.assert_allclose(targets, expected, atol=1e-6)


def test_choices_repeat_and_differ():
    dataset = tf.data.Dataset.from_tensor_slices(images()).batch(3)
    run = keras_vit.data.mask_patches(dataset, PATCH, seed=3)
    epochs = [[x["sources"] for x, _, _ in run.as_numpy_iterator()] for _ in range(2)]
    again = keras_vit.data.mask_patches(dataset, PATCH, seed=3)
    repeated = [[x["sources"] for x, _, _ in again.as_numpy_iterator()] for _ in range(2)]
    np.testing.assert_array_equal(epochs, repeated)
    assert len({np.asarray(batch).tobytes() for epoch in epochs for batch in epoch}) == 4
    assert masked(seed=4)[1].tobytes() != masked(seed=3)[1].tobytes()


def test_labels_are_dropped_and_lengths_kept():
    dataset = tf.data.Dataset.from_tensor_slices((images(), np.arange(6))).batch(4)
    run = keras_vit.data.mask_patches(dataset, PATCH)
    assert run.cardinality() == 2
    assert run.element_spec[0]["images"].shape == (None, SIZE, SIZE, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "colour"}, "`target` must be one of 'mean_color'"),
        ({"rate": 0}, r"`rate` must be in \(0, 1\].*rate=0"),
        ({"masked": 0.9, "replaced": 0.2}, "sum is at most 1"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        masked(**changes)


def test_wrong_images_are_named():
    with pytest.raises(ValueError, match="takes batches of images"):
        masked(tf.data.Dataset.from_tensor_slices(images()))
    with pytest.raises(ValueError, match="whole number of patches"):
        keras_vit.data.mask_patches(tf.data.Dataset.from_tensors(images()), 5)
