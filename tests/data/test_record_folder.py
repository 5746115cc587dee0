import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import image_set, record_folder
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.csv_file import read_csv
from keras_vit.data.image_set import read_arrays
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.parquet import read_parquet
from keras_vit.data.record_folder import read_record_folder, write_records
from keras_vit.data.sources import open_images
from keras_vit.data.webdataset import read_webdataset
from keras_vit.errors import DamagedFileError
from tests.checks import quick
from tests.data.containers import EXPECTED, NAMES, PICTURES, stored, write_parquets, write_tars


@pytest.fixture
def images(tmp_path):
    write_tars(tmp_path / "tars")
    return read_webdataset(tmp_path / "tars/*.tar")


def test_records_have_an_index_and_the_same_images(images, tmp_path):
    written = write_records(images, tmp_path / "records", per_file=5)
    assert written[1:4] == (12, 3, 0)
    read = read_record_folder(tmp_path / "records")
    order = stored(read)
    assert order != EXPECTED and sorted(order) == EXPECTED  # shuffled once
    assert read.class_names == NAMES
    index = json.loads((tmp_path / "records/index.json").read_text())
    assert index["images_of_classes"] == [4, 4, 4]
    assert [row["records"] for row in index["files"]] == [5, 5, 2]
    other = read_record_folder(tmp_path / "records", ("owl", "dog", "cat"))
    assert stored(other)[0][1] == {0: 2, 1: 1, 2: 0}[order[0][1]]
    with pytest.raises(ValueError, match=r"1 other classes: owl. The classes are cat, dog"):
        read_record_folder(tmp_path / "records", ("cat", "dog"))


