import base64
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from pyarrow.parquet import encryption

from keras_vit.data import parquet, parquet_pages
from keras_vit.data.digests import digest_images
from keras_vit.data.parquet import read_parquet
from keras_vit.errors import DamagedFileError
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


CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
ZEROS = [bytes(50_000 + i // 4) for i in range(40)]  # 2 MB, ten of them different


def write_zeros(path, labels=(0, 1), **options):
    """Images of zeros in one row group of one page."""
    table = pyarrow.table({"image": ZEROS, "label": list(labels) * 20})
    large = {"data_page_size": 1 << 28, "dictionary_pagesize_limit": 1 << 28}
    pyarrow.parquet.write_table(table, path, **{**large, **options})


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_row_groups_that_unpack_to_too_much_are_refused(codec, version, tmp_path):
    path = tmp_path / "a.parquet"
    options = {"compression": codec, "data_page_version": version}
    write_zeros(path, use_dictionary=False, **options)
    text = r"a\.parquet may be made to fill the memory: .* bytes of row group 0 unpack to 2,00"
    with pytest.raises(DamagedFileError, match=text):
        read_parquet(path, check="none", max_group_bytes=1 << 20)
    images = read_parquet(path, check="none", max_group_bytes=2_100_000)
    assert sum(1 for _ in images.read((0, 40), None, 0)) == 40
    for options["use_dictionary"], options["column_encoding"] in (
        (True, None),
        (False, {"image": "DELTA_BYTE_ARRAY"}),
    ):
        write_zeros(path, **options)  # in the file ten images, or the ends of images
        images = read_parquet(path, check="none", max_group_bytes=1 << 20)
        with pytest.raises(tf.errors.OpError, match=r"a\.parquet may be made to fill .* unpack to"):
            list(images.read((0, 40), None, 0))
        with pytest.raises(DamagedFileError, match="may be made to fill the memory"):
            read_parquet(path, max_group_bytes=1 << 20)


def test_labels_that_unpack_to_too_much_are_refused(tmp_path):
    write_zeros(tmp_path / "a.parquet", ["x" * 200_000, "y"], use_dictionary=["label"])
    with pytest.raises(DamagedFileError, match=r"a\.parquet may be made .* unpack to 4,000,"):
        read_parquet(tmp_path / "a.parquet", check="none", max_group_bytes=2_100_000)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("options", [{"data_page_version": "2.0"}, {"use_dictionary": False}, {}])
def test_pages_are_measured_before_they_are_unpacked(codec, options, tmp_path):
    path = tmp_path / "a.parquet"
    write_zeros(path, compression=codec, data_page_size=300_000, **options)
    with pyarrow.parquet.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
    (chunk, *_) = parquet_pages.read_row_groups(str(path))[0].chunks
    assert chunk.stored == column.total_compressed_size
    assert chunk.unpacked == column.total_uncompressed_size
    stored, largest = parquet_pages._measure_pages(str(path), 0, chunk, 1 << 30)
    assert 0 <= chunk.stored - stored < 2_000  # headers
    assert 300_000 <= largest <= chunk.unpacked
    if codec == "none":
        return
    with pytest.raises(ValueError, match="of row group 0 unpack to"):
        parquet_pages._measure_pages(str(path), 0, chunk, chunk.unpacked // 3)


def test_a_page_that_is_larger_than_the_footer_says_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    write_zeros(path, use_dictionary=False, compression="zstd")
    content = path.read_bytes()
    size = content[7:11]  # after the marks of the file, field 1 and that of field 2
    assert size[3] < 2 and size[0] & size[1] & size[2] & 128
    path.write_bytes(content[:7] + b"\xfe\xff\xff\x01" + content[11:])
    images = read_parquet(path, check="none", max_group_bytes=2_050_000)
    with pytest.raises(tf.errors.OpError, match=r"a\.parquet may be made .* unpack to 2,097,151"):
        list(images.read((0, 40), None, 0))


@pytest.mark.parametrize(
    "facts",
    [
        {"info": {"features": [{"name": "image"}, 5]}}, {"info": {"features": {"image": 5}}},
        {"info": 5}, [1], None, "x", {"info": {"features": {"label": {"names": {"a": 1}}}}},
        {"info": {"features": {"image": {"_type": [1]}, "label": {"_type": {}, "names": 5}}}},
    ],
)  # fmt: skip
def test_metadata_of_any_json_is_right_or_ignored(facts, tmp_path):
    table = pyarrow.table({"image": PICTURES, "label": LABELS})
    table = table.replace_schema_metadata({"huggingface": json.dumps(facts)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert stored(read_parquet(tmp_path / "a.parquet")) == EXPECTED


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    images = list(np.random.default_rng(0).integers(0, 4, (40, 12_000), "uint8"))
    table = pyarrow.table({"image": [each.tobytes() for each in images], "label": [0, 1] * 20})
    options = {"compression": "zstd", "use_dictionary": False, "row_group_size": 20}
    pyarrow.parquet.write_table(table, path, **options)
    content = path.read_bytes()
    for at in (20, 2_000, len(content) * 3 // 4):
        path.write_bytes(content[:at] + b"\xff" * 600 + content[at + 600 :])
        with pytest.raises(tf.errors.OpError, match=r"a\.parquet is no Parquet file"):
            list(read_parquet(path, check="none").read((0, 40), None, 0))
        with pytest.raises(DamagedFileError, match=r"a\.parquet is no Parquet file"):
            read_parquet(path)


class Keys(encryption.KmsClient):
    """Keys that are kept as they are."""

    def wrap_key(self, key, identifier):
        return base64.b64encode(key)


@pytest.mark.parametrize("columns", [["image"], ["label"], ["image", "label"]])
@pytest.mark.parametrize("signed", [True, False])
def test_encrypted_columns_are_refused_before_their_sizes_are_read(columns, signed, tmp_path):
    """pyarrow ends the process where a size is asked for, and 28 bytes sign the footer."""
    table, path = pyarrow.table({"image": PICTURES, "label": LABELS}), tmp_path / "a.parquet"
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"key": columns}, plaintext_footer=True
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    options = {"encryption_properties": keys, "row_group_size": 5}
    pyarrow.parquet.write_table(table, path, **options)
    if not signed:
        content = path.read_bytes()
        size = int.from_bytes(content[-8:-4], "little") - 28
        path.write_bytes(content[:-36] + size.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DamagedFileError, match=r"a\.parquet .*its columns are encrypted"):
        read_parquet(path)


def test_a_histogram_of_another_size_is_refused(tmp_path):
    """pyarrow ends the process where one asks it about such a column."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": PICTURES, "label": LABELS}), path)
    content = path.read_bytes()
    optional, required = b"\x02\x18\x05image", b"\x00\x18\x05image"
    assert content.count(optional) == 1
    path.write_bytes(content.replace(optional, required))
    with pytest.raises(DamagedFileError, match=r"a\.parquet is no Parquet file that can be read"):
        read_parquet(path)


@pytest.mark.parametrize("rows", [-1, 5])
def test_other_numbers_of_rows_than_the_file_has_are_refused(rows, tmp_path, monkeypatch):
    read = parquet.read_row_groups
    monkeypatch.setattr(
        parquet, "read_row_groups", lambda path: [x._replace(rows=rows) for x in read(path)]
    )
    write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DamagedFileError, match=r"a\.parquet .*its row groups have .* of 12 in the"):
        read_parquet(tmp_path / "a.parquet")


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_FEW_ROWS", 11)
    monkeypatch.setattr(parquet, "_MIN_ROW_BYTES", 1 << 20)
    write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DamagedFileError, match=r"a\.parquet is no Parquet file.*12 rows in"):
        read_parquet(tmp_path / "a.parquet")


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
    with pytest.raises(ValueError, match=r"(?s)None of the 12 images .*:row 11 is no JPEG"):
        read_parquet(path, unreadable="skip")


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path):
    write_parquets(tmp_path)
    images = read_parquet(tmp_path / "train-*.parquet")
    os.utime(tmp_path / "train-1.parquet", ns=(0, 0))
    with pytest.raises(tf.errors.OpError, match=r"1\.parquet was changed after it was opened"):
        stored(images)
