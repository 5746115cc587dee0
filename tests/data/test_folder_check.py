"""`check_folder` and `read_parts`: what a folder of photos holds before anything is trained."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.image_files import IMAGE_ENDINGS, list_files
from tests.data.pictures import encoded

RNG = np.random.default_rng(0)


def picture(height=24, width=32):
    """A smooth random picture, which no other resembles."""
    small = RNG.uniform(0, 255, (4, 4, 3))
    return np.kron(small, np.ones((height // 4, width // 4, 1))).astype("uint8")


def write(path, image, kind="png"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(image, kind))
    return path


def with_orientation(jpeg, value):
    """A JPEG with EXIF data of one entry: the orientation."""
    tiff = b"MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, value, 0, 0)
    data = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + jpeg[2:]


@pytest.fixture
def photos(tmp_path):
    """Two parts of three classes, with one of each problem."""
    root = tmp_path / "photos"
    for name, count in (("cat", 12), ("dog", 3), ("emu", 1)):
        for i in range(count):
            write(root / "train" / name / f"{i}.png", picture())
    for i in range(2):
        write(root / "test" / "cat" / f"{i}.png", picture())
    write(root / "test" / "cat" / "copy.bmp", picture_of(root / "train/dog/0.png"), "bmp")
    write(root / "test" / "dog" / "large.png", picture(400, 400))
    write(root / "test" / "fox" / "0.png", picture())
    rotated = write(root / "train" / "cat" / "turned.jpg", picture(), "jpeg")
    rotated.write_bytes(with_orientation(rotated.read_bytes(), 6))
    upright = write(root / "train" / "cat" / "upright.jpg", picture(), "jpeg")
    upright.write_bytes(with_orientation(upright.read_bytes(), 1))
    cut = root / "train" / "cat" / "cut.png"
    cut.write_bytes((root / "train/cat/0.png").read_bytes()[:-20])
    return root


def picture_of(path):
    return keras_vit.data.read_images(path)[0]


def found(report):
    return {finding.kind: finding for finding in report.findings}


def test_a_folder_with_parts_and_problems(photos):
    report = keras_vit.data.check_folder(photos)
    train, test = report.parts
    assert (train.name, train.counts) == ("train", {"cat": 14, "dog": 3, "emu": 1})
    assert (test.name, test.counts) == ("test", {"cat": 3, "dog": 1, "fox": 1})
    assert train.formats == {"png": 16, "jpeg": 2} and train.sizes == ((24, 32),) * 3
    assert test.sizes[-1] == (400, 400)
    findings = found(report)
    assert {kind: finding.number for kind, finding in findings.items()} == {
        "unreadable files": 1,
        "rotated by EXIF": 1,
        "classes of test without training": 1,
        "classes without images of test": 1,
        "classes of one image": 1,
        "rare classes": 1,
        "mixed sizes": 1,
        "near-duplicates in train and test": 1,
    }
    assert "cut.png is cut off" in findings["unreadable files"].examples[0]
    assert findings["rotated by EXIF"].examples == (str(photos / "train/cat/turned.jpg"),)
    assert findings["classes of test without training"].examples == ("fox",)
    assert findings["rare classes"].examples == ("emu: 1",)
    (pair,) = findings["near-duplicates in train and test"].examples
    assert "train/dog/0.png and " in pair and "test/cat/copy.bmp (1.0" in pair


def test_the_report_as_tables(photos):
    text = str(keras_vit.data.check_folder(photos, decode=False))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    folder = photos / "train"
    assert f"train 18 3 32 x 24 32 x 24 32 x 24 16 png, 2 jpeg {folder}" in lines
    assert lines[lines.index("class train test") + 1] == "cat 14 3"
    assert any(line.startswith("unreadable files 1 repair or remove them") for line in lines)
    assert "near-duplicates" not in text  # which need the pixels


def pair_sides(images):
    """How many of a pair of duplicates a part holds."""
    return sum(path.endswith(("a/3.png", "copy.png")) for path in images.file_names())


@pytest.mark.slow
def test_near_duplicates_across_a_share_that_is_held_out(tmp_path):
    for i in range(5):
        write(tmp_path / "a" / f"{i}.png", picture())
        write(tmp_path / "b" / f"{i}.png", picture())
    write(tmp_path / "b" / "copy.png", picture_of(tmp_path / "a" / "3.png"))
    images = keras_vit.read_folder(tmp_path)
    sides = {seed: {pair_sides(part) for part in images.split(0.5, seed)} for seed in range(9)}
    seed = min(seed for seed, side in sides.items() if side == {1})  # one of the pair on each side
    report = keras_vit.data.check_folder(tmp_path, validation=0.5, seed=seed)
    assert [sum(part.counts.values()) for part in report.parts] == [5, 6]
    assert found(report)["near-duplicates in train and validation"].number == 1
    os.remove(tmp_path / "b" / "copy.png")
    assert "No problems found." in str(keras_vit.data.check_folder(tmp_path))


def test_links_that_lead_back_do_not_multiply_images(tmp_path):
    for name in ("cat", "dog"):
        for i in range(2):
            write(tmp_path / "photos" / name / f"{i}.png", picture())
        (tmp_path / "photos" / name / "all").symlink_to(tmp_path / "photos")
        (tmp_path / "photos" / name / "self").symlink_to(".")
    write(tmp_path / "elsewhere" / "2.png", picture())
    for link in ("more", "again"):
        (tmp_path / "photos" / "dog" / link).symlink_to(tmp_path / "elsewhere")
    assert keras_vit.read_folder(tmp_path / "photos").num_images == 5
    dogs = list_files(tmp_path / "photos" / "dog", IMAGE_ENDINGS)
    assert list(map(os.path.basename, dogs)) == ["0.png", "1.png", "2.png"]


def test_parts_are_read_with_the_classes_of_training(photos):
    with pytest.raises(ValueError, match=r"holds the parts of a data set, not classes: train, te"):
        keras_vit.read_folder(photos)
    os.remove(photos / "train/cat/cut.png")
    with pytest.raises(ValueError, match="has folders that are no classes: fox"):
        keras_vit.data.read_parts(photos)
    (photos / "test" / "fox").rename(photos / "test" / "emu")
    parts = keras_vit.data.read_parts(photos)
    assert list(parts) == ["train", "test"] and parts["test"].num_images == 5
    assert parts["train"].class_names == parts["test"].class_names == ("cat", "dog", "emu")
    with pytest.raises(ValueError, match="has no folders train/ and val/ or test/"):
        keras_vit.data.read_parts(photos / "train")
    assert keras_vit.data.check_folder(photos, decode=False).parts[0].counts["cat"] == 14


def test_classes_of_validation_are_checked_in_python(photos):
    os.remove(photos / "train/cat/cut.png")
    training = keras_vit.read_folder(photos / "train")
    other = keras_vit.read_folder(photos / "test")
    config = keras_vit.make_config(
        patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=16, image_size=16, classes=3
    )
    model, recipe = keras_vit.build_vit(config), keras_vit.train.find_recipe("finetune_pets")
    with pytest.raises(ValueError, match=r"without emu; with fox\. Labels would mean other"):
        keras_vit.fine_tune(model, training, recipe, other)
    with pytest.raises(ValueError, match="without emu; with fox"):
        keras_vit.train.transfer(model, training, other, recipe)


def test_bits_that_files_do_not_use_and_black_images_are_reported(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for i in range(3):
            values = rng.integers(0, 4096, (16, 24, 1)).astype("uint16")
            path = tmp_path / "scans" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tf.io.encode_png(values).numpy())
            write(tmp_path / "dark" / name / f"{i}.png", picture() // (10 if i else 1))
    report = keras_vit.data.check_folder(tmp_path / "scans", decode=False)
    finding = found(report)["12 bits in 16-bit files"]
    assert finding.number == 6 and "become 0 to 15 of 255" in finding.advice
    assert finding.advice.endswith("multiply the stored values by 16")
    with pytest.warns(UserWarning, match=r"16-bit files of .*scans, no value .* as of 12 bits"):
        keras_vit.read_folder(tmp_path / "scans")
    with pytest.warns(UserWarning, match=r"multiply the stored values by 16\."):
        keras_vit.data.read_images(tmp_path / "scans")
    for path in (tmp_path / "scans").glob("*/*.png"):  # as the advice says
        values = tf.io.decode_png(path.read_bytes(), dtype=tf.uint16) * 16
        path.write_bytes(tf.io.encode_png(values).numpy())
    assert keras_vit.read_folder(tmp_path / "scans").num_images == 6
    assert not keras_vit.data.check_folder(tmp_path / "scans", decode=False).findings
    dark = found(keras_vit.data.check_folder(tmp_path / "dark", decode=False))
    assert dark["nearly black images"].number == 4
    (tmp_path / "scans/cat/0.png").write_bytes((tmp_path / "scans/cat/0.png").read_bytes()[:80])
    assert keras_vit.data.check_folder(tmp_path / "scans").parts[0].counts["cat"] == 2
