"""keras-hub's RetinaNet on our pyramid: plain `fit`, saving, and COCO's mAP."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.detection.boxes import box_batches, read_boxes
from keras_vit.detection.evaluation import evaluate_boxes
from keras_vit.detection.model import build_detector
from keras_vit.models.pyramid import build_pyramid
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config


@pytest.fixture
def keras_hub():
    return pytest.importorskip("keras_hub", reason="keras-hub is not installed")


def backbone(image_size=(64, 64)):
    return build_vit(tiny_config(patch_size=16, image_size=image_size, classes=None, pooling=None))


def test_arguments_are_checked_before_keras_hub_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub.layers", None)
    with pytest.raises(ImportError, match=r'pip install "keras-vision-transformer\[detection\]"'):
        build_detector(backbone(), 2)
    with pytest.raises(ValueError, match="`anchor_size` must be above 0"):
        build_detector(backbone(), 2, anchor_size=0)


def test_sizes_and_pyramids_that_do_not_fit_are_errors(keras_hub):
    with pytest.raises(ValueError, match=r"48 x 64. Use .*resize_model\(model, \(64, 64\)\)"):
        build_detector(backbone((48, 64)), 2)
    with pytest.raises(ValueError, match="a pyramid without P3"):
        build_detector(build_pyramid(backbone(), 8, (4, 5)), 2)


def test_heads_start_as_in_the_paper(keras_hub):
    keras.utils.set_random_seed(0)
    detector = build_detector(backbone(), 2, num_conv_layers=1, anchor_size=2)
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype("float32")
    found = detector(images)
    confidence = keras.ops.convert_to_numpy(keras.ops.sigmoid(found["cls_logits"]))
    assert 0.002 < confidence.min() < 0.01 < confidence.max() < 0.05  # keras-hub's own: 0 and 1
    assert np.std(found["bbox_regression"]) < 0.3  # keras-hub's own: 5.6
    for head in (detector.box_head, detector.classification_head):
        for layer in (*head.conv_layers, head.prediction_layer):
            assert np.std(layer.kernel.numpy()) == pytest.approx(0.01, rel=0.05)
    anchors = np.asarray(detector.label_encoder.anchor_generator(images)["P3"])
    sides = np.sqrt((anchors[:, 2] - anchors[:, 0]) * (anchors[:, 3] - anchors[:, 1]))
    assert sides.min() == pytest.approx(16, rel=0.01)  # two strides of 8 pixels


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_boxes_are_not_rounded_to_the_precision_of_the_model(keras_hub, policy):
    box = np.array([[[301, 303, 355, 361.3]]], "float32")
    before, found = keras.config.dtype_policy(), []
    for name in (policy, "float32"):
        keras.config.set_dtype_policy(name)
        try:
            detector = build_detector(backbone((384, 384)), 2, 16, num_conv_layers=1)
        finally:
            keras.config.set_dtype_policy(before)
        encoder = keras.layers.deserialize(keras.layers.serialize(detector.label_encoder))
        for each in (detector.label_encoder, encoder):
            targets = each(np.zeros((1, 384, 384, 3), "float32"), box, np.ones((1, 1), "float32"))
            found.append([np.asarray(x) for x in targets])
        decoded = detector.prediction_decoder(box, np.array([[[9.0, 0.0]]], "float32"))
        np.testing.assert_array_equal(np.asarray(decoded["boxes"])[0, :1], box[0])
    assert (found[0][1] == 1).any()  # some anchors have the box
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


# keras-hub compiles every detector that it makes, with an optimizer that has no variables
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
@pytest.mark.slow
def test_a_detector_learns_boxes_and_survives_saving(keras_hub, tmp_path):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 40, (8, 64, 64, 3)).astype("uint8")
    boxes, labels = [], []
    for index, image in enumerate(images):
        left, top = rng.integers(0, 28, 2)
        image[top : top + 36, left : left + 36, index % 2] = 255
        boxes.append([[left, top, left + 36, top + 36]])
        labels.append([index % 2])
    found = read_boxes(images, boxes, labels, ["red", "green"])
    model = build_detector(backbone(), 2, 16, num_conv_layers=1)
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
    batches = box_batches(found, model, 8, training=True, flip=False)
    # the prior of the focal loss is in the classes, not in the boxes as keras-hub has it
    biases = [np.asarray(head.prediction_layer.bias)[0]
              for head in (model.box_head, model.classification_head)]  # fmt: skip
    np.testing.assert_allclose(biases, [0, -np.log(99)], rtol=1e-6)
    assert evaluate_boxes(model, found).ap50 < 0.3
    model.fit(batches, epochs=60, shuffle=False, verbose=0)
    result = evaluate_boxes(model, found, batch_size=3)  # the last batch has two
    assert result.ap50 > 0.9
    model.make_predict_function(force=True)  # keras-hub decodes batches of one size
    outputs = model.predict(tf.data.Dataset.from_tensors(images.astype("float32")), verbose=0)
    assert (outputs["confidence"][:, 0] > 0.5).all()  # the most confident first
    np.testing.assert_array_equal(outputs["labels"][:, 0], np.array(labels)[:, 0])
    edges = np.abs(outputs["boxes"][:, 0] - np.array(boxes)[:, 0])
    assert edges.max() < 8  # pixels, a cell of P3; boxes have 36
    model.save(tmp_path / "detector.keras")
    loaded = keras.saving.load_model(tmp_path / "detector.keras", compile=False)
    assert evaluate_boxes(loaded, found).mean_ap == result.mean_ap
