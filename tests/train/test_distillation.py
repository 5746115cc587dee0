"""Distillation: the losses against NumPy, and a teacher that does not change."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.fixtures import fill_random, images_for, tiny_config, tiny_vit


def logits(seed=0):
    return np.random.default_rng(seed).normal(0, 2, (6, 2, 5)).astype("float32")


def softmax(x):
    exp = np.exp(x - x.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def test_hard_loss_is_the_cross_entropy_with_the_teachers_class():
    y = logits()
    student, teacher = softmax(y[:, 0].astype("float64")), y[:, 1].argmax(-1)
    expected = -np.log(student[np.arange(6), teacher]).mean()
    loss = keras_vit.train.DistillationLoss("hard")(np.zeros(6), y)
    assert float(loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_loss_is_the_kl_divergence(temperature):
    y = logits().astype("float64") / temperature
    student, teacher = softmax(y[:, 0]), softmax(y[:, 1])
    divergence = (teacher * np.log(teacher / student)).sum(-1)
    loss = keras_vit.train.DistillationLoss("soft", temperature)(np.zeros(6), logits())
    assert float(loss) == pytest.approx(temperature**2 * divergence.mean(), rel=1e-5)


def test_the_teacher_gets_no_gradient():
    y = tf.constant(logits())
    for kind in ("hard", "soft"):
        with tf.GradientTape() as tape:
            tape.watch(y)
            loss = keras_vit.train.DistillationLoss(kind)(tf.zeros(6), y)
        gradient = tape.gradient(loss, y).numpy()
        assert np.abs(gradient[:, 1]).max() == 0 < np.abs(gradient[:, 0]).max()


def build():
    keras.utils.set_random_seed(0)
    student = keras_vit.build_vit(tiny_config(depth=1, distillation_token=True, classes=5))
    teacher = tiny_vit(seed=4, depth=1, classes=5, dropout_rate=0.5)
    return student, teacher


def compiled(student, teacher, kind):
    model = keras_vit.train.distillation_model(student, teacher)
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss={
            "head": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "distillation": keras_vit.train.DistillationLoss(kind),
        },
        loss_weights={"head": 0.5, "distillation": 0.5},
        metrics={"head": ["accuracy"]},
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_student_learns_from_the_teacher(kind):
    student, teacher = build()
    x, y = images_for(student, 16), np.arange(16) % 5
    before = [np.array(w) for w in teacher.weights]
    said = np.asarray(teacher(x)).argmax(-1)
    model = compiled(student, teacher, kind)
    np.testing.assert_allclose(model(x, training=True)["distillation"][:, 1], teacher(x), rtol=1e-5)
    data = tf.data.Dataset.from_tensor_slices((x, {"head": y, "distillation": y})).batch(8)
    history = model.fit(data, epochs=25, shuffle=False, verbose=0).history
    assert history["distillation_loss"][-1] < 0.2 * history["distillation_loss"][0]
    assert history["head_accuracy"][-1] > 0.9
    heads = model(x)
    assert np.mean(np.asarray(heads["distillation"][:, 0]).argmax(-1) == said) > 0.9
    assert all((a == np.array(b)).all() for a, b in zip(before, teacher.weights, strict=True))
    mean = (np.asarray(heads["head"]) + np.asarray(heads["distillation"][:, 0])) / 2
    np.testing.assert_allclose(student(x), mean, rtol=1e-5, atol=1e-5)


def test_distillation_models_can_be_saved(tmp_path):
    model = keras_vit.train.distillation_model(*build())
    fill_random(model, seed=2)
    model.save(tmp_path / "both.keras")
    loaded = keras.saving.load_model(tmp_path / "both.keras")
    x = images_for(model, 2)
    np.testing.assert_array_equal(loaded(x)["distillation"], model(x)["distillation"])


def test_students_and_teachers_that_do_not_fit():
    student, teacher = build()
    with pytest.raises(ValueError, match="two heads: make it with `distillation_token=True`"):
        keras_vit.train.distillation_model(teacher, teacher)
    other = keras_vit.build_vit(tiny_config(classes=7))
    with pytest.raises(ValueError, match=r"student's 5 classes. Received: .*\(None, 7\)"):
        keras_vit.train.distillation_model(student, other)
    large = keras_vit.build_vit(tiny_config(classes=5, image_size=64))
    with pytest.raises(ValueError, match="must take the student"):
        keras_vit.train.distillation_model(student, large)
    sure = keras_vit.build_vit(tiny_config(classes=5, classifier_activation="softmax"))
    inputs = keras.Input(teacher.input_shape[1:])
    for probabilities in (
        sure,
        keras.Model(inputs, sure(inputs)),
        keras.Model(inputs, keras.layers.Softmax()(teacher(inputs))),
    ):
        with pytest.raises(ValueError, match=r"must return logits.*softmax"):
            keras_vit.train.distillation_model(student, probabilities)
    headless = keras_vit.build_vit(tiny_config(classes=None))
    same = tiny_config(classes=headless.output_shape[-1], distillation_token=True)
    with pytest.raises(ValueError, match="Distillation needs a model with a head"):
        keras_vit.train.distillation_model(keras_vit.build_vit(same), headless)
    bare = keras_vit.build_vit(tiny_config(classes=5, include_preprocessing=False))
    with pytest.raises(ValueError, match=r"other pixels.*a teacher with include_preprocessing=Fal"):
        keras_vit.train.distillation_model(student, bare)
    with pytest.raises(ValueError, match="`kind` must be one of"):
        keras_vit.train.DistillationLoss("firm")
    with pytest.raises(ValueError, match="`temperature` must be positive"):
        keras_vit.train.DistillationLoss("soft", 0)
