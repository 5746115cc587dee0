"""The settings of the papers' data sets, on TFDS's mock data."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_vit.config import Preprocessing
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.datasets import DATASETS, VTAB, find_dataset, list_datasets, read_dataset
from keras_vit.data.input_transform import InputTransform
from keras_vit.train.recipes import RECIPES
from tests.checks import quick

TRANSFORM = InputTransform((16, 16), Preprocessing())
CLASSES = {
    "cifar10": 10, "cifar100": 100, "pets": 37, "flowers102": 102, "imagenet": 1000,
    "vtab/caltech101": 102, "vtab/cifar100": 100, "vtab/dtd": 47, "vtab/flowers102": 102,
    "vtab/pets": 37, "vtab/sun397": 397, "vtab/svhn": 10, "vtab/camelyon": 2, "vtab/eurosat": 10,
    "vtab/resisc45": 45, "vtab/retinopathy": 5, "vtab/clevr_count": 8, "vtab/clevr_distance": 6,
    "vtab/dmlab": 6, "vtab/dsprites_location": 16, "vtab/dsprites_orientation": 16,
    "vtab/kitti_distance": 4, "vtab/smallnorb_azimuth": 18, "vtab/smallnorb_elevation": 9,
}  # fmt: skip
# Whose mock data are not like the real ones: fewer objects, or lists of unequal lengths.
UNLIKE = {"vtab/clevr_count", "vtab/clevr_distance", "vtab/kitti_distance"}


def test_all_are_there_with_a_recipe():
    assert set(list_datasets()) == CLASSES.keys() | {"imagenet21k"} and len(VTAB) == 19
    assert all(row.recipe in RECIPES for row in DATASETS.values())
    for row in VTAB.values():
        first, second = row.train.split("+")
        start, end = second.partition("[")[2][:-1].split(":")
        assert first == "train[:800]" and int(end) - int(start or 0) == 200
        assert RECIPES[row.recipe].held_out == 200
    with pytest.raises(ValueError, match=r"no settings for 'pet'. Near it: pets"):
        find_dataset("pet")
    with pytest.raises(ValueError, match="`part` must be one of 'train', 'test'"):
        read_dataset("pets", "dev")


@pytest.mark.parametrize("name", quick(CLASSES, "vtab/clevr_count"))
def test_pipelines_on_mock_data(name, tmp_path):
    options = {"policy": tfds.testing.MockPolicy.USE_CODE, "num_sub_examples": 4}
    with tfds.testing.mock_data(num_examples=2, **options):
        images = read_dataset(name, "train", tmp_path)
        assert images.num_classes == CLASSES[name]
        if name in UNLIKE:
            assert images.read((0, 2), None, 0).element_spec[1].dtype == tf.int64
            return
        x, y = next(iter(eval_batches(images, TRANSFORM, 2)))
        assert x.shape == (2, 16, 16, 3) and y.shape == (2, CLASSES[name])
        assert x.numpy().min() >= 0 and x.numpy().max() <= 255
        x, _ = next(iter(train_batches(read_dataset(name, "test", tmp_path), TRANSFORM, 2)))
        assert x.shape == (2, 16, 16, 3) and x.numpy().std() > 0


def test_labels_of_vtab():
    def label(name, **features):
        objects = features.pop("objects", {})
        example = {key: tf.constant(value) for key, value in features.items()}
        example["objects"] = {key: tf.constant(value) for key, value in objects.items()}
        return int(DATASETS[name].label_of(example))

    assert label("vtab/clevr_count", objects={"size": [0, 1, 0]}) == 0
    for nearest, expected in ((7.9, 0), (8.2, 1), (9.7, 4), (12.0, 5)):
        coordinates = [[0.0, 0.0, 50.0], [0.0, 0.0, nearest]]
        assert label("vtab/clevr_distance", objects={"pixel_coords": coordinates}) == expected
    for ahead, kind, expected in ((5.0, 0, 0), (12.0, 2, 1), (40.0, 1, 2), (5.0, 3, 3)):
        objects = {"type": [kind], "location": [[0.0, 0.0, ahead]]}
        assert label("vtab/kitti_distance", objects=objects) == expected
    xs = [label("vtab/dsprites_location", label_x_position=n) for n in range(32)]
    assert xs == [n // 2 for n in range(32)]
    turns = [label("vtab/dsprites_orientation", label_orientation=n) for n in range(40)]
    assert turns == [int(n // 2.5) for n in range(40)]
    assert label("vtab/smallnorb_azimuth", label_azimuth=7) == 7


def test_dsprites_is_white_on_black(tmp_path):
    policy = tfds.testing.MockPolicy.USE_CODE
    with tfds.testing.mock_data(num_examples=2, max_value=2, policy=policy):
        images = read_dataset("vtab/dsprites_location", "train", tmp_path)
        pixels = images.load(next(iter(images.read((0, 1), None, 0)))[0])
        assert set(np.unique(pixels)) == {0, 255}


class Imagenet21k(tfds.core.GeneratorBasedBuilder):
    """Stands for the data set that is not in TFDS."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        label = tfds.features.ClassLabel(num_classes=21_843)
        features = tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": label})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        raise NotImplementedError

    def _generate_examples(self):
        raise NotImplementedError


def test_imagenet_21k_by_the_name_it_is_prepared_under(tmp_path):
    with tfds.testing.mock_data(num_examples=2, policy=tfds.testing.MockPolicy.USE_CODE):
        images = read_dataset("imagenet21k", "train", tmp_path)
        assert images.num_classes == 21_843
        assert next(iter(train_batches(images, TRANSFORM, 2)))[1].shape == (2, 21_843)
