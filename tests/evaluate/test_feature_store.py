"""Features on the disk: computed once, resumed after a kill, and refused where they are stale."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.shards import find_shards
from keras_vit.evaluate import feature_store
from keras_vit.evaluate.feature_store import digest_model, load_features, store_features
from keras_vit.runtime.compilers import SWITCH
from tests.fixtures import fill_random, images_for, tiny_config


def make_model(seed=0, **changes):
    model = keras_vit.build_vit(tiny_config(depth=1, image_size=16, **changes))
    fill_random(model, seed=seed)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def images(model):
    return keras_vit.read_arrays(images_for(model, 10).astype("uint8"), np.arange(10) % 3)


@pytest.fixture(scope="module")
def expected(model, images):
    pixels = images_for(model, 10).astype("uint8").astype("float32")
    return keras_vit.features_of(model, "pooling").predict(pixels, verbose=0)["pooling"]


class Killed(BaseException):
    """Ends a process in the middle, as a kill does: nothing catches it."""


def kill_after(monkeypatch, rows):
    """Ends the computation when so many rows are recorded."""
    save = feature_store._Part.save

    def save_and_end(part, facts, done):
        save(part, facts, done)
        if done >= rows:
            raise Killed

    monkeypatch.setattr(feature_store, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(feature_store._Part, "save", save_and_end)


@pytest.fixture(scope="module")
def stored(model, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    store_features(model, images, folder)
    return folder


def test_features_are_computed_once(model, images, expected, tmp_path):
    first = store_features(model, images, tmp_path, batch_size=4)
    assert first.computed == 10 and first.stage == "pooling"
    np.testing.assert_allclose(first.values, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(first.labels, np.arange(10) % 3)
    assert isinstance(first.values, np.memmap) and not first.values.flags.writeable
    again = store_features(model, images, tmp_path, batch_size=4)
    assert again.computed == 0
    np.testing.assert_array_equal(again.values, first.values)
    assert load_features(tmp_path).class_names == ("0", "1", "2")


@pytest.mark.parametrize("rows", [4, 10])
def test_an_interrupted_computation_continues(rows, model, images, expected, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, rows)
        with pytest.raises(Killed):
            store_features(model, images, tmp_path, batch_size=4)
    with pytest.raises(FileNotFoundError, match=r"lacks part-0-of-1\.npy"):
        load_features(tmp_path)
    if rows == 10:  # and between the two renames
        os.replace(
            tmp_path / "part-0-of-1.labels.npy.unfinished", tmp_path / "part-0-of-1.labels.npy"
        )
    found = store_features(model, images, tmp_path, batch_size=4)
    assert found.computed == 10 - rows
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.labels, np.arange(10) % 3)


def test_a_link_in_place_of_unfinished_rows_is_not_followed(model, images, tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        kill_after(context, 4)
        with pytest.raises(Killed):
            store_features(model, images, tmp_path / "features", batch_size=4)
    (unfinished,) = (tmp_path / "features").glob("*[0-9].npy.unfinished")
    before = unfinished.read_bytes()
    unfinished.rename(tmp_path / "other")
    unfinished.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        store_features(model, images, tmp_path / "features", batch_size=4)
    assert (tmp_path / "other").read_bytes() == before


def test_a_run_that_continues_has_the_compiler_of_its_first_rows(
    model, images, tmp_path, monkeypatch
):
    """XLA and the graph round differently, and another machine may choose another."""
    monkeypatch.delenv(SWITCH)
    undisturbed = store_features(model, images, tmp_path / "undisturbed", batch_size=4).values
    with monkeypatch.context() as context:
        kill_after(context, 4)
        with pytest.raises(Killed):
            store_features(model, images, tmp_path / "killed", batch_size=4)
    monkeypatch.setenv(SWITCH, "0")
    continued = store_features(model, images, tmp_path / "killed", batch_size=4)
    assert continued.computed == 6 and np.array_equal(continued.values, undisturbed)
    other = store_features(model, images, tmp_path / "graph", batch_size=4).values
    assert not np.array_equal(other, undisturbed)
    np.testing.assert_allclose(other, undisturbed, rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_full_disk_ends_in_a_message(is_late, images, small_disk, monkeypatch):
    """Pages of a mapped file that has no space end the process with SIGBUS."""
    folder, create = small_disk.path / "features", feature_store._Part.create
    many = make_model(width=256, patch_size=1)  # features of 2.6 MB

    def create_and_fill(part, *arguments):
        file = create(part, *arguments)
        if is_late:
            small_disk.fill()
        return file

    with monkeypatch.context() as patch:
        patch.setattr(feature_store._Part, "create", create_and_fill)
        folder.mkdir()
        if not is_late:
            small_disk.fill(leave=20_000)
        message = r"The disk of .*features is full \([\d,]+ bytes are free, [\d,]+ are needed\)"
        with pytest.raises(OSError, match=message):
            store_features(many, images, folder, "encoder_norm")
    small_disk.make_room()
    found = store_features(many, images, folder, "encoder_norm")
    assert found.computed == 10 and np.abs(found.values).sum(axis=(1, 2)).min() > 1


def test_workers_compute_a_part_each(model, images, expected, tmp_path):
    parts = [store_features(model, images, tmp_path, batch_size=2, worker=(0, 3))]
    with pytest.raises(FileNotFoundError, match=r"lacks part-1-of-3\.npy, part-2-of-3\.npy"):
        load_features(tmp_path)
    parts += [store_features(model, images, tmp_path, batch_size=2, worker=(i, 3)) for i in (1, 2)]
    assert [part.computed for part in parts] == [3, 3, 4]
    found = load_features(tmp_path)
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.labels, np.arange(10) % 3)
    store_features(model, images, tmp_path, batch_size=2)
    with pytest.raises(ValueError, match="in 1 and in 3 parts"):
        load_features(tmp_path)
    with pytest.raises(ValueError, match="`worker` must be the index"):
        store_features(model, images, tmp_path, worker=(3, 3))


def test_stale_features_are_refused_by_name(model, images, tmp_path):
    store_features(model, images, tmp_path)
    other = keras_vit.read_arrays(images_for(model, 10, seed=1).astype("uint8"), np.arange(10) % 3)
    preprocessing = dataclasses.replace(model.config.preprocessing, interpolation="bicubic")
    resized = keras_vit.adapt_model(model, preprocessing=preprocessing)
    cases = [
        (make_model(seed=1), images, {}, "else: weights differs"),
        (make_model(gelu="exact"), images, {}, "else: weights differs"),
        (model, other, {}, "else: images differs"),
        (resized, images, {}, "preprocessing"),
        (model, images, {"stage": "encoder_norm"}, "else: stage, weights differ"),
        (model, images, {"dtype": "float16"}, "else: dtype differs"),
    ]
    for changed, shown, options, message in cases:
        with pytest.raises(ValueError, match=message):
            store_features(changed, shown, tmp_path, **options)
    # Another head, and another number in Keras's names, are the same features.
    same = keras_vit.adapt_model(make_model(), classes=3)
    assert store_features(same, images, tmp_path).computed == 0


def test_a_changed_file_makes_features_stale(model, tmp_path):
    from tests.data.pictures import write_colours

    folder = write_colours(tmp_path / "images", 2)
    stored = store_features(model, keras_vit.read_folder(folder), tmp_path / "features")
    assert stored.computed == 4 and stored.class_names == ("blue", "red")
    os.utime(tmp_path / "images/red/0.png", (0, 0))
    with pytest.raises(ValueError, match="else: images differs"):
        store_features(model, keras_vit.read_folder(folder), tmp_path / "features")


def test_other_shards_make_features_stale(model, tmp_path):
    def record_images(name):
        shards = find_shards(f"{tmp_path}/{name}-*.tfrecord")
        return keras_vit.read_records(shards, lambda record: (tf.zeros((16, 16, 3)), 0), ["one"])

    for name in "ab":
        with tf.io.TFRecordWriter(f"{tmp_path}/{name}-0.tfrecord") as writer:
            writer.write(b"a record")
    store_features(model, record_images("a"), tmp_path / "features")
    assert store_features(model, record_images("a"), tmp_path / "features").computed == 0
    with pytest.raises(ValueError, match="else: images differs"):
        store_features(model, record_images("b"), tmp_path / "features")
    os.utime(tmp_path / "a-0.tfrecord", (0, 0))
    with pytest.raises(ValueError, match="else: images differs"):
        store_features(model, record_images("a"), tmp_path / "features")


def test_tokens_are_kept_whole_in_half_the_bytes(model, images, tmp_path):
    found = store_features(model, images, tmp_path, "encoder_norm", dtype="float16")
    assert found.values.shape == (10, 5, 32) and found.values.dtype == "float16"


def test_damage_is_named(model, images, tmp_path):
    store_features(model, images, tmp_path)
    (tmp_path / "part-0-of-1.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match=r"are damaged .* Remove the folder"):
        load_features(tmp_path)
    (tmp_path / "part-0-of-1.json").write_text("[]")
    with pytest.raises(ValueError, match=r"part-0-of-1\.json is damaged"):
        load_features(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no features"):
        load_features(tmp_path / "none")


@pytest.mark.parametrize(
    "change",
    [{"class_names": None}, {"class_names": "ab"}, {"class_names": [1, 2]}, {"done": "10"},
     {"done": None}, {"done": 11}, {"done": -1}, {"done": True}, {"num_images": 10.0},
     {"stage": None}, {"compiler": 5}, {"weights": []}],
)  # fmt: skip
def test_an_edited_store_is_refused_by_name(change, model, images, stored, tmp_path):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "part-0-of-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    message = rf"part-0-of-1\.json is damaged \(.*\)\. Remove {tmp_path}"
    with pytest.raises(ValueError, match=message):
        load_features(tmp_path)
    with pytest.raises(ValueError, match=message):
        store_features(model, images, tmp_path)


@pytest.mark.parametrize(
    ("values", "labels"),
    [(5.0, [1]), (np.ones(10), [1] * 10), (np.ones((10, 2)), [1] * 9), (np.ones((2, 2)), 1),
     (np.full((2, 2), "a"), [1, 2])],
)  # fmt: skip
def test_arrays_that_are_no_features_are_refused(values, labels, stored, tmp_path):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    np.save(tmp_path / "part-0-of-1.npy", values)
    np.save(tmp_path / "part-0-of-1.labels.npy", labels)
    with pytest.raises(ValueError, match=r"The features in .* are damaged \("):
        load_features(tmp_path)


def test_the_digest_is_of_what_is_computed(model):
    network = keras_vit.features_of(model, "pooling")
    assert digest_model(network) == digest_model(keras_vit.features_of(model, "pooling"))
    fresh = keras_vit.features_of(make_model(), "pooling")
    assert digest_model(network) == digest_model(fresh)
