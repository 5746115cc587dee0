"""Every class, label and range of numbers has its share of the held-out images."""

import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit.data.labelled_set import describe_held_out
from keras_vit.data.strata import divide_labels, hold_out
from keras_vit.detection.boxes import BoxSet
from keras_vit.image_text.pairs import class_captions


def image_set(labels, task="single_label", names=None):
    pixels = np.zeros((len(labels), 2, 2, 3), "uint8")
    return keras_vit.read_arrays(pixels, labels, names, task=task)


@pytest.mark.parametrize(
    ("share", "sizes", "held"),
    [
        (0.1, [20] * 10, [2] * 10),
        (0.1, [14, 26, 7, 2, 1], [1, 3, 1, 1, 0]),
        (0.9, [20, 3, 2, 1], [18, 2, 1, 0]),  # never all
        (0.5, [4, 10], [2, 5]),
        (0.001, [5, 5], [1, 1]),
        (6, [20, 20, 20], [2, 2, 2]),  # an exact number
        (2, [30, 20, 2], [1, 1, 0]),  # fewer than classes: the largest
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_class_has_its_share(share, sizes, held, seed):
    labels = np.random.default_rng(9).permutation(np.repeat(np.arange(len(sizes)), sizes))
    images = image_set(labels)
    rest, out = images.split(share, seed)
    assert np.bincount(out.labels, minlength=len(sizes)).tolist() == held
    assert rest.num_images + out.num_images == len(labels)


def test_halves_of_images_keep_the_total():
    labels = np.repeat(np.arange(8), 15)  # a tenth of 15 is 1.5
    counts = np.bincount(labels[hold_out("single_label", labels, 0.1, 0)])
    assert counts.sum() == 12 and set(counts) == {1, 2}
    counts = np.bincount(labels[hold_out("single_label", labels, 13, 0)])
    assert counts.sum() == 13 and set(counts) == {1, 2}
    assert len(hold_out("single_label", np.arange(10), 0.3, 0)) == 3  # classes of one image


def test_the_choice_is_random_and_the_same_everywhere():
    labels = np.repeat([0, 1], 10)
    chosen = [hold_out("single_label", labels, 0.2, seed).tolist() for seed in (3, 3, 4)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert chosen[0] == [3, 8, 12, 16]  # of every platform
    assert hold_out("multi_label", np.eye(2)[labels], 0.2, 3).tolist() == [0, 8, 10, 16]
    assert hold_out("regression", np.arange(20.0)[:, None], 0.1, 3).tolist() == [4, 16]


@pytest.mark.parametrize(("count", "labels", "frequency"), [(200, 20, 0.02), (300, 8, 0.3)])
def test_every_label_has_its_share(count, labels, frequency):
    random = np.random.default_rng(0)
    values = (random.random((count, labels)) < frequency).astype("float32")
    values[0] = values[:, 0] = 0
    values[0, 0] = 1  # one image alone
    images = image_set(values, "multi_label")
    rest, out = images.split(0.1)
    sizes, held = values.sum(axis=0), out.labels.sum(axis=0)
    wanted = np.where(sizes > 1, np.maximum(1, sizes / 10), 0)
    assert np.abs(held - wanted).max() <= 1.5 and held[0] == 0
    assert (held[sizes > 1] >= 1).all() and (rest.labels.sum(axis=0)[sizes > 1] >= 1).all()
    assert abs(out.num_images - count / 10) <= 2
    assert images.split(17)[1].num_images == 17
    _, parts = divide_labels(values, [0.2] * 5, np.random.default_rng(0))
    folds = np.stack([values[parts == part].sum(axis=0) for part in range(5)])
    assert np.ptp(folds, axis=0).max() <= 2 and np.ptp(np.bincount(parts)) <= 2


@pytest.mark.parametrize("share", [0.1, 0.9, 30])
def test_numbers_come_from_all_ranges(share):
    values = np.random.default_rng(0).exponential(size=(200, 1)).astype("float32")
    _, out = image_set(values, "regression").split(share)
    count = share if share > 1 else round(200 * share)
    assert out.num_images == count
    quarters = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), out.labels[:, 0])
    assert np.ptp(np.bincount(quarters)) <= 1
    few = image_set(values[:3], "regression")
    assert [few.split(each)[1].num_images for each in (0.1, 0.5, 0.9)] == [1, 2, 2]
    pairs = np.random.default_rng(0).normal(size=(160, 2)).astype("float32")
    _, out = image_set(pairs, "regression").split(0.1)
    signs = (out.labels > np.median(pairs, axis=0)) @ [1, 2]
    assert np.bincount(signs).min() >= 3  # of 16 in four quadrants


def test_boxes_and_captions_of_classes_are_spread_and_others_are_not():
    labels = np.repeat(np.arange(4), 10)
    pairs = class_captions(image_set(labels))
    assert np.bincount(pairs.split(0.2)[1].labels).tolist() == [2] * 4
    ids = np.stack([labels, np.full(40, -1)], axis=1)
    rows = (np.zeros((40, 2, 2, 3)), np.ones((40, 2)), np.zeros((40, 2, 4)), ids)
    boxes = BoxSet("boxes", tuple("abcd"), rows, load=None)
    assert np.bincount(boxes.split(0.2)[1].labels[:, 0]).tolist() == [2] * 4
    own = dataclasses.replace(pairs, class_names=())
    assert describe_held_out(*own.split(8)) == "8 of 40 images, drawn at random"


def test_what_is_held_out_is_said():
    names = ("cat", "dog", "one")
    images = image_set(np.array([0] * 10 + [1] * 20 + [2]), names=names)
    parts = images.split(0.1)
    assert describe_held_out(*parts) == "cat 1 of 10, dog 2 of 20, one 0 of 1"
    many = image_set(np.r_[np.repeat(np.arange(20), 10), 20])
    text = "20 of 201 images, 0 to 1 of each of 21 classes; none of 20 (1)"
    assert describe_held_out(*many.split(0.1)) == text
    numbers = image_set(np.arange(20.0)[:, None], "regression")
    assert (
        describe_held_out(*numbers.split(0.1)) == "2 of 20 images, from all ranges of the numbers"
    )
    vectors = image_set(np.eye(2)[[0] * 10 + [1] * 10], "multi_label")
    assert describe_held_out(*vectors.split(0.1)) == "0 1 of 10, 1 1 of 10"
    records = dataclasses.replace(images, records=lambda *_: None, rows=(np.arange(31),))
    text = "3 of 31 images, the last ones in the stored order"
    assert describe_held_out(*records.split(0.1)) == text
