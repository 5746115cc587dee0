"""Tests EXIF orientation against Pillow."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.batches import eval_batches
from keras_vit.data.decode import decode, decode_window
from keras_vit.data.folder import read_folder
from keras_vit.data.image_files import ImageFiles
from keras_vit.data.orientation import read_orientation
from keras_vit.data.transforms import eval_transform
from keras_vit.export.inference import prepare
from keras_vit.export.saved_model import ServingModule
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config

PHOTOGRAPH = np.add.outer(np.arange(24) * 3, np.arange(40) * 4)[..., None] + [0, 10, 20]


def jpeg(orientation, before=0, byte_order=b"MM"):
    """A JPEG file; `before` bytes of comments in the directory precede the orientation."""
    exif = PIL.Image.Exif()
    exif.endian = "<" if byte_order == b"II" else ">"
    if before:
        exif[0x010E] = "x" * before
    if orientation is not None:
        exif[0x0112] = orientation
    file = io.BytesIO()
    image = PIL.Image.fromarray(PHOTOGRAPH.astype("uint8"))
    image.save(file, "JPEG", exif=exif, quality=95)
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpeg_files_are_turned_as_by_pillow(orientation):
    data = jpeg(orientation, before=50 * (orientation % 2))
    turned = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
    pixels = decode(tf.constant(data)).numpy()
    assert pixels.shape == (turned.height, turned.width, 3)
    assert np.abs(pixels.astype(int) - np.asarray(turned)).max() <= 3  # of two decoders
    stored = decode(tf.constant(data), exif_orientation=False).numpy()
    assert stored.shape == (24, 40, 3)
    window = tf.constant([3, 5, 14, 9])
    part = decode_window(tf.constant(data), lambda shape: window).numpy()
    assert part.shape == (14, 9, 3)
    assert np.abs(part.astype(int) - pixels[3:17, 5:14]).max() <= 8  # chroma at the borders


def test_orientations_that_are_not_stated():
    assert read_orientation(tf.constant(jpeg(None))) == 1
    assert read_orientation(tf.constant(jpeg(9))) == 1
    assert read_orientation(tf.constant(jpeg(6, byte_order=b"II"))) == 6
    plain = io.BytesIO()
    PIL.Image.fromarray(PHOTOGRAPH.astype("uint8")).save(plain, "JPEG")
    assert read_orientation(tf.constant(plain.getvalue())) == 1
    assert read_orientation(tf.constant(jpeg(6)[:25])) == 1


def test_batches_files_and_the_switch_see_the_same(tmp_path):
    """Evaluation, `ImageFiles` and signatures; training reads with the same decoder."""
    path = tmp_path / "a" / "photograph.jpg"
    path.parent.mkdir()
    path.write_bytes(jpeg(6))
    turned, stored = Preprocessing(), Preprocessing(exif_orientation=False)
    found = {}
    for preprocessing in (turned, stored):
        model = build_vit(tiny_config(classes=1, preprocessing=preprocessing))
        serving = ServingModule(prepare(model), ["a"], 1)
        pixels = [
            next(iter(ImageFiles([path], model)))[0],
            next(iter(eval_batches(read_folder(tmp_path, class_names=["a"]), model, 1)))[0][0],
            serving._decode(tf.constant(0), tf.constant(path.read_bytes())),
        ]
        np.testing.assert_array_equal(pixels[0], pixels[1])
        np.testing.assert_array_equal(pixels[0], pixels[2])
        found[preprocessing.exif_orientation] = pixels[0]
    size = found[True].shape[:2]
    image = decode(tf.constant(path.read_bytes()))
    np.testing.assert_array_equal(found[True], eval_transform(image, turned, size))
    assert np.abs(found[True] - found[False]).max() > 50
