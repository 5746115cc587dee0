"""Image files as arrays."""

from __future__ import annotations

import numpy as np
import pytest

import keras_vit
from keras_vit.data.images import read_images
from tests.data.kinds import BLUE, RED, encode


def test_files_and_folders_of_them(tmp_path):
    for name, colour in (("b.PNG", BLUE), ("a.jpg", RED), ("below/c.gif", BLUE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        kind = {"PNG": "png", "jpg": "jpeg", "gif": "gif"}[name.rpartition(".")[2]]
        (tmp_path / name).write_bytes(encode(kind, colour))
    (tmp_path / "notes.txt").write_text("no image")
    images = keras_vit.read_images(tmp_path)
    np.testing.assert_allclose([image[0, 0] for image in images], [RED, BLUE, BLUE], atol=3)
    assert [image.dtype for image in images] == [np.uint8] * 3
    assert len(read_images([tmp_path / "a.jpg", tmp_path / "below"])) == 2
    two = read_images(tmp_path, count=2)  # the first, and the one half way
    np.testing.assert_allclose([image[0, 0] for image in two], [RED, BLUE], atol=3)


def test_a_file_that_is_no_image(tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"x\.png cannot be read as an image \(JPEG"):
        read_images(tmp_path)


def test_no_images(tmp_path):
    with pytest.raises(ValueError, match=r"There are no images in"):
        read_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"There is no image .*lost\.png"):
        read_images(tmp_path / "lost.png")
