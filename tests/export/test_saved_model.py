"""The SavedModel: signatures, versions, bytes from outside."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export.saved_model import export_saved_model, load_saved_model
from keras_vit.export.verify import ExportMismatchError

LABELS = [f"class {letter}" for letter in "abcdefghij"]


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "tiny"
    return export_saved_model(model, path, labels=LABELS)


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(str(exported.path))


def encode(image, kind="png"):
    encoder = {"png": tf.io.encode_png, "jpeg": tf.io.encode_jpeg}[kind]
    return encoder(image.astype("uint8")).numpy()


def test_the_report_says_what_was_measured(exported):
    assert exported.path.name == "1"
    assert exported.max_difference < 1e-5
    assert exported.top1_agreement == 1.0
    assert exported.size == sum(f.stat().st_size for f in exported.path.rglob("*") if f.is_file())
    assert exported.latency_ms > 0


def test_pixels_give_the_models_logits(exported, model, pixels):
    outputs = load_saved_model(exported.path)(pixels)
    np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        outputs["probabilities"], tf.nn.softmax(model(pixels)), rtol=0, atol=1e-6
    )
    order = np.argsort(-outputs["logits"], axis=1)[:, :5]
    assert outputs["classes"].tolist() == np.array(LABELS, "S")[order].tolist()
    np.testing.assert_array_equal(
        outputs["scores"], np.take_along_axis(outputs["probabilities"], order, 1)
    )


def test_encoded_images_of_the_models_size_give_the_logits_of_their_pixels(loaded, model, pixels):
    image_bytes = tf.constant([encode(image) for image in pixels])
    for name in ("serving_default", "tolerant"):
        outputs = loaded.signatures[name](image_bytes=image_bytes)
        np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-5)


def test_one_bad_image_fails_the_batch_only_where_the_caller_wants_that(loaded, model, pixels):
    image_bytes = tf.constant([encode(pixels[0]), b"not an image", encode(pixels[1])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Unknown image file format"):
        loaded.signatures["serving_default"](image_bytes=image_bytes)
    outputs = loaded.signatures["tolerant"](image_bytes=image_bytes)
    assert outputs["valid"].numpy().tolist() == [True, False, True]
    np.testing.assert_allclose(outputs["logits"][::2], model(pixels[:2]), rtol=0, atol=1e-5)
    assert not outputs["probabilities"][1].numpy().any()
    assert not any(outputs["classes"][1].numpy())


def test_versions_are_numbered_and_never_overwritten(model, tmp_path):
    assert export_saved_model(model, tmp_path / "m").path.name == "1"
    assert export_saved_model(model, tmp_path / "m").path.name == "2"
    with pytest.raises(FileExistsError, match=r"There is something at .*2"):
        export_saved_model(model, tmp_path / "m", version=2)
    assert sorted(entry.name for entry in (tmp_path / "m").iterdir()) == ["1", "2"]


def test_labels_of_the_wrong_number(model, tmp_path):
    with pytest.raises(ValueError, match=r"each of the model's 10 classes.*Received: 3 labels"):
        export_saved_model(model, tmp_path, labels=["a", "b", "c"])


def test_a_file_that_differs_is_not_left_behind(model, tmp_path):
    with pytest.raises(ExportMismatchError, match="does not do what the model does"):
        export_saved_model(model, tmp_path / "m", tolerance=-1.0)
    assert list((tmp_path / "m").iterdir()) == []
