"""SavedModels of segmentation: from the bytes of an image to a class map of its own size."""

from __future__ import annotations

import dataclasses
import io

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.errors import ExportMismatchError
from keras_vit.models.pyramid import build_pyramid, feature_maps
from keras_vit.segmentation import export
from keras_vit.segmentation.evaluation import predict_masks
from keras_vit.segmentation.export import export_segmenter
from keras_vit.segmentation.model import build_segmenter
from tests.checks import quick
from tests.data.pictures import encoded, pixels
from tests.fixtures import fill_random, tiny_config, tiny_vit


@pytest.fixture(scope="module")
def model():
    backbone = tiny_vit(depth=1, image_size=(32, 48), classes=None)
    segmenter = build_segmenter(backbone, 3)
    segmenter.get_layer("segmentation_head").kernel.assign(
        np.random.default_rng(0).normal(size=(1, 1, 32, 3))
    )
    return segmenter


def test_class_maps_have_the_size_of_the_image_and_are_the_models(model, tmp_path):
    report = export_segmenter(model, tmp_path, labels=["sky", "road", "car"])
    assert report.path == tmp_path / "1" and report.top1_agreement > 0.999
    assert (report.path / "assets.extra/labels.txt").read_text() == "sky\nroad\ncar\n"
    serve = tf.saved_model.load(str(report.path)).signatures["serving_default"]
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    for data, size in (
        (encoded(pixels(40, 60)), (40, 60)),
        (encoded(pixels(90, 33), "png"), (90, 33)),
        (encoded(pixels(60, 40), exif=exif), (40, 60)),
    ):
        outputs = serve(image_bytes=tf.constant(data))
        found = outputs["class_map"].numpy()
        assert found.shape == size and found.dtype == np.uint8 and len(np.unique(found)) > 1
        assert np.mean(found == predict_masks(model, data)) > 0.999
        stored = np.asarray(PIL.Image.open(io.BytesIO(outputs["png"].numpy())))
        np.testing.assert_array_equal(stored, found)


@pytest.mark.parametrize("kind", quick(["linear", "mlp", "dpt", "maps", "pyramid"], "linear"))
@pytest.mark.parametrize(
    "export", quick([keras_vit.export_onnx, keras_vit.export_litert], keras_vit.export_litert)
)
def test_other_formats_give_the_logits_and_maps_of_the_model(kind, export, tmp_path):
    config = tiny_config(depth=4, image_size=(32, 64), classes=None, pooling=None)
    backbone = keras_vit.build_vit(config)
    fill_random(backbone)
    if kind == "maps":
        dense = feature_maps(backbone, "even", prefix_tokens=True)
    elif kind == "pyramid":
        dense = build_pyramid(backbone, channels=16)
    else:
        dense = build_segmenter(backbone, 3, kind, channels=16)
        head = dense.get_layer("segmentation_head").kernel
        head.assign(np.random.default_rng(0).normal(size=head.shape))
    report = export(dense, tmp_path / "file")  # compared with the model, to 1e-5 or 1e-4
    assert report.max_difference < 1e-5
    assert report.top1_agreement in (1.0, None)


def test_a_file_that_differs_is_not_left(model, tmp_path, monkeypatch):
    def other(image):
        return {"class_map": tf.zeros(tf.shape(image)[:2], tf.uint8)}

    monkeypatch.setattr(export._ServingModule, "_from_image", lambda self, image: other(image))
    with pytest.raises(ExportMismatchError, match=r"\(at least: 99\.9%\).*more than rounding"):
        export_segmenter(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_no_segmentation_model_is_an_error(model, tmp_path):
    config = dataclasses.replace(tiny_config(), depth=1)
    with pytest.raises(ValueError, match=r"shape \(B, H, W, K\).*output shape \(None, 10"):
        export_segmenter(keras_vit.build_vit(config), tmp_path)
    maps = feature_maps(keras_vit.build_vit(dataclasses.replace(config, classes=None)))
    (x,) = maps.output.values()
    mask = keras.layers.Conv2DTranspose(1, 8, 8, activation="sigmoid")(x)
    with pytest.raises(ValueError, match=r"2 to 256 classes.*output shape \(None, 32, 32, 1\)"):
        export_segmenter(keras_vit.Model(maps.input, mask), tmp_path)


@pytest.mark.slow
def test_segmenters_of_others_give_class_maps(tmp_path):
    """Under a name of their own, and of probabilities."""
    maps = feature_maps(keras_vit.build_vit(tiny_config(depth=1, classes=None)))
    fill_random(maps)
    (x,) = maps.output.values()
    parts = keras.layers.Conv2DTranspose(3, 8, 8, activation="softmax", name="parts")(x)
    other = keras_vit.Model(maps.input, parts)
    report = export_segmenter(other, tmp_path)
    image = pixels(40, 60)
    serve = tf.saved_model.load(str(report.path)).signatures["image"]
    found = serve(image=tf.constant(image))["class_map"]
    assert len(np.unique(found)) > 1
    assert np.mean(found == predict_masks(other, image)) > 0.999
    assert keras_vit.verify_export(report.path, other).max_difference < 1e-5


@pytest.mark.parametrize("end", ["argument", "layer", "operation", "enlarged", "logits"])
def test_files_name_what_a_segmenter_of_others_gives(end, tmp_path):
    inputs = keras.Input((16, 16, 3))
    inner = "sigmoid" if end in ("argument", "enlarged") else None
    x = keras.layers.Conv2D(3, 1, activation=inner)(inputs)
    x = keras.layers.Activation("softmax")(x) if end == "layer" else x
    x = keras.ops.sigmoid(x) if end == "operation" else x
    x = keras.layers.UpSampling2D(2)(x) if end == "enlarged" else x
    model = keras.Model(inputs, x)
    report = export_segmenter(
        model, tmp_path, preprocessing=keras_vit.Preprocessing(0, 255), verbose=False
    )
    images = np.random.default_rng(0).uniform(0, 255, (2, 16, 16, 3)).astype("float32")
    serve = tf.saved_model.load(str(report.path)).signatures["pixels"]
    found = serve(pixels=tf.constant(images))
    name = "logits" if end == "logits" else "probabilities"
    assert set(found) & {"logits", "probabilities"} == {name}
    np.testing.assert_allclose(found[name], model(images / 255), rtol=0, atol=1e-6)
