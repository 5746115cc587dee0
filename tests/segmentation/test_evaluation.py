"""Class maps of whole images and sliding windows, and mean IoU, against Keras's metric."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data.input_transform import InputTransform
from keras_vit.runtime.model import Model
from keras_vit.segmentation.evaluation import evaluate_masks, predict_masks
from keras_vit.segmentation.masks import MaskSet, read_mask_arrays, read_masks
from tests.data.pictures import encoded

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def model():
    """A convolution to logits, on 8 x 12 pixels: a window shows where it was cut."""
    x = keras.Input((8, 12, 3))
    conv = keras.layers.Conv2D(3, 3, padding="same", kernel_initializer="random_normal")
    return Model(x, conv(x))


def random_masks(count=3, size=(12, 20)):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (count, *size))  # the third class occurs in predictions alone
    labels[:, 0] = 255
    return read_mask_arrays(rng.uniform(0, 255, (count, *size, 3)), labels, NAMES)


def test_the_mean_iou_is_keras_metric(model, monkeypatch, capsys):
    monkeypatch.delenv("KERAS_VIT_PROGRESS", raising=False)
    monkeypatch.setattr("keras_vit.progress._FIRST", 1e-3)
    masks = random_masks()
    result = evaluate_masks(model, masks)
    assert f"evaluation on {masks.name}: 1 of 3 images, " in capsys.readouterr().err
    metric = keras.metrics.MeanIoU(3, ignore_class=255)
    for image, labels in masks.pairs():
        x = tf.image.resize(tf.cast(image, "float32"), (8, 12))[None]
        logits = tf.image.resize(model(x), labels.shape)[0]
        metric.update_state(labels, np.argmax(logits, -1))
    assert result.mean_iou == pytest.approx(float(metric.result()), abs=1e-6)
    assert result.confusion.sum() == 3 * 11 * 20 and not result.confusion[2].any()
    assert result.pixel_accuracy == np.trace(result.confusion) / result.confusion.sum()
    assert f"mean IoU {result.mean_iou:.2%}" in str(result) and "(3 images)" in str(result)


def test_sliding_windows_average_what_each_window_gives(model):
    image = np.random.default_rng(0).uniform(0, 255, (16, 24, 3)).astype("float32")
    options = {"mode": "slide", "scales": (2.0,), "logits": True}
    found = predict_masks(model, image, stride=(8, 8), batch_size=2, **options)
    total, counts = np.zeros((16, 24, 3)), np.zeros((16, 24, 1))
    for y in (0, 8):
        for x in (0, 8, 12):  # the last ends at the edge
            window = (slice(y, y + 8), slice(x, x + 12))
            total[window] += np.asarray(model(image[window][None]))[0]
            counts[window] += 1
    np.testing.assert_allclose(found, total / counts, rtol=0, atol=1e-3)
    options["stride"] = 8
    mirrored = predict_masks(model, image[:, ::-1], **options)[:, ::-1]
    both = predict_masks(model, image, flip=True, **options)
    alone = predict_masks(model, image, **options)
    np.testing.assert_allclose(both, (alone + mirrored) / 2, rtol=0, atol=1e-3)


def resize_linearly(x, size):
    """Bilinear between the centres of pixels, in float64."""
    for axis, new in enumerate(size):
        old = x.shape[axis]
        centre = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.minimum(np.floor(centre).astype(int), max(old - 2, 0))
        share = (centre - low).reshape([-1 if k == axis else 1 for k in range(3)])
        high = np.minimum(low + 1, old - 1)
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


def convolve(kernel, bias, x):
    """The model in float64: a convolution of 3 x 3 with zeros around."""
    height, width, _ = x.shape
    x = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    rows = [x[i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3)]
    return sum(rows) + bias


def reference_logits(model, image, scale, mirrored, steps):
    """Logits at one scale: a smaller image has the mean colour below and to the right."""
    kernel, bias = (np.asarray(w, "float64") for w in model.get_weights())
    shape, window = np.array(image.shape[:2]), np.array((8, 12))
    size = np.round(shape * (max(window / shape) * scale)).astype(int)
    x = resize_linearly(image.astype("float64"), size)
    x = x[:, ::-1] if mirrored else x
    padded = np.full((*np.maximum(size, window), 3), 127.5)
    padded[: size[0], : size[1]] = x
    total, counts = np.zeros_like(padded), np.zeros((*padded.shape[:2], 1))
    ends = [
        {*range(w, n, step), n} for n, w, step in zip(padded.shape[:2], window, steps, strict=True)
    ]
    for y in ends[0]:
        for x in ends[1]:
            part = slice(y - 8, y), slice(x - 12, x)
            total[part] += convolve(kernel, bias, padded[part])
            counts[part] += 1
    logits = (total / counts)[: size[0], : size[1]]
    return resize_linearly(logits[:, ::-1] if mirrored else logits, shape)


@pytest.mark.parametrize("size", [(12, 30), (24, 10), (16, 24)])
def test_several_scales_are_those_of_a_plain_computation(model, size):
    image = np.random.default_rng(1).uniform(0, 255, (*size, 3)).astype("float32")
    scales = (0.4, 0.75, 1.0, 1.75)
    by_scale = []
    for scale in scales:
        found = predict_masks(model, image, "slide", (scale,), stride=(5, 8), logits=True)
        by_scale.append(reference_logits(model, image, scale, False, (5, 8)))
        np.testing.assert_allclose(found, by_scale[-1], rtol=0, atol=1e-3)
    assert np.abs(by_scale[0] - by_scale[2]).max() > 1  # another scale, other logits
    options = {"stride": (5, 8), "flip": True}
    found = predict_masks(model, image, "slide", scales, logits=True, **options)
    mirrored = [reference_logits(model, image, scale, True, (5, 8)) for scale in scales]
    np.testing.assert_allclose(found, np.mean(by_scale + mirrored, 0), rtol=0, atol=1e-3)
    classes = predict_masks(model, image, "slide", scales, **options)
    np.testing.assert_array_equal(classes, np.argmax(found, -1))


def test_the_limit_of_pixels_is_that_of_the_set(model):
    image = tf.io.encode_png(tf.zeros((8, 12, 3), "uint8")).numpy()
    labels = np.zeros((1, 8, 12), "int32")
    masks = MaskSet("m", NAMES, (np.array([image]), labels), lambda *row: row)
    assert evaluate_masks(model, masks).num_images == 1
    with pytest.raises(ValueError, match=r"image 0 of m cannot be decoded .*max_pixels=95"):
        evaluate_masks(model, dataclasses.replace(masks, max_pixels=95))


def test_images_are_turned_to_their_masks_for_every_model(monkeypatch, tmp_path):
    labels = np.repeat([[0] * 8 + [1] * 4], 8, 0).astype("uint8")
    exif = PIL.Image.Exif()
    exif[0x0112] = 3  # by half a turn, so that the size stays the same
    stored = (200 * np.eye(3, dtype="uint8"))[labels[::-1, ::-1]]
    for name, data in {
        "0.png": encoded(labels, "png"),
        "0.jpg": encoded(stored, exif=exif),
    }.items():
        (tmp_path / name[2:]).mkdir()
        (tmp_path / name[2:] / name).write_bytes(data)
    masks = read_masks(tmp_path / "jpg", tmp_path / "png", NAMES)
    x = keras.Input((8, 12, 3))
    brightest = Model(x, keras.layers.Identity()(x))  # the class is the channel
    transform = InputTransform((8, 12), Preprocessing(exif_orientation=False))
    monkeypatch.setattr("keras_vit.segmentation.evaluation.transform_of", lambda _: transform)
    assert evaluate_masks(brightest, masks).pixel_accuracy == 1


def test_arguments_out_of_range_are_errors(model):
    image = np.zeros((16, 24, 3), "float32")
    for options, message in (
        ({"mode": "tiles"}, r"`mode` must be one of"),
        ({"scales": (0.5, 1.0)}, r'(1.0,) with mode="whole"'),
        ({"mode": "slide", "stride": 9}, r"leaves pixels out"),
    ):
        with pytest.raises(ValueError, match=message.replace("(1", r"\(1").replace(",)", r",\)")):
            predict_masks(model, image, **options)
    other = read_mask_arrays(np.zeros((1, 4, 4, 3), "uint8"), np.zeros((1, 4, 4), int), NAMES[:2])
    with pytest.raises(ValueError, match=r"2 classes, the model 3"):
        evaluate_masks(model, other)
    pair = np.zeros((1, 16, 24, 3), "uint8"), np.zeros((1, 16, 20), "int32")
    maps = keras_vit.ViTTi16(weights=None, include_top=False, pooling=None, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match="A prediction of pixels needs a model with a head"):
        predict_masks(maps, image)
    wider = MaskSet("streets", NAMES, pair, lambda *row: row)
    with pytest.raises(ValueError, match=r"image 0 of streets has \(16, 20\).*image \(16, 24\)"):
        evaluate_masks(model, wider)
