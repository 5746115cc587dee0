import json

import keras
import numpy as np
import pytest

from keras_vit.image_text.caption_files import read_captions

EXPECTED = [("a red bird", "a bird, red"), ("two cats",)]


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        keras.utils.save_img(tmp_path / name, rng.integers(0, 255, (9, 8, 3)), scale=False)
    return tmp_path


def check(pairs):
    assert pairs.texts() == EXPECTED
    assert [str(item).endswith(name) for item, name in zip(
        pairs.rows[0], ("a/1.png", "2.jpg"), strict=True)] == [True, True]  # fmt: skip
    assert pairs.load(pairs.rows[0][0]).numpy()[:4] == b"\x89PNG"
    assert pairs.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "t.csv",
            'x,filepath,title\n1,a/1.png,a red bird\n2,a/1.png,"a bird, red"\n3,2.jpg,two cats\n',
        ),
        ("t.tsv", "image\tcaption\na/1.png\ta red bird\n\na/1.png\ta bird, red\n2.jpg\ttwo cats\n"),
    ],
)  # fmt: skip
def test_tables(folder, name, text):
    (folder / name).write_text(text)
    check(read_captions(folder / name))


def test_lines_of_json(folder):
    rows = [
        {"file_name": "a/1.png", "text": ["a red bird", "a bird, red"]},
        {"file_name": "2.jpg", "text": " two cats "},
    ]
    path = folder / "metadata.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    check(read_captions(path))
    own = folder / "own.jsonl"
    own.write_text(path.read_text().replace("file_name", "picture").replace("text", "words"))
    check(read_captions(own, image_name="picture", caption_name="words"))
    with pytest.raises(ValueError, match=r"no column filepath or file_name.*picture, words"):
        read_captions(own)


def test_coco(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("annotations") / "captions.json"
    notes = [(7, "a red bird"), (4, "two cats"), (7, "a bird, red")]
    content = {
        "images": [{"id": 7, "file_name": "a/1.png"}, {"id": 4, "file_name": "2.jpg"}],
        "annotations": [{"image_id": image, "caption": text} for image, text in notes],
    }
    path.write_text(json.dumps(content))
    check(read_captions(path, folder))
    path.write_text(json.dumps({"images": [{"id": 7}]}))
    with pytest.raises(ValueError, match=r"no file of COCO's captions .* It needs `images`"):
        read_captions(path, folder)


def test_problems_are_listed(folder):
    path = folder / "t.csv"
    path.write_text("image,caption\na/1.png,one\n,two\n2.jpg, \n")
    with pytest.raises(ValueError, match=r"(?s)2 problems.*line 3: no image.*line 4: no caption"):
        read_captions(path)
    path.write_text("image,caption\na/1.png,one, two\n")
    with pytest.raises(ValueError, match="line 2 has 3 cells, and 2 columns"):
        read_captions(path)
    path.write_text("image,caption\na/1.png,one\n3.png,three\n")
    with pytest.raises(ValueError, match=r"3\.png does not exist"):
        read_captions(path)
    with pytest.warns(UserWarning, match=r"3\.png does not exist"):
        assert read_captions(path, unreadable="skip").texts() == [("one",)]
    with pytest.raises(ValueError, match=r"Captions are read from \.csv"):
        read_captions(folder / "2.jpg")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_captions(folder / "none.csv")
    (folder / "t.jsonl").write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is no object"):
        read_captions(folder / "t.jsonl")
    (folder / "t.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"line 1 is no object of JSON \("):
        read_captions(folder / "t.jsonl")


def test_half_of_a_surrogate_pair_is_refused(folder):
    (folder / "a.jsonl").write_text('{"file_name": "2.jpg", "text": ["fine", "a \\ud800"]}\n')
    coco = {"images": [{"id": 1, "file_name": "2.jpg"}],
            "annotations": [{"image_id": 1, "caption": "\udc80"}]}  # fmt: skip
    (folder / "a.json").write_text(json.dumps(coco))
    for name, place in (("a.jsonl", "line 1"), ("a.json", "annotation 0")):
        with pytest.raises(ValueError, match=rf"{place}: half of a surrogate pair .* 2\.jpg"):
            read_captions(folder / name)
