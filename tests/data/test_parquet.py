import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

from keras_vit.data import parquet
from keras_vit.data.digests import digest_images
from keras_vit.data.parquet import read_parquet
from tests.data.containers import (
    EXPECTED,
    LABELS,
    NAMES,
    PICTURES,
    stored,
    write_parquet,
    write_parquets,
)


def test_a_data_set_of_hugging_face(tmp_path):
    write_parquets(tmp_path)
    images = read_parquet(tmp_path / "train-*.parquet")
    assert images.class_names == NAMES and stored(images) == EXPECTED
    assert images.file_names()[7:9] == tuple(f"{tmp_path}/train-1.parquet:row {i}" for i in (0, 1))
    assert images.split(4)[1].file_names()[0].endswith("train-1.parquet:row 1")
    assert stored(images.in_memory()) == EXPECTED
    other = read_parquet(tmp_path / "train-*.parquet", ("owl", "bat", "dog", "cat"))
    assert [label for _, label in stored(other)][:3] == [3, 2, 0]  # found by their names
    unlabelled = read_parquet(tmp_path / "*.parquet", labelled=False)
    assert {label for _, label in stored(unlabelled)} == {0}
    assert digest_images(images) != digest_images(other)


def test_columns_without_metadata(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [NAMES[label] for label in LABELS]
    table = {"photo": pyarrow.array(PICTURES, pyarrow.large_binary()), "class": texts, "n": LABELS}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    images = read_parquet(path)
    assert images.class_names == NAMES and stored(images) == EXPECTED
    numbers = read_parquet(path, label_name="n")
    assert numbers.class_names == ("0", "1", "2") and stored(numbers) == EXPECTED
    table["class"] = pyarrow.array(texts).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    assert stored(read_parquet(path, image_name="photo", label_name="class")) == EXPECTED


def test_wrong_columns_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": [0]}), path)
    text = r"one column that is an image.* Received: none of text \(string\), label \(int64\)"
    with pytest.raises(ValueError, match=text):
        read_parquet(path)
    write_parquet(path, feature="fine")
    with pytest.raises(ValueError, match=r"a label: whole numbers or names. Received: image of"):
        read_parquet(path, label_name="image")
    with pytest.raises(ValueError, match=r"Received: img of .*Pass its name as `image_name`"):
        read_parquet(path, image_name="img")
    write_parquet(path, feature="fine", names=())
    with pytest.raises(ValueError, match=r"that is a label.*Received: none of image"):
        read_parquet(path)
    features = {name: {"_type": "ClassLabel", "names": ["a", "b"]} for name in ("fine", "coarse")}
    facts = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.table({"image": PICTURES[:1], "fine": [0], "coarse": [1]}, metadata=facts)
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(ValueError, match="Received: fine, coarse of"):
        read_parquet(path)
    assert read_parquet(path, label_name="coarse").class_names == ("a", "b")


def test_files_that_differ_are_named(tmp_path):
    write_parquets(tmp_path)
    write_parquet(tmp_path / "train-2.parquet", names=("cat", "owl", "dog"))
    with pytest.raises(ValueError, match=r"same columns and classes. .*train-0.*train-2.*by one"):
        read_parquet(tmp_path / "*.parquet")
    (tmp_path / "train-1.parquet").write_bytes((tmp_path / "train-0.parquet").read_bytes()[:900])
    with pytest.raises(ValueError, match=r"train-1\.parquet is no Parquet file.*cut off"):
        read_parquet(tmp_path / "*.parquet")
    empty = pyarrow.table(
        {"image": pyarrow.array([], pyarrow.binary()), "label": pyarrow.array([], "int64")}
    )
    pyarrow.parquet.write_table(empty, tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="no rows"):
        read_parquet(tmp_path / "empty.parquet")


def test_large_row_groups_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_LARGE_GROUP", 100)
    write_parquets(tmp_path)
    with pytest.warns(UserWarning, match=r"row group of 0\.0 GB.*row_group_size=100"):
        read_parquet(tmp_path / "*.parquet")


def test_labels_that_are_missing_or_unknown_are_listed(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, labels=[None, 1, 2, *LABELS[3:]])
    with pytest.raises(ValueError, match=r"(?s)1 problems:.*a\.parquet:row 0 has no label"):
        read_parquet(path)
    write_parquet(path, labels=[-1] * 6 + LABELS[6:])
    text = r"(?s)6 problems:.*row 5 has the label -1, which is none of the 3 classes cat, dog, owl"
    with pytest.raises(ValueError, match=text):
        read_parquet(path)
    write_parquet(path)
    with pytest.raises(ValueError, match=r"(?s)4 problems:.*row 11 has the label 2, which is none"):
        read_parquet(path, ("dog", "cat"))


def test_unreadable_images_are_left_out(tmp_path):
    path = tmp_path / "a.parquet"
    damaged = [None, *PICTURES[1:6], b"text", *PICTURES[7:]]
    write_parquet(path, damaged)
    text = r"(?s)2 files.*row 0 has no bytes.*row 6 is no JPEG.*unreadable=\"skip"
    with pytest.raises(ValueError, match=text):
        read_parquet(path)
    with pytest.warns(UserWarning, match=r"(?s)2 files .*row 0 has no bytes"):
        images = read_parquet(path, unreadable="skip", check="pixels")
    kept = [pair for pair in EXPECTED if pair[0] not in (0, 6)]
    assert stored(images) == kept and images.num_images == len(images.file_names()) == 10
    assert images.file_names()[5].endswith("row 7")
    assert sorted(stored(images, (2, 9), np.int64(3), 4)) != []
    unchecked = read_parquet(path, check="none")
    with pytest.raises(tf.errors.OpError, match="has a row without an image"):
        stored(unchecked)
    write_parquet(path, [b"?"] * 12)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="None of the 12 images"):
        read_parquet(path, unreadable="skip")


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path):
    write_parquets(tmp_path)
    images = read_parquet(tmp_path / "train-*.parquet")
    os.utime(tmp_path / "train-1.parquet", ns=(0, 0))
    with pytest.raises(tf.errors.OpError, match=r"1\.parquet was changed after it was opened"):
        stored(images)
