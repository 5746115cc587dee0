"""Tests EXIF orientation against Pillow."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.batches import eval_batches
from keras_vit.data.decode import decode, decode_window
from keras_vit.data.folder import examine, read_folder
from keras_vit.data.headers import read_exif_orientation, read_size
from keras_vit.data.image_files import ImageFiles
from keras_vit.data.orientation import read_orientation
from keras_vit.data.transforms import eval_transform
from keras_vit.export.inference import prepare
from keras_vit.export.saved_model import ServingModule
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config

READS_WEBP = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 19)
PHOTOGRAPH = np.add.outer(np.arange(24) * 3, np.arange(40) * 4)[..., None] + [0, 10, 20]


def photograph(orientation, kind="JPEG", before=0, byte_order=b"MM"):
    """An image file; `before` bytes of comments in the directory precede the orientation."""
    exif = PIL.Image.Exif()
    exif.endian = "<" if byte_order == b"II" else ">"
    if before:
        exif[0x010E] = "x" * before
    if orientation is not None:
        exif[0x0112] = orientation
    file = io.BytesIO()
    image = PIL.Image.fromarray(PHOTOGRAPH.astype("uint8"))
    options = {"lossless": True} if kind == "WEBP" else {"quality": 95}
    image.save(file, kind, exif=exif, **options)
    return file.getvalue()


def classify():
    """The client script, which has neither TensorFlow nor keras_vit."""
    path = pathlib.Path(__file__).parents[2] / "export" / "classify.py"
    spec = importlib.util.spec_from_file_location("classify", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_files_are_turned_as_by_pillow(orientation, kind, tmp_path):
    if kind == "WEBP" and not READS_WEBP:
        pytest.skip("this TensorFlow does not decode WebP")
    data = photograph(orientation, kind, before=50 * (orientation % 2))
    stored = PIL.Image.open(io.BytesIO(data))
    displayed = PIL.ImageOps.exif_transpose(stored)
    assert (np.asarray(classify().turn(stored)) == np.asarray(displayed)).all()
    pixels = decode(tf.constant(data)).numpy()
    assert pixels.shape == (displayed.height, displayed.width, 3)
    largest = 3 if kind == "JPEG" else 0  # of two decoders
    assert np.abs(pixels.astype(int) - np.asarray(displayed)).max() <= largest
    assert decode(tf.constant(data), exif_orientation=False).shape == (24, 40, 3)
    window = tf.constant([3, 5, 14, 9])
    part = decode_window(tf.constant(data), lambda shape: window).numpy()
    assert part.shape == (14, 9, 3)
    largest = 8 if kind == "JPEG" else 0  # chroma at the borders
    assert np.abs(part.astype(int) - pixels[3:17, 5:14]).max() <= largest
    path = tmp_path / "photograph"
    path.write_bytes(data)
    assert read_exif_orientation(path, kind.lower()) == orientation
    if kind == "JPEG":  # fill bytes before a marker, of which there can be any number
        path.write_bytes(data[:2] + b"\xff" * 9999 + data[2:])
        assert examine(path, "headers") is None and read_size(path)[:2] == (24, 40)
        segment = b"\xff\xe5\0\4ab"
        for before in (b"", b"\xff" * 9, segment, segment * 2, segment * 9):
            path.write_bytes(data[:2] + before + data[2:])
            found = int(read_orientation(tf.constant(path.read_bytes())))
            assert read_exif_orientation(path, "jpeg") == found


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_batches_files_and_the_switch_see_the_same(kind, tmp_path):
    """Evaluation, `ImageFiles` and signatures; training reads with the same decoder."""
    path = tmp_path / "a" / f"photograph.{kind.lower()}"
    path.parent.mkdir()
    path.write_bytes(photograph(6, kind))
    displayed, stored = Preprocessing(), Preprocessing(exif_orientation=False)
    found = {}
    for preprocessing in (displayed, stored):
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
    np.testing.assert_array_equal(found[True], eval_transform(image, displayed, size))
    assert np.abs(found[True] - found[False]).max() > 50


@pytest.mark.parametrize("channels", [1, 3])
def test_classify_takes_the_upper_8_of_16_bits(channels):
    values = np.random.default_rng(0).integers(0, 1 << 16, (16, 16)).astype("uint16")
    data = tf.io.encode_png(values[..., None]).numpy()
    settings = dataclasses.asdict(Preprocessing())
    card = {"input_shape": [16, 16, channels], "preprocessing": settings}
    found = classify().eval_transform(PIL.Image.open(io.BytesIO(data)), card)
    np.testing.assert_array_equal(found[0], decode(tf.constant(data), channels))