def test_an_interrupted_call_continues(images, tmp_path, monkeypatch):
    write, calls = record_folder._write_file, []

    def fail_at_the_third(*arguments):
        calls.append(arguments)
        if len(calls) >= 3:
            raise KeyboardInterrupt
        write(*arguments)

    monkeypatch.setattr(record_folder, "_write_file", fail_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        write_records(images, tmp_path / "records", per_file=3, threads=1)
    with pytest.raises(FileNotFoundError, match=r"no index\.json.*run it again"):
        read_record_folder(tmp_path / "records")
    with pytest.raises(FileExistsError, match=r"differ in per_file. Pass the same"):
        write_records(images, tmp_path / "records", per_file=4)
    monkeypatch.undo()
    assert write_records(images, tmp_path / "records", per_file=3).kept == 2
    write_records(images, tmp_path / "other", per_file=3)
    for file in (tmp_path / "other").glob("*.tfrecord"):
        assert (tmp_path / "records" / file.name).read_bytes() == file.read_bytes()
    assert write_records(images, tmp_path / "records", per_file=3).kept == 4
    assert sorted(stored(read_record_folder(tmp_path / "records"))) == EXPECTED


def test_images_that_are_read_in_order_and_pixels(tmp_path):
    write_parquets(tmp_path)
    images = read_parquet(tmp_path / "*.parquet")
    write_records(images, tmp_path / "a", per_file=4)
    assert stored(read_record_folder(tmp_path / "a")) == EXPECTED
    pixels = np.stack([np.full((8, 8, 3), i * 16, "uint8") for i in range(12)])
    write_records(read_arrays(pixels, [0, 1, 2] * 4, NAMES), tmp_path / "b")
    assert sorted(stored(read_record_folder(tmp_path / "b"))) == EXPECTED
    with pytest.raises(ValueError, match=r"Received: float32. Round"):
        write_records(read_arrays(pixels / np.float32(1), [0, 1, 2] * 4), tmp_path / "c")


def test_what_is_wrong_is_said(images, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/notes.txt").write_text("")
    with pytest.raises(FileExistsError, match="holds other files"):
        write_records(images, tmp_path / "a")
    folder = write_records(images, tmp_path / "c", per_file=6).folder
    last = folder / "images-00001-of-00002.tfrecord"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"1 of 2 files .*00001-of-00002.* has .* bytes, not"):
        read_record_folder(folder)
    last.unlink()
    with pytest.raises(ValueError, match=r"00001-of-00002.tfrecord has no file"):
        read_record_folder(folder)


def change_index(folder, counts, **changes):
    """Writes an index whose files hold `counts`, and other `changes`; returns the old one."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    files = [{**row, "records": n} for row, n in zip(index["files"], counts, strict=True)]
    total = sum(counts)
    index |= {"files": files, "images": total, "images_of_classes": [total, 0, 0], **changes}
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("counts", [(5, 5, 3), (5, 5, 1), (6, 5, 2), (4, 5, 2), (5, 5, 0)])
def test_more_or_fewer_images_than_the_index_promises_are_an_error(counts, images, tmp_path):
    folder = write_records(images, tmp_path / "a", per_file=5).folder
    assert sorted(stored(read_record_folder(folder))) == EXPECTED
    change_index(folder, counts)
    if 0 in counts:  # a file that is never read
        with pytest.raises(ValueError, match=r"index\.json is no index.*promises 0 images in"):
            read_record_folder(folder)
        return
    found = read_record_folder(folder)
    wrong = next(i for i, n in enumerate(counts) if n != (5, 5, 2)[i])
    text = (
        rf"(?s)index\.json.*promises\] \[{counts[wrong]}\].*images-0000{wrong}-of-00003\.tfrecord"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        stored(found)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        list(found.read((0, found.num_images), tf.constant(1, tf.int64), 4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": "other"}, "its format is 'other'"),
        ({"images": 11}, "it promises 11 images, 12 in its classes and 12 in its files"),
        ({"images_of_classes": [12, 0, 1]}, "it promises 12 images, 13 in its classes"),
        ({"images_of_classes": ["12", 0, 0]}, "no whole numbers"),
        ({"images_of_classes": [13, -1, 0]}, "no whole numbers"),
        ({"images_of_classes": [12, 0]}, "no count for each class"),
        ({"class_names": ["a", "a", "b"]}, "one twice"),
        ({"class_names": 3}, "TypeError"),
        ({"files": [5]}, "TypeError"),
        ({"files": [{"file": "x\0y", "records": 12, "bytes": 1}]}, "embedded null"),
        ({"files": [{"file": "../a", "records": 12, "bytes": 1}]}, "files of other folders"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(changes, reason, images, tmp_path):
    folder = write_records(images, tmp_path / "a", per_file=5).folder
    change_index(folder, (5, 5, 2), **changes)
    with pytest.raises(DamagedFileError, match=rf"index\.json is no index of records.*{reason}"):
        read_record_folder(folder)


VECTORS = {
    "multi_label": [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1]],
    "regression": [[0.5, -2, 0], [1.25, 0, 3], [7, 1e6, 0], [0.1, 2, 4], [1, 2, 3]],
}


@pytest.mark.parametrize("task", quick([*VECTORS], "multi_label"))
def test_several_labels_and_numbers_are_read_as_from_the_table(task, tmp_path):
    rows = [f"{i}.png,{','.join(map(str, row))}" for i, row in enumerate(VECTORS[task])]
    (tmp_path / "t.csv").write_text("\n".join(["file,a,b,c", *rows]))
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(PICTURES[i])
    images = read_csv(tmp_path / "t.csv", task=task)
    expected = dict(zip(PICTURES, np.float32(VECTORS[task]), strict=False))
    folder = write_records(images, tmp_path / "records", per_file=2).folder
    assert write_records(images, folder, per_file=2).kept == 3  # again: all are there
    for names in (None, ("c", "a", "b")):
        read = open_images(str(folder), class_names=names)
        assert (read.task, read.class_names) == (task, names or ("a", "b", "c"))
        columns = [("a", "b", "c").index(name) for name in read.class_names]
        pairs = read.read((0, 5), None, 0).as_numpy_iterator()
        found = [(image, label) for image, label in pairs]
        assert len(found) == 5
        for image, label in found:
            np.testing.assert_array_equal(label, expected[image][columns])
        np.testing.assert_array_equal(read.all_labels, [label for _, label in found])
        np.testing.assert_array_equal(read.in_memory().labels, read.all_labels)
        (_, y), *_ = eval_batches(read, InputTransform((8, 8)), 5).as_numpy_iterator()
        np.testing.assert_array_equal(y, read.all_labels)
        (_, y), *_ = train_batches(read, InputTransform((8, 8)), 5).as_numpy_iterator()
        assert y.shape == (5, 3)
        assert open_images(str(folder), class_names=names, task=task).task == task
    with pytest.raises(ValueError, match=r"1 other classes: c. The classes are a, b"):
        read_record_folder(folder, ("a", "b"))
    with pytest.raises(
        ValueError, match=r"task='single_label' come from a CSV file, .*, or records"
    ):
        open_images(str(folder), task="single_label")
    with pytest.raises(ValueError, match="need one class for each image"):
        read.class_weights()


def test_classes_are_counted_by_the_index_or_by_reading(images, tmp_path, monkeypatch):
    rows = np.array([0, 1, 2, 3, 6, 9])  # of classes 0, 1, 2, 0, 0, 0
    few = images.subset(rows)
    counts = np.bincount(few.labels).tolist()
    write_records(few, tmp_path / "records", per_file=4)
    read = read_record_folder(tmp_path / "records", (*NAMES[::-1], "new"))
    assert read.class_counts.tolist() == [*counts[::-1], 0]
    np.testing.assert_allclose(read.class_weights()[:3], few.class_weights()[::-1] * 3 / 4)
    assert read.split(2)[0].class_counts.tolist() == read.class_counts.tolist()
    assert read.in_memory().class_counts.tolist() == read.class_counts.tolist()
    unknown = dataclasses.replace(read, counts=None)
    assert unknown.class_counts.tolist() == read.class_counts.tolist()
    assert sum(dataclasses.replace(read, counts=None).split(2)[0].class_counts) == 4
    monkeypatch.setattr(image_set, "_MAX_COUNTED", 3)
    assert dataclasses.replace(read, counts=None).class_counts is None
    with pytest.raises(ValueError, match="too many to count their classes"):
        dataclasses.replace(read, counts=None).class_weights()
    with pytest.raises(ValueError, match=r"Draw from `images\.in_memory"):
        read.balanced()
