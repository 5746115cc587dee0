"""Folders of images: what is read, and what every kind of bad file is told."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import re
import shutil
import struct
import sys

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit import progress
from keras_vit.config import Preprocessing
from keras_vit.data import folder as folders
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.decode import decode
from keras_vit.data.folder import read_files, read_folder
from keras_vit.data.folder_check import check_folder
from keras_vit.data.image_files import list_files, read_images
from keras_vit.data.input_transform import InputTransform
from tests.data.kinds import BLUE, RED, encode
from tests.data.pictures import encoded, pixels, write_folder
from tests.hostile_files import jpeg_of

TRANSFORM = InputTransform((24, 32), Preprocessing())


def seen(images, transform=TRANSFORM):
    """Pixels and labels of all images."""
    batches = list(eval_batches(images, transform, 4, one_hot=False))
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def test_classes_are_folders_in_order(tmp_path):
    write_folder(tmp_path, ("dogs", "cats"), count=3)
    (tmp_path / "cats" / "more").mkdir()
    (tmp_path / "cats" / "more" / "z.PNG").write_bytes(encoded(pixels(), "png"))
    (tmp_path / "cats" / "notes.txt").write_text("not an image")
    (tmp_path / "cats" / ".hidden.jpg").write_text("nor this")
    (tmp_path / ".git").mkdir()
    images = read_folder(tmp_path)
    assert images.class_names == ("cats", "dogs")
    assert images.num_images == 7 and images.skipped == ()
    x, y = seen(images)
    assert y.tolist() == [0, 0, 0, 0, 1, 1, 1]
    expected = tf.image.resize(pixels(), TRANSFORM.image_size)
    np.testing.assert_allclose(x[3], expected, atol=1e-3)


def test_a_test_set_has_the_classes_of_the_training_set(tmp_path):
    write_folder(tmp_path, ("dogs",), count=2)
    images = read_folder(tmp_path, class_names=("cats", "dogs"))
    assert seen(images)[1].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"folders that are no classes: dogs\. The classes are a"):
        read_folder(tmp_path, class_names=("a", "b"))
    with pytest.raises(ValueError, match=r"several times: dogs\. Rename these classes, .*WordNet"):
        read_folder(tmp_path, class_names=("dogs", "cats", "dogs"))


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ((), "There are no folders in .* Put the images of each class into a folder of its own"),
        (("cats",), "There are no images in .* in the folders of its 1 classes"),
    ],
)
def test_empty_folders(tmp_path, folders, message):
    for name in folders:
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=message):
        read_folder(tmp_path)


def test_missing_folders_single_classes_and_classes_without_images(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere"):
        read_folder(tmp_path / "nowhere")
    write_folder(tmp_path, ("cats",))
    with pytest.raises(ValueError, match=r"has one class, 'cats', and telling .* needs two"):
        read_folder(tmp_path)
    (tmp_path / "dogs").mkdir()
    with pytest.raises(ValueError, match=r"There are no images of dogs in .* Add some"):
        read_folder(tmp_path)


def huge_png():
    """A header that promises 20,000 x 20,000 pixels."""
    data = bytearray(encoded(pixels(), "png"))
    data[16:24] = struct.pack(">II", 20_000, 20_000)
    return bytes(data)


def huge_jpeg():
    data = bytearray(encoded(pixels(), "jpeg"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 20_000, 20_000)
    return bytes(data)


BAD = {
    "zero.jpg": (b"", r"is empty \(0 bytes\)"),
    "cut.jpg": (encoded(pixels())[:-500], "is cut off: its end is missing"),
    "thumb.jpg": (encoded(pixels(), comment=b"\xff\xd9")[:-500], "is cut off: its end is missing"),
    "cut.png": (encoded(pixels(), "png")[:-500], "is cut off: its end is missing"),
    "cut.gif": (encoded(pixels(), "gif")[:-500], "is cut off: its end is missing"),
    "cut.bmp": (encoded(pixels(), "bmp")[:-500], "is cut off: its end is missing"),
    "header.jpg": (encoded(pixels())[:30], "is cut off in its header"),
    "header.png": (encoded(pixels(), "png")[:20], "is cut off in its header"),
    "segments.jpg": (
        jpeg_of(b"\xff\xfe\0\2" * 140_000),
        "is a JPEG with more than 131,072 segments before its size",
    ),
    "fill.jpg": (b"\xff\xd8" + b"\xff" * 9999, "is cut off in its header"),
    "text.jpg": (
        b"this is a text, and no image" * 9,
        "is no JPEG, PNG, GIF, BMP, TIFF or WebP file",
    ),
    "huge.png": (huge_png(), "has 20,000 x 20,000 pixels, more than max_pixels=33,554,432"),
    "huge.jpg": (huge_jpeg(), "has 20,000 x 20,000 pixels, more than max_pixels=33,554,432"),
    "cut.webp": (encoded(pixels(), "webp")[:-50], "is cut off: its end is missing"),
    "moving.webp": (encode("webp", RED, BLUE), "is a WebP file that moves, which Tens"),
    "new.heic": (b"ftyp", "is of a format that TensorFlow does not read"),
}


def is_readable_here(name):
    """Older versions of TensorFlow do not read WebP."""
    return "webp" not in name.lower() or hasattr(tf.io, "decode_webp")


def test_webp_is_refused_where_tensorflow_does_not_read_it(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.data.headers._READS_WEBP", False)
    write_folder(tmp_path, count=2)
    (tmp_path / "cats" / "photo.jpg").write_bytes(encoded(pixels(), "webp"))  # whatever its name
    with pytest.raises(ValueError, match=r"photo.jpg is a WebP file, which this version of Tens"):
        read_folder(tmp_path)


def test_unreadable_files_are_told_or_left_out_by_choice(tmp_path):
    together = write_folder(tmp_path / "together", count=2)
    names = [name for name in BAD if is_readable_here(name)]
    for name in names:
        data, message = BAD[name]
        alone = write_folder(tmp_path / name, count=2)
        for folder in (alone, together):
            (folder / "cats" / name).write_bytes(data)
        match = rf"1 files in .* cannot be read:\s+.*{name} {message}"
        with pytest.raises(ValueError, match=match):
            read_folder(alone)
    with pytest.raises(ValueError, match=rf"{len(names)} files in .* cannot be read"):
        read_folder(together)
    with pytest.warns(
        UserWarning, match=rf"{len(names)} files .* are left out:\s+.*cut.bmp is cut"
    ):
        images = read_folder(together, unreadable="skip")
    assert images.num_images == 4 and len(images.skipped) == len(names)
    assert len(seen(images)[0]) == 4


def test_damage_in_the_middle_is_found_by_decoding(tmp_path):
    write_folder(tmp_path, count=2)
    data = bytearray(encoded(pixels(), "png"))
    data[60:90] = bytes(30)
    (tmp_path / "cats" / "hole.png").write_bytes(bytes(data))
    assert read_folder(tmp_path).num_images == 5  # its header is whole
    with pytest.raises(ValueError, match=r"hole\.png cannot be decoded \(.*PNG"):
        read_folder(tmp_path, check="pixels")
    with pytest.warns(UserWarning, match="left out"):
        assert read_folder(tmp_path, unreadable="skip", check="pixels").num_images == 4


def test_the_limit_of_pixels_holds_wherever_the_images_go(tmp_path):
    write_folder(tmp_path, count=2, size=(20, 24))
    assert read_folder(tmp_path, max_pixels=480).split(2)[1].in_memory().max_pixels == 480
    images = dataclasses.replace(read_folder(tmp_path), max_pixels=479)  # as if headers had lied
    ways = [eval_batches(images, TRANSFORM, 2)]
    for crop in ("inception", "none"):
        ways.append(train_batches(images, TRANSFORM, 2, Augmentation(crop=crop)))
    for batches in ways:
        with pytest.raises(tf.errors.InvalidArgumentError, match="has 20 x 24 pixels, more than"):
            next(iter(batches))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_pipes_and_devices_are_not_opened(tmp_path):
    write_folder(tmp_path, count=2)
    os.mkfifo(tmp_path / "cats" / "pipe.jpg")
    (tmp_path / "dogs" / "null.png").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"pipe\.jpg is no regular .*\s.*null\.png is no regular"):
        read_folder(tmp_path)
    with pytest.raises(OSError, match=r"pipe\.jpg is no regular file, so it is not read"):
        read_images(tmp_path / "cats" / "pipe.jpg")


def test_nothing_readable_left(tmp_path):
    write_folder(tmp_path, ("cats",), count=0)
    (tmp_path / "cats" / "zero.jpg").touch()
    with pytest.raises(ValueError, match=r"None of the 1 images in .*\n.*zero\.jpg is empty"):
        read_folder(tmp_path, unreadable="skip")


def test_appended_bytes_and_large_headers_do_no_harm(tmp_path, monkeypatch):
    write_folder(tmp_path, count=1)
    profile = {"icc_profile": bytes(range(256)) * 500}  # segments before the frame
    data = encoded(pixels(), **profile) + bytes(3000)
    (tmp_path / "cats" / "phone.jpg").write_bytes(data)
    monkeypatch.setattr("keras_vit.data.headers._BLOCK", 5)  # markers lie across blocks
    for kind in ("jpeg", "png"):  # motion photos: a video follows
        data = encoded(pixels(), kind) + b"\0\0\0\x18ftypmp42" + bytes(9000)
        (tmp_path / "cats" / f"motion.{kind}").write_bytes(data)
    assert read_folder(tmp_path, check="pixels").num_images == 5


def pillow(data):
    return np.array(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def cmyk():
    return PIL.Image.fromarray(pixels()).convert("CMYK")


def animated():
    frames = [PIL.Image.fromarray(pixels(seed=seed)) for seed in (0, 5)]
    return encoded(frames[0], "gif", save_all=True, append_images=frames[1:])


UNUSUAL = {
    "grey jpeg": (encoded(pixels()[..., 0]), lambda: pillow(encoded(pixels()[..., 0])), 1),
    "grey png": (encoded(pixels()[..., 0], "png"), lambda: np.repeat(pixels()[..., :1], 3, -1), 0),
    "CMYK": (encoded(cmyk()), lambda: np.array(cmyk().convert("RGB")), 40),
    "animated": (animated(), pixels, 40),
    "16 bits": (
        encoded(PIL.Image.fromarray(pixels()[..., 0].astype("uint16") * 257), "png"),
        lambda: np.repeat(pixels()[..., :1], 3, -1),
        0,
    ),
    "transparent": (encoded(pixels(channels=4), "png"), lambda: pixels(channels=4)[..., :3], 0),
    "WebP": (encoded(pixels(), "webp", lossless=True), pixels, 0),
    "WebP with losses": (encoded(pixels(), "webp", quality=99), pixels, 40),
    "WebP with more": (
        encoded(pixels(channels=4), "webp", lossless=True, exif=b"Exif\0\0MM\0*"),
        lambda: pixels(channels=4)[..., :3],
        0,
    ),
    "bitmap": (encoded(pixels(), "bmp"), pixels, 0),
    "palette": (encoded(PIL.Image.fromarray(pixels()).quantize(), "png"), pixels, 60),
}


def test_unusual_images_become_rgb(tmp_path):
    write_folder(tmp_path, count=1)
    images = []
    for number, (name, (data, expected, tolerance)) in enumerate(UNUSUAL.items()):
        if not is_readable_here(name):
            continue
        image = decode(tf.constant(data)).numpy().astype(int)
        assert image.shape == (40, 60, 3), name
        assert np.abs(image - expected()).max() <= tolerance, name
        # What is in a file counts, not its name; the folder's own image has an earlier one.
        (tmp_path / "cats" / f"unusual-{number:02}.jpg").write_bytes(data)
        images.append(image)
    x, _ = seen(read_folder(tmp_path, check="pixels"))
    for received, image in zip(x[1:], images, strict=False):
        np.testing.assert_allclose(
            received, tf.image.resize(image, TRANSFORM.image_size), atol=0.01
        )


def test_one_pixel_fills_the_whole_input(tmp_path):
    write_folder(tmp_path, count=1)
    dot = np.array([[[10, 200, 30]]], "uint8")
    (tmp_path / "cats" / "dot.png").write_bytes(encoded(dot, "png"))
    x, _ = seen(read_folder(tmp_path))
    np.testing.assert_array_equal(x[1], np.broadcast_to(dot, (24, 32, 3)))


def test_files_to_predict(tmp_path):
    write_folder(tmp_path, count=2)
    paths = [tmp_path / "dogs" / "0.jpeg", tmp_path / "cats"]
    files, images = read_files(paths, ("a", "b"))
    names = [file.relative_to(tmp_path).as_posix() for file in files]
    assert names == ["dogs/0.jpeg", "cats/0.jpeg", "cats/1.png"]
    assert images.num_images == 3 and len(seen(images)[0]) == 3
    with pytest.raises(ValueError, match="There are no images in nothing"):
        read_files([], ("a",))
    with pytest.raises(FileNotFoundError, match=r"There is no image .*gone.jpg"):
        read_files([tmp_path / "gone.jpg"], ("a",))


NAMES = (os.fsdecode(b"\xff.png"), "\x1b[2J.png", "a\nkeras-vit: error: b.png")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such names cannot be")
def test_names_are_read_as_they_are_and_shown_escaped(tmp_path):
    write_folder(tmp_path, ("cats", "dogs"), count=1)
    for name in NAMES:
        (tmp_path / "cats" / name).write_bytes(encoded(pixels(), "png"))
        (tmp_path / "dogs" / name).write_bytes(encoded(pixels(), "png")[:40])
    with pytest.warns(UserWarning, match="3 files in .* are left out") as caught:
        images = read_folder(tmp_path, unreadable="skip", check="pixels")
    shown = str(caught[0].message)
    assert shown.isprintable() is False and shown.replace("\n  ", "").isprintable()
    for name in (r"\udcff.png", r"\x1b[2J.png", r"a\nkeras-vit: error: b.png"):
        assert f"dogs/{name} is cut off" in shown
    assert set(images.file_names()) >= {str(tmp_path / "cats" / name) for name in NAMES}
    assert len(seen(images)[0]) == 5 and len(read_files([tmp_path / "cats"], ("a", "b"))[0]) == 4
    report = check_folder(tmp_path)
    assert report.parts[0].counts == {"cats": 4, "dogs": 1}
    assert r"dogs/a\nkeras-vit: error: b.png is cut off" in str(report)
    assert not set(str(report)) & {"\x1b", "\udcff"}


def test_files_are_sorted_by_the_parts_of_their_paths(tmp_path, monkeypatch):
    for name in ("a-b/1.png", "a/2.png", "a/b/3.png", "a/c.png", "a.png", "b/.x/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    expected = ["a/2.png", "a/b/3.png", "a/c.png", "a-b/1.png", "a.png"]
    assert list_files(".", (".png",)) == expected
    assert list_files(tmp_path, (".png",)) == [str(tmp_path / name) for name in expected]
    assert expected == [str(path) for path in sorted(map(pathlib.Path, expected))]


def test_long_checks_say_how_long_they_take(tmp_path, monkeypatch):
    write_folder(tmp_path, ("cats", "dogs"), count=5)
    lines = []

    class Told(progress.Progress):
        def update(self, *arguments):
            super().update(*arguments)
            lines.append(self.line())

    monkeypatch.setattr(folders, "_CHUNK", 2)
    monkeypatch.setattr(progress, "Progress", Told)
    read_folder(tmp_path)
    expected = r"checking images: 2 of 10 files, \d+ seconds so far, about \d+ seconds left"
    assert re.fullmatch(expected, lines[0]) and len(lines) == 5


def test_what_other_programs_leave_is_skipped_and_counted(tmp_path):
    left = ["__MACOSX/cat/._0.png", "@eaDir/x/0.png", "cat/@eaDir/0.png/t.jpg", "#recycle/0.png"]
    left += ["cat/.ipynb_checkpoints/0-checkpoint.png", "lost+found/1.png", "cat/Thumbs.db"]
    left += ["dog/._0.png", "desktop.ini", ".DS_Store", "dog/.DS_Store"]
    for name in ["cat/0.png", "dog/0.png", *left]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encode("PNG", RED, size=(8, 8)))
    images = read_folder(tmp_path)
    assert images.class_names == ("cat", "dog") and images.num_images == 2
    assert read_files([tmp_path], ["cat", "dog"])[1].num_images == 2
    assert len(read_images(tmp_path)) == 2 and len(list_files(tmp_path, (".png", ".jpg"))) == 2
    (finding,) = check_folder(tmp_path, decode=False).findings[-1:]
    assert (finding.kind, finding.number) == ("hidden files and files of other programs", len(left))
    shutil.move(tmp_path / "cat", tmp_path / "train" / "cat")
    shutil.copytree(tmp_path / "dog", tmp_path / "train" / "dog")
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    for part in ("train", "test"):
        (tmp_path / part / "__MACOSX").mkdir()
    assert folders.read_parts(tmp_path)["test"].class_names == ("cat", "dog")
