"""From images to batches: one order of steps, and the same pixels whatever runs in parallel."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data.augmentation import AUGREG, Augmentation
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.folder import read_folder
from keras_vit.data.image_set import read_arrays, read_records
from keras_vit.data.input_transform import InputTransform, transform_of
from keras_vit.data.rand_augment import rand_augment
from keras_vit.data.shards import find_shards
from keras_vit.data.transforms import eval_transform
from tests.checks import quick
from tests.data.pictures import encoded, pixels, write_folder
from tests.fixtures import tiny_config

TRANSFORM = InputTransform((16, 16), Preprocessing())
PLAIN = Augmentation(crop="none", flip=False)
COUNT = 11
EVERYTHING = Augmentation(
    rand_augment=(1, 10), erasing=0.5, label_smoothing=0.1, mixup=0.8, cutmix=1.0, mixing="timm"
)
QUICK = dataclasses.replace(EVERYTHING, rand_augment=None)  # its graph takes seconds to build


def arrays(count=COUNT, classes=None):
    x = np.stack([pixels(20, 24, seed) for seed in range(count)])
    return x, np.arange(count) % (classes or count)


@pytest.fixture(scope="module")
def images():
    return read_arrays(*arrays())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return read_folder(write_folder(tmp_path_factory.mktemp("folder"), count=5, size=(20, 24)))


def record_images(folder):
    x, y = arrays()
    for part in range(2):
        with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecord") as writer:
            for image, label in list(zip(x, y, strict=True))[part::2]:
                writer.write(bytes([label]) + encoded(image, "png"))

    def parse(record):
        return tf.strings.substr(record, 1, -1), tf.io.decode_raw(
            tf.strings.substr(record, 0, 1), tf.uint8
        )[0]

    return read_records(find_shards(f"{folder}/*.tfrecord"), parse, [str(n) for n in range(COUNT)])


def labels_of(batches):
    return [batch[1].numpy().argmax(-1).tolist() for batch in batches]


def flat(lists):
    return [item for part in lists for item in part]


def read(batches):
    return flat(labels_of(batches))


def test_evaluation_sees_every_image_once_in_order(images):
    x, y = arrays()
    batches = list(eval_batches(images, TRANSFORM, 4))
    assert [len(part) for part, _ in batches] == [4, 4, 3]
    assert read(batches) == y.tolist()
    expected = [eval_transform(image, TRANSFORM.preprocessing, TRANSFORM.image_size) for image in x]
    np.testing.assert_array_equal(np.concatenate([part for part, _ in batches]), expected)
    kept = eval_batches(images, TRANSFORM, 4, cache=True)
    for _ in range(2):
        assert read(kept) == y.tolist()


def test_training_shuffles_all_and_epochs_differ(images):
    batches = train_batches(images, TRANSFORM, 4, PLAIN)
    assert len(batches) == 2 and batches.element_spec[0].shape == (4, 16, 16, 3)
    epochs = [read(batches) for _ in range(8)]
    assert all(len(set(one)) == 8 for one in epochs)
    assert len(set(map(tuple, epochs))) == 8
    assert set(flat(epochs)) == set(range(COUNT))  # others are left out in every epoch
    whole = train_batches(images, TRANSFORM, 4, PLAIN, drop_remainder=False)
    assert sorted(read(whole)) == list(range(COUNT))
    second = train_batches(images, TRANSFORM, 4, PLAIN, seed=1)
    assert [read(second) for _ in range(3)] != epochs[:3]


def test_repeats_and_steps(images):
    batches = train_batches(images, TRANSFORM, 4, PLAIN, repeats=3, steps=7)
    labels = read(batches)
    assert len(batches) == 7 and len(labels) == 28
    assert sorted(labels[:11]) == sorted(labels[11:22]) == list(range(11))
    assert labels[:11] != labels[11:22]
    small = train_batches(images, TRANSFORM, 16, PLAIN, repeats=2)
    assert len(small) == 1


@pytest.mark.parametrize("source", quick(["arrays", "folder", "records"]))
def test_the_same_pixels_at_any_parallelism(source, images, folder, tmp_path):
    chosen = {"arrays": images, "folder": folder}.get(source) or record_images(tmp_path)
    varied = EVERYTHING if source == "arrays" else QUICK
    runs = []
    for threads in (1, 4):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.autotune.enabled = threads > 1
        batches = train_batches(chosen, TRANSFORM, 3, varied, seed=3).with_options(options)
        runs.append([part.numpy() for _ in range(2) for batch in batches for part in batch])
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(runs[0][0], runs[0][2 * len(batches)])  # another epoch


@pytest.mark.parametrize("source", quick(["arrays", "records"], "arrays"))
def test_workers_read_every_image_once_a_pass(source, images, tmp_path):
    chosen = images if source == "arrays" else record_images(tmp_path)
    options = {"drop_remainder": False, "seed": 2}
    readers = [
        train_batches(chosen, TRANSFORM, 6, PLAIN, worker=(i, 3), **options) for i in range(3)
    ]
    for _ in range(2):
        parts = [labels_of(reader) for reader in readers]
        assert len({len(part) for part in parts}) == 1
        assert sorted(flat(flat(parts))) == list(range(COUNT))
    if source == "arrays":  # the same pixels, too, as one worker makes
        alone = train_batches(chosen, TRANSFORM, 6, Augmentation(), **options)
        several = [
            train_batches(chosen, TRANSFORM, 6, Augmentation(), worker=(i, 3), **options)
            for i in range(3)
        ]
        pixels = np.concatenate([x for reader in several for x, _ in reader])
        np.testing.assert_array_equal(np.concatenate([x for x, _ in alone]), pixels)


@pytest.mark.slow
def test_images_in_memory_are_the_same(folder, tmp_path):
    for chosen in (folder, record_images(tmp_path)):
        kept = chosen.in_memory()
        one, other = (list(eval_batches(each, TRANSFORM, 5)) for each in (chosen, kept))
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first[0], second[0])
            np.testing.assert_array_equal(first[1], second[1])


def test_some_images_are_drawn_into_memory(images, tmp_path):
    for chosen in (images, record_images(tmp_path)):
        kept = [chosen.in_memory(5, seed) for seed in (0, 0, 1)]
        drawn = [each.labels.tolist() for each in kept]
        assert drawn[0] == drawn[1] != drawn[2] and len(set(drawn[0])) == 5
        assert [int(label) for _, label in kept[0].read((0, 5), None, 0)] == drawn[0]
        with pytest.raises(ValueError, match="`count` must be"):
            chosen.in_memory(0)


@pytest.mark.parametrize("channels", [3, 2])
def test_pixels_of_unequal_size_are_kept_as_png(images, channels):
    sizes = [(4, 5, channels), (6, 2, channels)]
    pixels = [np.arange(np.prod(size), dtype="uint8").reshape(size) for size in sizes]

    def read(*_):
        spec = tf.TensorSpec((None, None, channels), tf.uint8), tf.TensorSpec((), tf.int64)
        return tf.data.Dataset.from_generator(
            lambda: ((x, i) for i, x in enumerate(pixels)), output_signature=spec
        )

    records = dataclasses.replace(images, rows=(np.arange(2),), records=read)
    if channels == 2:
        with pytest.raises(ValueError, match="are stored as pixels and differ in size"):
            records.in_memory()
        return
    for (png, _), expected in zip(records.in_memory().read((0, 2), None, 0), pixels, strict=True):
        np.testing.assert_array_equal(tf.io.decode_png(png), expected)


def test_held_out_images_are_no_longer_there(images, tmp_path):
    for chosen, spread in ((images, [0, 3, 7]), (record_images(tmp_path), [0, 6, 3])):
        assert [int(label) for _, label in chosen.spread(3)] == spread
        rest, held_out = chosen.split(0.3)
        parts = [read(eval_batches(part, TRANSFORM, 4)) for part in (rest, held_out)]
        assert [len(part) for part in parts] == [8, 3]
        assert sorted(flat(parts)) == list(range(COUNT))
    assert [part.num_images for part in images.split(2)] == [9, 2]
    with pytest.raises(ValueError, match=r"11 images, .* held out .* share=0.01, which is 0"):
        images.split(0.01)


def test_labels_are_smoothed_as_keras_does(images):
    batches = train_batches(images, TRANSFORM, 4, dataclasses.replace(PLAIN, label_smoothing=0.1))
    logits = np.random.default_rng(0).normal(size=(4, COUNT)).astype("float32")
    for _, labels in batches:
        hard = np.eye(COUNT)[labels.numpy().argmax(-1)].astype("float32")
        smoothing = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        plain = keras.losses.CategoricalCrossentropy(from_logits=True)
        np.testing.assert_allclose(plain(labels, logits), smoothing(hard, logits), rtol=1e-6)


@pytest.mark.slow
def test_rand_augment_works_on_whole_numbers_after_the_crop(images):
    seed = []

    def watch(image, layers, magnitude, own):
        seed.append((layers, magnitude, image.dtype))
        return rand_augment(image, layers, magnitude, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_vit.data.batches.rand_augment", watch)
        batches = train_batches(images, TRANSFORM, 4, AUGREG["medium2"])
    assert seed == [(2, 15, tf.uint8)]
    x, y = next(iter(batches))
    assert x.dtype == tf.float32
    assert sorted(np.count_nonzero(y.numpy(), -1).tolist())[-1] == 2  # mixed
    np.testing.assert_allclose(y.numpy().sum(-1), 1, rtol=1e-5)


def test_values_are_in_the_models_range(images):
    config = tiny_config(image_size=16, classes=COUNT)
    inside = transform_of(keras_vit.build_vit(config))
    assert inside == InputTransform((16, 16), Preprocessing(), False, 3, COUNT)
    before = transform_of(dataclasses.replace(config, include_preprocessing=False))
    assert before.normalize
    (x, _), (y, _) = (
        next(iter(eval_batches(images, transform, 4))) for transform in (inside, before)
    )
    np.testing.assert_allclose((x - 127.5) / 127.5, y, atol=1e-6)
    chosen = Augmentation(crop="none", flip=False, mixup=0.5)
    (x, _), (y, _) = (
        next(iter(train_batches(images, transform, 4, chosen))) for transform in (inside, before)
    )
    np.testing.assert_allclose((x - 127.5) / 127.5, y, atol=1e-6)


def test_transforms_of_other_models():
    free = keras.Sequential([keras.Input((None, None, 1)), keras.layers.Flatten()])
    assert transform_of(free, (8, 12)) == InputTransform((8, 12), channels=1)
    with pytest.raises(ValueError, match=r"takes images of any size. Pass `image_size`"):
        transform_of(free)
    with pytest.raises(ValueError, match=r"takes images of \(32, 32\) pixels. Received: .*64"):
        transform_of(tiny_config(), 64)


def test_what_does_not_fit_is_an_error(images):
    x, y = arrays()
    with pytest.raises(
        ValueError, match=r"11 images, fewer than a batch of 64. Take batch_size=11"
    ):
        train_batches(images, TRANSFORM, 64)
    with pytest.raises(ValueError, match=r"has 11 classes, the model 10. Build it with classes=11"):
        train_batches(images, tiny_config(), 4)
    with pytest.raises(ValueError, match=r"Mixing and smoothing .* which integers cannot express"):
        train_batches(images, TRANSFORM, 4, AUGREG["light2"], one_hot=False)
    with pytest.raises(ValueError, match=r"RandAugment needs images of 3 channels"):
        train_batches(images, InputTransform((8, 8), channels=1), 4, AUGREG["light1"])
    small = dataclasses.replace(PLAIN, crop="resize", resize_size=(18, 15))
    with pytest.raises(ValueError, match=r"=\(18, 15\), image_size=\(16, 16\)\. .* to \(19, 19\)"):
        train_batches(images, TRANSFORM, 4, small)
    with pytest.raises(
        ValueError, match=r"Labels must be from 0 to 4.* 6 others, first 5 at image"
    ):
        read_arrays(x, y, class_names="abcde")
    with pytest.raises(ValueError, match=r"one integer for each of the 11 images. Received: float"):
        read_arrays(x, y / 2)
    with pytest.raises(ValueError, match=r"at least one image. Received: shape \(0, 20"):
        read_arrays(x[:0], y[:0])
    with pytest.raises(ValueError, match=r"look like values in \[0, 1\]: multiply by 255"):
        read_arrays(x / 255, y)
    with pytest.raises(ValueError, match=r"uint16 in .* 16 bits a channel: multiply .* / 65535"):
        read_arrays(x.astype("uint16") * 257, y)
    with pytest.raises(ValueError, match=r"uint16 in .* 12 bits a channel: multiply .* 255 / 4095"):
        read_arrays(x.astype("uint16") * 16, y)
    with pytest.raises(ValueError, match=r"\[-0.76.*\]\. They look normalised"):
        read_arrays(x / 127.5 - 1, y)
    with pytest.raises(ValueError, match=r"values in \[0, 255\]. Received: float64 in \[nan"):
        read_arrays(x * np.nan, y)
    assert read_arrays(x * 0.0, y).num_images == len(x)  # black images are no error


def test_labels_in_records_are_checked_as_they_are_read(tmp_path):
    records = record_images(tmp_path)
    wrong = dataclasses.replace(records, class_names=("a", "b"), name="my records")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"my records is not from 0 to 1"):
        list(eval_batches(wrong, TRANSFORM, 4))


@pytest.mark.slow
def test_resumed_training_reads_the_same_pixels(images, tmp_path):
    """`ResumeTraining` over this pipeline: bit for bit, and without a warning."""

    def run(folder, epochs):
        keras.utils.set_random_seed(1)
        model = keras_vit.build_vit(tiny_config(image_size=16, depth=1, classes=COUNT))
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
        batches = train_batches(images, model, 4, QUICK, seed=5)
        resume = keras_vit.ResumeTraining(folder, every_n_steps=1)
        history = model.fit(batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[resume])
        return model, history

    whole, history = run(tmp_path / "whole", 3)
    run(tmp_path / "parts", 1)
    states = sorted((tmp_path / "parts").glob("*.state"))
    states[-1].unlink()  # back to the middle of an epoch
    parts, again = run(tmp_path / "parts", 3)
    assert history.history == again.history
    for one, other in zip(whole.weights, parts.weights, strict=True):
        np.testing.assert_array_equal(one, other)
