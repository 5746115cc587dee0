"""Batches of images with masks: joint geometry, colours, weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from keras_vit.config import Preprocessing
from keras_vit.data.input_transform import InputTransform
from keras_vit.segmentation.mask_pipeline import MaskAugmentation, mask_batches
from keras_vit.segmentation.masks import read_mask_arrays
from tests.segmentation.test_masks import NAMES, SIZE

STILL = MaskAugmentation(brightness=0, contrast=0, saturation=0)


def painted(count=4, size=(40, 60)):
    """Images whose red channel is 50 times their label, so that both must move together."""
    coarse = np.random.default_rng(1).integers(0, 3, (count, size[0] // 10, size[1] // 10))
    labels = np.kron(coarse, np.ones((10, 10), "int32")).astype("uint8")
    images = np.stack([labels * 50, *[np.full(labels.shape, 90)] * 2], -1).astype("uint8")
    return read_mask_arrays(images, labels, NAMES)


def test_geometry_is_that_of_image_and_mask_alike():
    batches = mask_batches(painted(), InputTransform(SIZE), 4, training=True, augmentation=STILL)
    batches = [next(iter(batches)) for _ in range(4)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    assert x.shape == (16, *SIZE, 3) and y.dtype == np.uint8
    labelled = y != 255
    inside = np.abs(x[..., 0] - 50.0 * y)[labelled] < 1e-3  # not between two classes
    assert inside.mean() > 0.6 and 0.02 < 1 - labelled.mean() < 0.6
    np.testing.assert_allclose(x[..., 1][labelled], 90, atol=1e-3)
    np.testing.assert_allclose(x[~labelled], 127.5, atol=1e-3)  # the mean, where it was padded
    mirrored = [x[i, :, ::-1] for i in range(16)]
    assert len({np.asarray(each).tobytes() for each in [*x, *mirrored]}) > 28


def test_colours_change_in_the_image_alone_and_repeatably():
    def first(**options):
        return next(iter(mask_batches(painted(), InputTransform(SIZE), 4, True, **options)))

    (still, labels), (changed, same) = first(augmentation=STILL), first()
    np.testing.assert_array_equal(labels, same)
    assert np.abs(still - changed).mean() > 3 and np.min(changed) >= 0 and np.max(changed) <= 255
    np.testing.assert_array_equal(first()[0], changed)
    assert not np.array_equal(first(seed=1)[0], changed)


def test_evaluation_takes_every_pixel_at_its_centre_and_weights_follow_labels():
    masks = painted(3)
    batches = mask_batches(masks, InputTransform((20, 30)), 2, class_weights=(1, 2, 0.5))
    x, y, w = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    np.testing.assert_array_equal(y, masks.rows[1][:, 1::2, 1::2])
    np.testing.assert_array_equal(w, np.array([1, 2, 0.5])[y])
    assert x.shape == (3, 20, 30, 3)
    # As predictions and exports resize, whatever classification did.
    cubic = InputTransform((20, 30), Preprocessing(interpolation="bicubic"))
    again = np.concatenate([x for x, _ in mask_batches(masks, cubic, 2)])
    np.testing.assert_array_equal(again, x)
    with pytest.raises(ValueError, match=r"`class_weights` must be 3 numbers"):
        mask_batches(masks, InputTransform(SIZE), 2, class_weights=(1, 2))
    rest, held = masks.split(1)
    assert (rest.num_images, held.num_images) == (2, 1)


def test_hue_turns_the_colours_of_the_image_alone():
    images = np.zeros((4, 16, 16, 3), "uint8") + np.array([200, 40, 40], "uint8")
    masks = read_mask_arrays(images, np.zeros((4, 16, 16), int), ["red"])
    size = InputTransform((16, 16), normalize=False)
    augmentation = dataclasses.replace(STILL, hue=0.2, scale=(1.0, 1.0))
    (found, labels), *_ = mask_batches(masks, size, 4, training=True, augmentation=augmentation)
    found = found.numpy()
    np.testing.assert_allclose(found.max(-1), 200, atol=1e-3)  # as bright and as saturated
    np.testing.assert_allclose(found.min(-1), 40, atol=1e-3)
    assert len(np.unique(found.round(2).reshape(-1, 3), axis=0)) == 4  # another turn each
    assert set(np.unique(labels)) <= {0, 255}
    with pytest.raises(ValueError, match=r"`hue` must be in \[0, 0.5\]. Received: 0.6"):
        MaskAugmentation(hue=0.6)
