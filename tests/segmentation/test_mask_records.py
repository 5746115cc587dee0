"""Masks in TFRecords: read as those of files, in parts of workers, and what is wrong with them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.shards import find_shards
from keras_vit.segmentation.mask_pipeline import MaskAugmentation, mask_batches
from keras_vit.segmentation.mask_records import read_mask_records
from tests.data.pictures import encoded
from tests.segmentation.test_masks import NAMES, SIZE, mask_file

COUNT = 7


def image_of(number):
    """One shade, which tells the image, in the size of its mask."""
    return np.full((20, 30 + number, 3), 30 * number, "uint8")


def labels_of(number):
    labels = np.random.default_rng(number).integers(0, 3, (20, 30 + number)).astype("uint8")
    labels[:2] = 255
    return labels


def write(folder, kind="grey", shift=0):
    for file in range(2):
        with tf.io.TFRecordWriter(f"{folder}/{file}.tfrecord") as writer:
            for number in range(file, COUNT, 2):
                labels = labels_of(number)
                mask = mask_file(np.where(labels == 255, 255, labels + shift).astype("uint8"), kind)
                values = (encoded(image_of(number), "png"), mask)
                features = {
                    key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                    for key, value in zip(("image", "mask"), values, strict=True)
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return find_shards(f"{folder}/*.tfrecord")


def parse(record):
    features = dict.fromkeys(("image", "mask"), tf.io.FixedLenFeature((), tf.string))
    found = tf.io.parse_single_example(record, features)
    return found["image"], found["mask"]


def parse_to_integers(record):
    image, mask = parse(record)
    return tf.io.decode_png(image), tf.io.decode_png(mask, 1)  # (h, w, 1)


STILL = MaskAugmentation(scale=(1, 1), brightness=0, contrast=0, saturation=0)
ORDER = [*range(0, COUNT, 2), *range(1, COUNT, 2)]  # of the files


@pytest.mark.parametrize("parse", [parse, pytest.param(parse_to_integers, marks=pytest.mark.slow)])
def test_records_have_the_masks_that_were_written(parse, tmp_path):
    masks = read_mask_records(write(tmp_path, shift=1), parse, NAMES, first_value=1)
    assert masks.num_images == COUNT
    for number, (_, labels) in zip(ORDER, masks.pairs(), strict=True):
        np.testing.assert_array_equal(labels, labels_of(number))
    rest, held_out = masks.split(2)
    found = [labels.shape[1] - 30 for part in (rest, held_out) for _, labels in part.pairs()]
    assert found == ORDER and (rest.num_images, held_out.num_images) == (5, 2)
    read = [
        image for pixels, _ in mask_batches(held_out, InputTransform(SIZE), 1) for image in pixels
    ]
    assert [round(float(pixels.numpy().mean()) / 30) for pixels in read] == ORDER[-2:]


def test_training_shuffles_files_without_the_held_out_records(tmp_path):
    rest, _ = read_mask_records(write(tmp_path), parse, NAMES).split(2)
    batches = mask_batches(rest, InputTransform((20, 20)), 5, True, STILL, shuffle_buffer=2)
    epochs = [
        [round(float(np.median(pixels)) / 30) for pixels in next(iter(batches))[0]]
        for _ in range(3)
    ]
    assert [sorted(numbers) for numbers in epochs] == [sorted(ORDER[:5])] * 3
    assert len(set(map(tuple, epochs))) > 1


@pytest.mark.slow
def test_workers_share_the_records_and_epochs_differ(tmp_path):
    masks = read_mask_records(write(tmp_path), parse, NAMES)
    readers = [
        mask_batches(
            masks, InputTransform((20, 20)), 2, True, augmentation=STILL, seed=3, worker=(i, 2)
        )
        for i in range(2)
    ]
    epochs = []
    for _ in range(2):
        seen = [
            [int(np.round(np.median(each) / 30)) for pixels, _ in reader for each in pixels.numpy()]
            for reader in readers
        ]
        assert len(seen[0]) == len(seen[1]) and len({*seen[0], *seen[1]}) == 2 * len(seen[0])
        epochs.append(tuple(map(tuple, seen)))
    assert len(set(epochs)) > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: tf.image.grayscale_to_rgb(mask), r"uint8 of shape \(None, None, 3\)"),
        (
            lambda mask: tf.image.convert_image_dtype(mask, "float32"),
            "Received from `parse`: float",
        ),
        (lambda mask: tf.reshape(mask, (-1,)), "or bytes of a grey PNG"),
    ],
    ids=["channels", "floats", "one axis"],
)
def test_what_parse_gives_must_be_labels(change, message, tmp_path):
    def changed(record):
        image, mask = parse_to_integers(record)
        return image, change(mask)

    with pytest.raises(ValueError, match=message):
        masks = read_mask_records(write(tmp_path), changed, NAMES)
        mask_batches(masks, InputTransform(SIZE), 2)


@pytest.mark.parametrize(
    ("kind", "names", "message"),
    [
        ("palette", NAMES, "is no grey PNG of 8 bits"),
        ("colours", NAMES, "is no grey PNG of 8 bits"),
        ("grey", NAMES[:2], "none of its 2 classes"),
    ],
)
def test_masks_that_are_no_labels_are_errors(kind, names, message, tmp_path):
    masks = read_mask_records(write(tmp_path, kind), parse, names)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(mask_batches(masks, InputTransform(SIZE), 2)))


def test_a_mask_of_another_size_is_an_error(tmp_path):
    def cut(record):
        image, mask = parse_to_integers(record)
        return image, mask[:-1]

    masks = read_mask_records(write(tmp_path), cut, NAMES, name="streets")
    message = r"mask of streets has another size than its image.*:\] \[19 3\d\] \[20 3\d\]"
    for training in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            for _ in mask_batches(masks, InputTransform(SIZE), 2, training=training):
                pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: mask[:20], "A mask of streets is no grey PNG of 8 bits"),
        (lambda mask: b"", "A mask of streets is no grey PNG of 8 bits"),
        (
            lambda mask: mask[:16] + struct.pack(">II", 1 << 31, 1 << 31) + mask[24:],
            f"A mask of streets has more than {MAX_PIXELS} pixels",
        ),
    ],
    ids=["cut", "empty", "large"],
)
def test_damaged_masks_are_errors_that_name_the_source(change, message, tmp_path):
    def changed(record):
        image, mask = parse(record)
        return image, tf.ensure_shape(tf.numpy_function(change, [mask], tf.string), ())

    masks = read_mask_records(write(tmp_path), changed, NAMES, name="streets")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(mask_batches(masks, InputTransform(SIZE), 2)))
