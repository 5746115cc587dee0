import json
import tarfile

import pytest
import tensorflow as tf

from keras_vit.data.tars import read_tar
from keras_vit.data.webdataset import read_webdataset
from tests.data.containers import EXPECTED, NAMES, PICTURES, samples, stored, write_tar, write_tars


def test_members_of_one_name_are_an_image_with_its_class(tmp_path):
    write_tars(tmp_path / "shards")
    images = read_webdataset(tmp_path / "shards/train-*.tar")
    assert images.class_names == NAMES and stored(images) == EXPECTED
    assert images.labels.tolist() == [label for _, label in EXPECTED]
    assert images.file_names()[7] == f"{tmp_path}/shards/train-1.tar:007.png"
    assert images.name_of(0).endswith("train-0.tar:000.png")
    other = read_webdataset(tmp_path / "shards/train-0.tar", ("owl", "cat", "dog"))
    assert [label for _, label in stored(other)] == [1, 2, 0, 1, 2, 0, 1]
    unlabelled = read_webdataset(tmp_path / "shards/train-0.tar", labelled=False)
    assert unlabelled.num_images == 7 and set(unlabelled.labels) == {0}


def test_labels_are_names_or_stand_in_json(tmp_path):
    fields = [{"cls": 1}, {"label": "dog"}, {"class": "cat", "breed": "siam"}]
    write_tar(tmp_path / "a.tar", [
        ("x/0.jpg", PICTURES[0]), ("x/0.cls", b"dog\n"), ("x/0.seg.png", b"none"),
        ("y/0.png", PICTURES[1]), ("y/0.json", json.dumps(fields[2]).encode()), ("._1.png", b"mac"),
    ])  # fmt: skip
    images = read_webdataset([tmp_path / "a.tar"])
    assert images.class_names == ("cat", "dog") and stored(images) == [(0, 1), (1, 0)]
    write_tar(tmp_path / "b.tar", [
        ("0.png", PICTURES[0]), ("0.json", json.dumps(fields[0]).encode()),
        ("1.png", PICTURES[1]), ("1.cls", b"0"), ("1.breed", b"siam"),
        ("2.png", PICTURES[2]), ("2.json", json.dumps(fields[2]).encode()), ("2.label", b"2"),
    ])  # fmt: skip
    assert read_webdataset(tmp_path / "b.tar").class_names == ("0", "1", "2")
    assert stored(read_webdataset(tmp_path / "b.tar")) == [(0, 1), (1, 0), (2, 2)]
    with pytest.raises(ValueError, match=r"(?s)1 problems.*b\.tar:0\.png has no label.*\.json"):
        read_webdataset(tmp_path / "b.tar", label_name="breed")
    (tmp_path / "classnames.txt").write_text("cat\ndog\nowl\n")
    assert read_webdataset(tmp_path / "b.tar").class_names == ("cat", "dog", "owl")


def test_all_problems_are_listed_before_anything_is_read(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, [
        ("0.png", PICTURES[0]), ("0.cls", b"0"), ("1.cls", b"1"), ("2.png", PICTURES[0]),
        ("3.png", PICTURES[0]), ("3.txt", b"a caption"), ("3.jpg", PICTURES[0]),
    ])  # fmt: skip
    text = r"(?s)4 problems.*3 has two images, 3\.png and 3\.jpg.*1 has no image.*2\.png has no lab"
    with pytest.raises(ValueError, match=text + r".*3\.png has no label but a caption: .*_shards"):
        read_webdataset(path)
    write_tar(path, [
        ("0.png", PICTURES[0]), ("0.cls", "h\u00f6hle".encode("latin-1")),
        ("1.png", PICTURES[1]), ("1.json", b'{"cls": 1'),
    ])  # fmt: skip
    text = r"(?s)0\.png has a label in \.cls that is no text in UTF-8.*1\.png has a \.json that"
    with pytest.raises(ValueError, match=text):
        read_webdataset(path)
    write_tar(path, [("0.png", PICTURES[0]), ("0.json", b'{"cls": "a\\ud800"}')])
    with pytest.raises(ValueError, match=r"0\.png has a label in \.json with half of a surrogate"):
        read_webdataset(path)
    write_tar(path, [("0.png", PICTURES[0]), ("0.cls", b"4"), ("1.png", b""), ("1.cls", b"0")])
    text = r"a\.tar:0\.png has the label 4, which is none of the 3 classes cat, dog, owl"
    with pytest.raises(ValueError, match=text):
        read_webdataset(path, NAMES)
    with pytest.raises(ValueError, match=r"(?s)cannot be read:.*1\.png is empty.*=\"skip"):
        read_webdataset(path)
    with pytest.raises(FileNotFoundError, match="There are no files"):
        read_webdataset(tmp_path / "b-*.tar")


def test_unreadable_images_are_left_out(tmp_path):
    whole = PICTURES[3]
    images = [*PICTURES[:3], whole[:-9], whole[:40] + b"xxxxxx" + whole[46:], *PICTURES[5:]]
    write_tars(tmp_path, images=images)
    with pytest.warns(UserWarning, match=r"(?s)1 files .*003\.png is cut off"):
        headers = read_webdataset(tmp_path / "*.tar", unreadable="skip")
    assert headers.num_images == 11 and len(headers.skipped) == 1
    with pytest.warns(UserWarning, match=r"(?s)2 files .*004\.png cannot be decoded"):
        pixels = read_webdataset(tmp_path / "*.tar", unreadable="skip", check="pixels")
    assert stored(pixels) == [pair for pair in EXPECTED if pair[0] not in (3, 4)]
    assert read_webdataset(tmp_path / "*.tar", check="none").num_images == 12
    write_tars(tmp_path / "none", images=[b"?"] * 12)
    with pytest.raises(ValueError, match=r"(?s)None of the 12 images .*:011\.png is no JPEG"):
        read_webdataset(tmp_path / "none/*.tar", unreadable="skip")


def test_a_tar_that_is_cut_off_or_damaged_is_named(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, samples(range(3)))
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        places = [(member.offset, member.offset_data) for member in tar]
    cuts = [
        (places[4][1] + 5, "claims 77 bytes, of 5 that are left"),  # in an image
        (places[4][0], "must follow the 2 images in it. Received: the end of the file at byte"),
        (places[4][0] + 100, "damaged or cut off|no tar that can be read"),  # in a header
    ]
    for end, text in cuts:
        path.write_bytes(data[:end])
        with pytest.raises(ValueError, match=text):
            read_webdataset(path)
    start = places[4][0]
    path.write_bytes(data[:start] + b"x" * 512 + data[start + 512 :])
    with pytest.raises(ValueError, match=r"must follow the 2 images in it. Received: other bytes"):
        read_webdataset(path)
    write_tar(path, samples(range(3)), "w:gz")
    with pytest.raises(ValueError, match="Unpack compressed"):
        read_webdataset(path)
    path.write_bytes(data)
    assert len(read_tar(path, ())[0]) == 3


def test_an_image_that_changes_after_opening_is_an_error(tmp_path):
    write_tars(tmp_path)
    images = read_webdataset(tmp_path / "*.tar")
    (tmp_path / "train-0.tar").unlink()
    with pytest.raises(tf.errors.OpError, match=r"train-0\.tar"):
        stored(images)


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path):
    write_tars(tmp_path / "shards")
    images = read_webdataset(tmp_path / "shards/train-*.tar")
    write_tar(tmp_path / "shards/train-1.tar", [("0.png", PICTURES[0]), ("0.cls", b"0")])
    with pytest.raises(tf.errors.OpError, match=r"train-1\.tar was changed after it was opened"):
        stored(images)
