"""The loss of groups of queries, and its gradients, are those of transformers."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import detection
from keras_vit.models.group_prediction import (
    GROUP_DEFAULTS,
    group_loss,
    sum_of_group_losses,
)
from keras_vit.models.real_time import RealTimeDetector
from scripts.golden.network_formula import chosen_values, group_masks_of, images_of, points_of
from tests.models.test_set_prediction import filled
from tests.networks.cases import CASES as CASES_OF_NETWORKS
from tests.networks.cases import network_folder
from tests.official import GOLDEN
from tests.workers import run

GOLDEN_FILE = json.loads((GOLDEN / "group_loss.json").read_text())
CASES, COMMON = GOLDEN_FILE["cases"], GOLDEN_FILE["common"]
HEIGHT, WIDTH = GOLDEN_FILE["image_size"]
QUERIES, GROUPS = COMMON["num_queries"], COMMON["group_detr"]


@pytest.fixture
def fixed_points(monkeypatch):
    """The points of the script in place of random ones."""
    monkeypatch.setattr(tf.random, "uniform", lambda shape: tf.constant(points_of(shape)))


def sum_of(outputs, y, **fields):
    return sum_of_group_losses(outputs, y, {**GROUP_DEFAULTS, **fields}, QUERIES, GROUPS)


def inputs_of(case):
    """Predictions of all sets one after another, and targets."""
    outputs = {name: np.array(case[name], "float32") for name in ("logits", "pred_boxes")}
    shares = filled(case["boxes"], (4,)) / np.array([WIDTH, HEIGHT] * 2, "float32")
    y = {"boxes": shares, "labels": filled(case["labels"], ())}
    if case["has_masks"]:
        shape, most = outputs["logits"].shape[:-1], y["labels"].shape[1]
        outputs["pred_masks"], y["masks"] = group_masks_of(shape, most)
    joined = {name: tf.concat(list(x), axis=1) for name, x in outputs.items()}
    return joined, y


def loss_and_gradients(case, in_graph=False):
    """The loss of a case, and its gradients by outputs, set by set."""
    outputs, y = inputs_of(case)

    def compute(outputs):
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = sum_of(outputs, y, **case["config"])
        return loss, tape.gradient(loss, outputs)

    loss, gradients = (tf.function(compute) if in_graph else compute)(outputs)
    sets = len(case["logits"])
    return loss, {k: np.stack(np.split(x, sets, axis=1)) for k, x in gradients.items()}


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("fixed_points")
def test_loss_and_gradients_are_theirs(name, in_graph):
    case = CASES[name]
    loss, gradients = loss_and_gradients(case, in_graph)
    np.testing.assert_allclose(loss, case["loss"], rtol=1e-6)
    for key, gradient in gradients.items():
        found, theirs = chosen_values(gradient), case["gradients"][key]
        assert found["shape"] == theirs["shape"]
        values, most = np.array(theirs["values"]), np.abs(theirs["values"]).max()
        np.testing.assert_allclose(found["values"], values, rtol=0, atol=2e-6 * max(most, 1))


def test_predictions_for_evaluation_are_one_set_of_one_group():
    outputs, y = inputs_of(CASES["plain"])
    first = {name: x[:, :QUERIES] for name, x in outputs.items()}
    expected = group_loss(first, y, GROUP_DEFAULTS)
    np.testing.assert_allclose(sum_of(first, y), expected, rtol=1e-6)


def test_sure_classes_have_finite_losses():
    """transformers takes the logarithm of rounded probabilities: 0 times infinity."""
    outputs, y = inputs_of(CASES["plain"])
    outputs["logits"] *= 100
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        loss = sum_of(outputs, y)
    assert np.isfinite(loss)
    assert all(np.isfinite(x).all() for x in tape.gradient(loss, outputs).values())


def test_models_for_masks_need_masks():
    outputs, y = inputs_of(CASES["masks"])
    del y["masks"]
    with pytest.raises(ValueError, match=r"batches with \"masks\" of shape \(B, M, H, W\)\. Rec"):
        sum_of(outputs, y)


def trained_loss_and_gradients(name, folder):
    """The loss of a network in training, and its gradients by transformers' names of weights."""
    case, side = GOLDEN_FILE["trained"][name], CASES_OF_NETWORKS[name]["size"][0]
    folder = network_folder(name, folder)
    options = {"input_shape": (side, side, 3), "include_preprocessing": False}
    model = keras_vit.from_pretrained(folder, **options)
    pixels = np.array([side / WIDTH, side / HEIGHT] * 2)
    y = {"boxes": filled(case["boxes"], (4,)) * pixels, "labels": filled(case["labels"], ())}
    if "pred_masks" in model.output:
        y["masks"] = group_masks_of((1, 2, 1), y["labels"].shape[1], (14, 14))[1]
    x = tf.constant(images_of((side, side)))
    weights = {
        "patch_embeddings.projection.bias": "patch_encoder/projection/bias",
        "query_feat.weight": "proposals/queries",
        "reference_point_embed.weight": "proposals/changes",
        "class_embed.bias": "class_head/bias",
        "sampling_offsets.bias": "decoder_1_offsets/bias",
        "segmentation_bias": "masks/bias",
    }
    by_path = {variable.path: variable for variable in model.trainable_variables}
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    return loss, tape.gradient(
        loss, {key: by_path[weights[key]].value for key in case["gradients"]}
    )


