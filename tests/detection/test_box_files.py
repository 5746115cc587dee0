"""Boxes in files of COCO and of YOLO are those of `read_boxes`, and errors name the line."""

from __future__ import annotations

import json

import numpy as np
import PIL.Image
import pytest

from keras_vit.detection.box_files import read_coco_boxes, read_yolo_boxes

NAMES = ["cat", "dog"]


@pytest.fixture
def folder(tmp_path):
    for name, size in {"a": (40, 20), "b": (30, 60), "deep/c": (8, 8)}.items():
        path = tmp_path / "images" / "train" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", size, "white").save(path)
    return tmp_path


def write_coco(folder, boxes, **changes):
    names = ["deep/c.png", "a.png", "b.png"]
    sizes = [(8, 8), (20, 40), (60, 30)]
    content = {
        "images": [
            {"id": 10 - i, "file_name": name, "height": height, "width": width}
            for i, (name, (height, width)) in enumerate(zip(names, sizes, strict=True))
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"image_id": image, "category_id": kind, "bbox": box, "iscrowd": crowd}
            for image, kind, box, crowd in boxes
        ],
        **changes,
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_boxes_of_coco_are_inside_of_their_images(folder):
    boxes = [(9, 3, [1, 2, 10, 5], 0), (8, 18, [0, 0, 30, 60], 0), (9, 18, [0, 0, 9, 9], 1)]
    path = write_coco(folder, [*boxes, (9, 18, [30.5, -1, 20, 8.5], 0)])
    found = read_coco_boxes(path, folder / "images" / "train")
    assert found.class_names == ("cat", "dog") and found.sizes.tolist() == [
        [8, 8],
        [20, 40],
        [60, 30],
    ]
    assert found.labels.tolist() == [[-1, -1], [0, 1], [1, -1]]
    assert found.boxes[1].tolist() == [[1, 2, 11, 7], [30.5, 0, 40, 7.5]]


def test_boxes_without_an_area_are_left_out_with_a_warning(folder):
    path = write_coco(folder, [(9, 3, [1, 2, 0, 5], 0), (9, 3, [50, 2, 5, 5], 0)])
    with pytest.warns(UserWarning, match="has 2 boxes without an area inside of their images"):
        assert (read_coco_boxes(path, folder / "images" / "train").labels == -1).all()


@pytest.mark.parametrize(
    "changes", [{"categories": None}, {"images": [{"id": 1}]}, {"annotations": [{"bbox": [1]}]}]
)
def test_other_files_are_no_coco(folder, changes):
    with pytest.raises(ValueError, match=r"instances\.json is no file of COCO's boxes .*It needs"):
        read_coco_boxes(write_coco(folder, [], **changes), folder)


def test_missing_images_of_coco_are_listed(folder):
    with pytest.raises(ValueError, match=r"has 3 problems with boxes:\n.*c\.png"):
        read_coco_boxes(write_coco(folder, []))
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_coco_boxes(folder / "other.json")


def write_labels(folder, **texts):
    for name, text in texts.items():
        path = folder / "labels" / "train" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_boxes_of_yolo_are_shares_of_their_images(folder):
    write_labels(folder, a="1 0.5 0.5 0.25 0.5\n\n0 0.9 0.5 0.4 0.2\n", b="")
    found = read_yolo_boxes(folder / "images" / "train", NAMES)
    assert [row.rsplit("/", 1)[-1] for row in found.rows[0]] == ["a.png", "b.png", "c.png"]
    assert found.labels.tolist() == [[1, 0], [-1, -1], [-1, -1]]
    np.testing.assert_allclose(found.boxes[0], [[15, 5, 25, 15], [28, 8, 40, 12]], rtol=1e-6)
    named = read_yolo_boxes(folder / "images" / "train", NAMES, folder / "labels" / "train")
    assert (named.boxes == found.boxes).all()


@pytest.mark.parametrize("line", ["1 0.5 0.5 0.25", "0 20 10 4 4", "0 nan 0 1 1", "cat 0 0 1 1"])
def test_wrong_lines_of_yolo_are_listed(folder, line):
    write_labels(folder, a=f"0 0.5 0.5 1 1\n{line}", b=line)
    with pytest.raises(ValueError, match=r"has 2 lines that are not a class(.|\n)*a\.txt, line 2"):
        read_yolo_boxes(folder / "images" / "train", NAMES)


def test_files_of_yolo_that_are_missing_or_damaged_are_named(folder):
    write_labels(folder, a="3 0.5 0.5 1 1")
    (folder / "images" / "train" / "b.png").write_text("none")
    with pytest.raises(ValueError, match=r"b\.png(.|\n)*label 3, and the classes are 0 to 1"):
        read_yolo_boxes(folder / "images" / "train", NAMES)
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*labels"):
        read_yolo_boxes(folder / "images" / "train" / "deep", NAMES)
    with pytest.raises(FileNotFoundError, match="There is no folder photos"):
        read_yolo_boxes("photos", NAMES)


def test_texts_may_lie_next_to_their_images(folder):
    write_labels(folder, a="1 0.5 0.5 1 1")
    (folder / "images").rename(folder / "photos")
    text = next((folder / "labels").rglob("a.txt"))
    text.rename(folder / "photos" / "train" / "a.txt")
    assert read_yolo_boxes(folder / "photos" / "train", NAMES).labels.max() == 1
