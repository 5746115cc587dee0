import json

import numpy as np
import pytest

from keras_vit.data import record_folder
from keras_vit.data.csv_file import read_csv
from keras_vit.data.image_set import read_arrays
from keras_vit.data.parquet import read_parquet
from keras_vit.data.record_folder import read_record_folder, write_records
from keras_vit.data.webdataset import read_webdataset
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
    for i, name in enumerate(("x.png", "y.png")):
        (tmp_path / name).write_bytes(PICTURES[i])
    (tmp_path / "t.csv").write_text("file,a,b\nx.png,1,0\ny.png,1,1\n")
    with pytest.raises(ValueError, match=r"one class for each image.*task='multi_label'"):
        write_records(read_csv(tmp_path / "t.csv"), tmp_path / "b")
    folder = write_records(images, tmp_path / "c", per_file=6).folder
    last = folder / "images-00001-of-00002.tfrecord"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"1 of 2 files .*00001-of-00002.* has .* bytes, not"):
        read_record_folder(folder)
    last.unlink()
    with pytest.raises(ValueError, match=r"00001-of-00002.tfrecord has no file"):
        read_record_folder(folder)
    (folder / "index.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="no index of records in the format"):
        read_record_folder(folder)