@pytest.mark.parametrize("name", GOLDEN_FILE["trained"])
@pytest.mark.usefixtures("fixed_points")
def test_networks_in_training_have_their_losses_and_gradients(name, tmp_path):
    case = GOLDEN_FILE["trained"][name]
    loss, gradients = trained_loss_and_gradients(name, tmp_path)
    np.testing.assert_allclose(loss, case["loss"], rtol=2e-6)
    for key, expected in case["gradients"].items():
        found, theirs = chosen_values(np.asarray(gradients[key])), np.array(expected["values"])
        assert found["shape"] == expected["shape"] and np.abs(theirs).max() > 1e-4
        difference = np.abs(np.array(found["values"]) - theirs).max()
        assert difference <= 1e-5 * np.abs(theirs).max(), key


def squares():
    """Eight images of one square each, of three classes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 40, (8, 56, 56, 3)).astype("uint8")
    rows, labels = [], []
    for index, image in enumerate(images):
        left, top = rng.integers(0, 28, 2)
        image[top : top + 24, left : left + 24, index % 3] = 255
        rows.append([[left, top, left + 24, top + 24]])
        labels.append([index % 3])
    return detection.read_boxes(images, rows, labels, ["red", "green", "blue"])


def fine_tuned(folder, epochs=1, callbacks=(), optimizer=None, **options):
    """A network with new classes after some epochs, and its losses."""
    keras.utils.set_random_seed(0)
    model = keras_vit.from_pretrained(folder, classes=3, input_shape=(56, 56, 3))
    factors = keras_vit.train.layerwise_decay(model, 0.8)
    model.compile(optimizer or keras_vit.train.AdamW(2e-3, rate_factors=factors, **options))
    batches = detection.box_batches(squares(), model, 4, training=True, flip=False)
    fit = {"epochs": epochs, "callbacks": list(callbacks), "shuffle": False, "verbose": 0}
    return model, model.fit(batches, **fit).history["loss"]


def test_it_learns_boxes_of_new_classes_and_goes_on_from_its_file(tmp_path):
    folder, boxes = network_folder("rf-detr", tmp_path), squares()
    best = keras.callbacks.ModelCheckpoint(tmp_path / "m.keras", "loss", save_best_only=True)
    losses = fine_tuned(folder, 30, [best])[1]
    assert losses[-1] < 0.6 * losses[0] and np.argmin(losses) > 20
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again) is RealTimeDetector and again.num_classes == 3
    batches = detection.box_batches(boxes, again, 4, training=True, flip=False)
    assert again.fit(batches, shuffle=False, verbose=0).history["loss"][0] < 0.7 * losses[0]
    loss = again.evaluate(detection.box_batches(boxes, again, 8), verbose=0)
    assert np.isfinite(loss) and loss < losses[0]  # of the last layer alone
    (found,) = detection.predict_boxes(again, boxes.rows[0][:1], threshold=0.0)
    assert len(found.boxes) == 6 and (np.diff(found.scores) <= 0).all()


@pytest.mark.slow
def test_an_interrupted_training_resumes(tmp_path):
    folder = network_folder("rf-detr", tmp_path)

    def train(epochs, *callbacks):  # Adam makes steps of rounding errors: of biases of keys
        return fine_tuned(folder, epochs, callbacks, keras.optimizers.SGD(1e-4, 0.9))

    whole, losses = train(3)
    train(1, keras_vit.resume.ResumeTraining(tmp_path / "run"))
    resumed, last = train(3, keras_vit.resume.ResumeTraining(tmp_path / "run"))
    np.testing.assert_allclose(last, losses, rtol=1e-5)
    for ours, expected in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.slow
def test_half_precision_learns_with_accumulated_gradients(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    options = {"gradient_accumulation_steps": 2}
    losses = fine_tuned(network_folder("rf-detr", tmp_path), 30, **options)[1]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_masks_are_learned(tmp_path):
    keras.utils.set_random_seed(0)
    folder = network_folder("rf-detr segmentation", tmp_path)
    model, boxes = keras_vit.from_pretrained(folder, input_shape=(56, 56, 3)), squares()
    model.compile(keras.optimizers.Adam(2e-3))
    x = boxes.rows[0].astype("float32")
    y = {"boxes": boxes.boxes, "labels": boxes.labels}
    y["masks"] = np.stack([image[None, ..., label % 3] > 200 for image, (label,) in zip(
        boxes.rows[0], boxes.labels, strict=True)])  # fmt: skip
    losses = model.fit(x, y, batch_size=4, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.slow
def test_two_replicas_train_as_one_device(tmp_path):
    folder = network_folder("rf-detr", tmp_path)
    assert "passed" in run("tests.models.group_replicas", "check", folder)
