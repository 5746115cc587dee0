"""Image files as arrays."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.folder import read_files
from keras_vit.data.image_files import ImageFiles, read_images
from tests.data.kinds import BLUE, RED, encode
from tests.models.test_feature_extraction import random_vit


def test_files_and_folders_of_them(tmp_path):
    for name, colour in (("b.PNG", BLUE), ("a.jpg", RED), ("below/c.gif", BLUE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        kind = {"PNG": "png", "jpg": "jpeg", "gif": "gif"}[name.rpartition(".")[2]]
        (tmp_path / name).write_bytes(encode(kind, colour))
    (tmp_path / "notes.txt").write_text("no image")
    images = keras_vit.data.read_images(tmp_path)
    np.testing.assert_allclose([image[0, 0] for image in images], [RED, BLUE, BLUE], atol=3)
    assert [image.dtype for image in images] == [np.uint8] * 3
    assert len(read_images([tmp_path / "a.jpg", tmp_path / "below"])) == 2
    two = read_images(tmp_path, count=2)  # the first, and the one half way
    np.testing.assert_allclose([image[0, 0] for image in two], [RED, BLUE], atol=3)


def test_a_file_that_is_no_image(tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"x\.png cannot be .* \(JPEG.*\): The image is no JPEG"):
        read_images(tmp_path)
    (tmp_path / "x.png").write_bytes(encode("png", RED))
    with pytest.raises(OSError, match=r"has 9 x 12 pixels, more than max_pixels=100: make it sm"):
        read_images(tmp_path, max_pixels=100)


def test_no_images(tmp_path):
    with pytest.raises(ValueError, match=r"There are no images in"):
        read_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"There is no image .*lost\.png"):
        read_images(tmp_path / "lost.png")


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_read_as_the_model_takes_them(channels, tmp_path):
    model, _ = random_vit(include_preprocessing=False, channels=channels, image_size=(16, 32))
    pixels = np.random.default_rng(0).integers(0, 256, (16, 32, channels)).astype("float32")
    for name in ("b.png", "a.PNG"):
        keras.utils.save_img(tmp_path / name, pixels, scale=False, file_format="png")
    (tmp_path / "notes.txt").write_text("no image")
    files = ImageFiles([tmp_path, tmp_path / "b.png"], model, batch_size=2)
    assert len(files) == 2 and [len(batch) for batch in files] == [2, 1]
    images = np.concatenate(list(files))  # the second time that they are read
    assert images.shape == (3, 16, 32, channels) and images.dtype == "float32"
    np.testing.assert_allclose(images, np.stack([pixels / 127.5 - 1] * 3), atol=1e-5)


def test_missing_and_damaged_images_are_errors(tmp_path):
    model, _ = random_vit()
    with pytest.raises(ValueError, match="no images in nothing"):
        ImageFiles([], model)
    with pytest.raises(FileNotFoundError, match=r"There is no image .*lost\.png"):
        ImageFiles([tmp_path / "lost.png"], model)
    (tmp_path / "damaged.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"damaged\.png cannot be read as an image"):
        next(iter(ImageFiles([tmp_path], model)))


def test_report_evaluation_and_prediction_read_the_same_pixels(tmp_path):
    model, _ = random_vit(image_size=(24, 32), patch_size=8, classes=2)
    (tmp_path / "cats").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (50, 41, 3)).astype("uint8")
    keras.utils.save_img(tmp_path / "cats" / "noise.jpg", pixels, scale=False)
    folder = keras_vit.read_folder(tmp_path, class_names=("cats", "dogs"))
    _, files = read_files([tmp_path], ("cats", "dogs"))
    evaluated, predicted = (
        next(iter(keras_vit.data.eval_batches(images, model, 1)))[0].numpy()
        for images in (folder, files)
    )
    (reported,) = ImageFiles([tmp_path], model)
    np.testing.assert_array_equal(predicted, evaluated)
    np.testing.assert_array_equal(reported, evaluated)
