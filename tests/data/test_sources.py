"""Tars, Parquet files and records in the place of a folder: found, told apart, read by workers."""

import keras
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.batches import train_batches
from keras_vit.data.folder import find_parts
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.labelled_set import make_batches
from keras_vit.data.record_folder import write_records
from keras_vit.data.sources import are_shards, open_images, open_shards, open_training_data
from keras_vit.data.webdataset import read_webdataset
from tests.checks import quick
from tests.data.containers import (
    COUNT,
    EXPECTED,
    NAMES,
    PICTURES,
    samples,
    stored,
    write_parquets,
    write_tar,
    write_tars,
)
from tests.fixtures import tiny_config

FORMATS = ("tars", "parquet", "records")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("formats")
    write_tars(root / "tars")
    write_parquets(root / "parquet")
    write_records(open_images(str(root / "parquet")), root / "records", per_file=5)
    return root


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_is_recognised(folders, format):
    images = open_images(str(folders / format))
    assert images.class_names == NAMES and stored(images) == EXPECTED
    found = open_training_data(str(folders / format), "0.25", None, 0, {})
    assert (found.training.num_images, found.validation.num_images) == (9, 3)
    assert open_shards([str(folders / format)], labelled=False).num_images == COUNT


@pytest.mark.parametrize("format", quick([*FORMATS], "records"))
def test_workers_read_equal_parts_in_an_order_of_the_seed(folders, format):
    images = open_images(str(folders / format))

    def epochs(seed, skipped=0):
        """Pictures and labels that two workers read in two epochs."""
        options = {"shuffle_buffer": 8, "seeds_order": False}
        readers = [
            make_batches(
                images, lambda row, _: (images.load(row[0]), row[1]), None, 4, seed,
                worker=(index, 2), **options,
            )
            for index in range(2)
        ]  # fmt: skip
        for reader in readers:
            for _ in range(skipped):  # as `ResumeTraining` passes earlier epochs
                iter(reader)
        return [[list(map(flat, zip(*reader, strict=True))) for reader in readers] for _ in "12"]

    def flat(batches):
        return [item for batch in batches for item in batch.numpy().tolist()]

    first = epochs(5)
    for workers in first:
        pairs = [pair for x, y in workers for pair in zip(map(PICTURES.index, x), y, strict=True)]
        assert sorted(pairs) == EXPECTED  # each once, with its label
        assert [len(labels) for _, labels in workers] == [6, 6]  # equal parts
    assert first == epochs(5) and first[0] != first[1]
    assert epochs(6) != first
    assert epochs(5, skipped=1)[0] == first[1]  # resumed at the second epoch


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_training_resumes_with_the_same_images(folders, tmp_path, format):
    images = open_images(str(folders / format))

    def run(folder, epochs):
        keras.utils.set_random_seed(1)
        model = keras_vit.build_vit(tiny_config(image_size=16, depth=1, classes=3))
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
        resume = keras_vit.ResumeTraining(folder, every_n_steps=1)
        batches = train_batches(images, model, 4, seed=5, shuffle_buffer=8)
        return model.fit(batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[resume])

    whole = run(tmp_path / "whole", 3)
    run(tmp_path / "parts", 1)
    sorted((tmp_path / "parts").glob("*.state"))[-1].unlink()  # back to the middle of an epoch
    assert run(tmp_path / "parts", 3).history == whole.history


def test_parts_in_folders_and_in_names_of_files(tmp_path):
    write_parquets(tmp_path / "data", "train")
    write_parquets(tmp_path / "data", "test", PICTURES[::-1])
    found = open_training_data(str(tmp_path / "data"), None, None, 0, {})
    assert stored(found.training) == EXPECTED
    assert stored(found.final_test) == [(11 - i, label) for i, label in EXPECTED]
    (tmp_path / "data/more.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"parts .*, and others: more\.parquet. Name all files"):
        find_parts(tmp_path / "data")
    write_tars(tmp_path / "t/train")
    write_tars(tmp_path / "t/val")
    assert sorted(find_parts(tmp_path / "t")) == ["train", "validation"]
    held_out = open_training_data(str(tmp_path / "t"), None, None, 0, {}).validation
    assert held_out.class_names == NAMES and held_out.num_images == COUNT


def test_mixtures_are_refused(tmp_path, folders):
    write_tar(tmp_path / "a.tar", samples(range(3)))
    assert open_images(str(tmp_path / "*.tar")).num_images == 3
    (tmp_path / "cats").mkdir()
    with pytest.raises(ValueError, match=r"files of one format.*tars and folders \(cats\). Move"):
        open_images(str(tmp_path))
    write_parquets(tmp_path)
    with pytest.raises(ValueError, match=r"Received: Parquet files and tars and folders"):
        are_shards([str(tmp_path)])
    with pytest.raises(ValueError, match=r"one format are expected.*\(tars\), b\.png \(images\)"):
        are_shards([str(tmp_path / "a.tar"), "b.png"])
    assert are_shards([str(tmp_path / "a.tar")]) and not are_shards(["b.png", "c"])
    records = str(folders / "records")
    with pytest.raises(ValueError, match="Name one folder of records"):
        open_shards([records, records])


def test_other_records_and_folders_that_are_not_complete(tmp_path):
    (tmp_path / "0.tfrecord").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"has no index\.json. `keras-vit records` writes"):
        open_images(str(tmp_path))
    (tmp_path / "photos/cats").mkdir(parents=True)
    (tmp_path / "photos/index.json").write_text("{}")  # of somebody else
    assert not are_shards([str(tmp_path / "photos")])


def test_damage_while_training_is_an_error(tmp_path):
    write_tars(tmp_path, images=[b"no image", *PICTURES[1:]])
    with pytest.raises(ValueError, match=r"(?s)1 files .*000\.png is no JPEG"):
        open_images(str(tmp_path))
    images = read_webdataset(tmp_path / "*.tar", check="none")
    transform = InputTransform((8, 8))
    with pytest.raises(tf.errors.OpError, match="is no JPEG"):
        list(train_batches(images, transform, 12))
