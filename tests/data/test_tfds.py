"""TensorFlow Datasets by name: prepared ones, and mocked ones."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_vit.config import Preprocessing
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.digests import digest_images
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.record_folder import read_record_folder, write_records
from keras_vit.data.tfds import read_tfds
from keras_vit.segmentation.mask_records import read_tfds_masks
from tests.data.pictures import encoded, pixels

TRANSFORM = InputTransform((16, 16), Preprocessing())
PLAIN = Augmentation(crop="none", flip=False)
NAMES = [f"class {n}" for n in range(23)]


class TinyPictures(tfds.core.GeneratorBasedBuilder):
    """Every image has a class of its own."""

    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=NAMES),
            "name": tfds.features.Text(),
            "segmentation_mask": tfds.features.Image(shape=(None, None, 1)),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {"train": self._examples(0, 20), "test": self._examples(20, 23)}

    def _generate_examples(self):
        raise NotImplementedError

    def _examples(self, first, end):
        for n in range(first, end):
            image = pixels(20 + n, 24, n)
            mask = image[..., :1] % 3 + 1
            if n == 22:  # as a file, which TFDS stores as it is
                palette = PIL.Image.fromarray(mask[..., 0], "P")
                palette.putpalette([7 * i % 256 for i in range(768)])
                mask = io.BytesIO(encoded(palette, "png"))
            row = {"image": image, "label": n, "name": f"{n:b}"}
            yield n, row | {"segmentation_mask": mask}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    config = tfds.download.DownloadConfig(num_shards=3)
    TinyPictures(data_dir=folder).download_and_prepare(download_config=config)
    return folder


def labels(batches):
    return [int(label) for _, y in batches for label in y.numpy().argmax(-1)]


def test_a_prepared_data_set_is_read_by_name_version_and_slice(data_dir):
    images = read_tfds("tiny_pictures:1.2.0", "train", data_dir)
    assert images.num_images == 20 and images.class_names == tuple(NAMES)
    x, _ = next(iter(eval_batches(images, TRANSFORM, 20)))
    np.testing.assert_allclose(x[3], tf.image.resize(pixels(23, 24, 3), (16, 16)), atol=1e-3)
    for split, expected in {
        "train[15:]+test": range(15, 23),
        "test": range(20, 23),
    }.items():
        found = read_tfds("tiny_pictures", split, data_dir)
        assert labels(eval_batches(found, TRANSFORM, 4)) == list(expected), split
    rest, held_out = images.split(0.1)
    assert labels(eval_batches(rest, TRANSFORM, 8)) == list(range(18))
    assert labels(eval_batches(held_out, TRANSFORM, 8)) == [18, 19]


@pytest.mark.slow
def test_training_shuffles_files_without_the_held_out_records(data_dir):
    rest, held_out = read_tfds("tiny_pictures", "train", data_dir).split(8)
    again, _ = rest.split(4)
    for images, numbers in ((rest, range(12)), (held_out, range(12, 20)), (again, range(8))):
        batches = train_batches(images, TRANSFORM, 4, PLAIN)
        orders = [labels(batches) for _ in range(3)]
        assert [sorted(order) for order in orders] == [list(numbers)] * 3
        assert orders[0] != orders[1]
    assert len({digest_images(images) for images in (rest, held_out.split(4)[0], again)}) == 3


@pytest.mark.slow
def test_workers_share_its_files(data_dir):
    images = read_tfds("tiny_pictures", "train[1:]", data_dir)
    readers = [
        train_batches(images, TRANSFORM, 4, PLAIN, drop_remainder=False, worker=(i, 2))
        for i in (0, 1)
    ]
    for _ in range(2):
        parts = [labels(reader) for reader in readers]
        assert sorted(parts[0] + parts[1]) == list(range(1, 20))
        assert sorted(map(len, parts)) == [9, 10]


def test_labels_of_ones_own(data_dir):
    images = read_tfds(
        "tiny_pictures",
        "train",
        data_dir,
        label_of=lambda example: tf.strings.length(example["name"]) - 1,
        class_names="12345",
    )
    expected = [len(f"{n:b}") - 1 for n in range(20)]
    assert labels(eval_batches(images, TRANSFORM, 4)) == expected


def test_masks_are_read_by_name_and_slice(data_dir):
    names = ("cat", "dog", "edge")
    masks = read_tfds_masks("tiny_pictures", "train[15:]+test[:2]", names, data_dir, first_value=1)
    assert masks.num_images == 7
    for n, (_, found) in enumerate(masks.pairs(), start=15):
        np.testing.assert_array_equal(found, pixels(20 + n, 24, n)[..., 0] % 3)
    with pytest.raises(ValueError, match=r"cannot be decoded \(A mask of .* is no grey PNG of 8"):
        list(read_tfds_masks("tiny_pictures", "test[2:]", names, data_dir).pairs())
    with pytest.raises(ValueError, match=r"no feature 'mask' that is an image of one channel"):
        read_tfds_masks("tiny_pictures", "train", names, data_dir, mask="mask")
    with pytest.raises(ValueError, match=r"no feature 'image' that is an image of one channel"):
        read_tfds_masks("tiny_pictures", "train", names, data_dir, mask="image")


def test_what_is_not_there_is_an_error(data_dir, tmp_path):
    with pytest.raises(
        ValueError, match=r"tiny_pictures/1.2.0 has no split 'dev'. It has test, tr"
    ):
        read_tfds("tiny_pictures", "dev", data_dir)
    with pytest.raises(FileNotFoundError, match=r"cifar10/.* is not in .* Pass `download=True`"):
        read_tfds("cifar10", "train", tmp_path)
    with pytest.raises(ValueError, match=r"`label_of` makes labels of its own: pass their `class"):
        read_tfds("tiny_pictures", "train", data_dir, label_of=len)
    with pytest.raises(ValueError, match=r"'glue' has no feature 'image'. It has sentence"):
        read_tfds("glue", "train", tmp_path)
    with pytest.raises(ValueError, match=r"'dsprites' has no feature 'label' with classes"):
        read_tfds("dsprites", "train", tmp_path)


@pytest.mark.slow  # tests/data/test_datasets.py reads mocked data, too
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("imagenet2012:5.*.*", 1000)])
def test_mocked_data_sets(name, classes, tmp_path):
    with tfds.testing.mock_data(num_examples=5, policy=tfds.testing.MockPolicy.USE_CODE):
        images = read_tfds(name, "train[:98%]", tmp_path)
        assert images.num_images == 5 and images.num_classes == classes
        read = labels(eval_batches(images, TRANSFORM, 2))
        for _ in range(2):
            batches = train_batches(images, TRANSFORM, 5)
            assert sorted(labels(batches)) == sorted(read)


@pytest.mark.slow
def test_a_data_set_is_written_as_records(data_dir, tmp_path):
    images = read_tfds("tiny_pictures:1.2.0", "train", data_dir)
    write_records(images, tmp_path / "records", per_file=8)
    again = read_record_folder(tmp_path / "records")
    assert again.class_names == tuple(NAMES) and again.num_images == 20
    (expected, _), (found, _) = (
        next(iter(eval_batches(each, TRANSFORM, 20))) for each in (images, again)
    )
    np.testing.assert_array_equal(found, expected)
    assert labels(eval_batches(again, TRANSFORM, 8)) == list(range(20))
