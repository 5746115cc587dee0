"""`fine_tune`, `pretrain` and `transfer` on a few tiny images."""

from __future__ import annotations

import dataclasses
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.image_set import read_arrays
from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.resize import resize_positions
from keras_vit.train.stages import Epochs, plan_run
from tests.fixtures import fill_random, tiny_config

RECIPE = keras_vit.train.Recipe(
    source="a test",
    optimizer="sgd",
    learning_rate=0.05,
    learning_rates=(1e-50, 0.05),  # the first is 0 in float32
    held_out=0.25,
    batch_size=8,
    steps=24,
    warmup_steps=4,
    clip_norm=1.0,
    image_size=16,
    augmentation=Augmentation(crop="none", flip=True),
)


def test_both_heads_of_a_distilled_model_are_reset():
    model = keras_vit.build_vit(tiny_config(distillation_token=True))
    fill_random(model)
    for classes in (10, 3):  # the same number as before, and another
        adapted = keras_vit.adapt_model(model, classes=classes, head_bias=-2.0)
        for name in ("head", "head_distillation"):
            kernel, bias = map(np.asarray, adapted.get_layer(name).weights)
            assert kernel.shape == (32, classes)
            assert not kernel.any() and (bias == -2).all()
        received, expected = (m.get_layer("distillation_token").token for m in (adapted, model))
        np.testing.assert_array_equal(received, expected)


def two_colours(count=32, seed=0):
    """Reddish and bluish images, 12 x 10 pixels."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.uniform(0, 60, (count, 12, 10, 3))
    x[y == 0, ..., 0] += 150
    x[y == 1, ..., 2] += 150
    return read_arrays(x.astype("uint8"), y, ("red", "blue"))


@pytest.fixture(scope="module")
def pretrained():
    model = keras_vit.build_vit(tiny_config(image_size=8, patch_size=4, depth=1, pre_logits=12))
    fill_random(model, 0.05)
    return model


@pytest.mark.parametrize(
    ("steps", "images", "batch", "expected"),
    [
        (20_000, 1_281_167, 512, Epochs(8, 2_500, 1)),  # reading all images takes 2,502.3 steps
        (500, 3_680, 512, Epochs(5, 100, 14)),
        (10_000, 50_000, 512, Epochs(100, 100, 2)),
        (24, 24, 8, Epochs(1, 24, 8)),
        (93_834, 1_281_167, 4096, Epochs(300, 313, 2)),
    ],
)
def test_steps_are_divided_into_epochs(steps, images, batch, expected):
    plan = plan_run(RECIPE.replace(steps=steps, batch_size=batch), images)
    assert plan == expected
    assert steps <= plan.epochs * plan.steps < steps + plan.epochs
    assert plan.steps * batch <= plan.repeats * images


def test_adapted_models_have_a_new_head_and_resized_positions(pretrained):
    before = [weight.numpy() for weight in pretrained.weights]
    model = keras_vit.adapt_model(pretrained, classes=3, image_size=16, dropout_rate=0.1)
    assert model.output_shape == (None, 3) and model.config.block.dropout_rate == 0.1
    assert model.config.pre_logits is None
    weights = {weight.path: weight.numpy() for weight in model.weights}
    assert not any(weights[path].any() for path in ("head/kernel", "head/bias"))
    old = {weight.path: weight.numpy() for weight in pretrained.weights}
    table = old["position_embedding/embedding"]
    expected = resize_positions(table[:, 1:], (2, 2), (4, 4))
    np.testing.assert_array_equal(weights["position_embedding/embedding"][:, 1:], expected)
    np.testing.assert_array_equal(weights["position_embedding/embedding"][:, 0], table[:, 0])
    for path in old.keys() & weights.keys() - {"position_embedding/embedding"}:
        if not path.startswith(("head", "pre_logits")) and "seed" not in path:
            np.testing.assert_array_equal(weights[path], old[path])
    for one, weight in zip(before, pretrained.weights, strict=True):
        np.testing.assert_array_equal(one, weight)
    hidden = keras_vit.adapt_model(pretrained, pre_logits=12, classifier_activation="softmax")
    assert (hidden.config.pre_logits, hidden.config.classifier_activation) == (12, "softmax")
    kernel = hidden.get_layer("pre_logits").kernel.numpy()
    assert np.abs(kernel - old["pre_logits/kernel"]).max() > 1e-3  # new, as the head is


def test_what_is_frozen_stays_so_but_for_the_head():
    model = keras_vit.build_vit(tiny_config(depth=2, pre_logits=12))
    model.get_layer("block_0").mlp.trainable = False
    for new in (
        keras_vit.adapt_model(model, classes=3),
        keras_vit.models.resize_model(model, 64),
    ):
        names = {v.path for v in new.weights} - {v.path for v in new.trainable_weights}
        assert names and all(name.startswith("block_0/mlp/") for name in names)
    model.trainable = False
    adapted = keras_vit.adapt_model(model, classes=3)
    assert {v.path for v in adapted.trainable_weights} == {"head/kernel", "head/bias"}
    again = keras_vit.Model.from_config(adapted.get_config())  # as in a file
    assert len(again.trainable_weights) == 2


def test_adapting_to_the_same_size_and_adapting_a_resnet():
    resnet = keras_vit.build_resnet(keras_vit.ResNetConfig(stages=(1,), image_size=None, classes=5))
    fill_random(resnet)
    model = keras_vit.adapt_model(resnet, classes=2)
    images = np.random.default_rng(0).uniform(0, 255, (1, 16, 16, 3)).astype("float32")
    assert not model.predict(images, verbose=0).any()
    features = [keras.Model(m.input, m.layers[-2].output)(images) for m in (resnet, model)]
    np.testing.assert_array_equal(*features)


@pytest.mark.slow
def test_a_resnet_is_fine_tuned_and_trained():
    config = keras_vit.ResNetConfig(stages=(1,), image_size=(16, 16), classes=2)
    resnet = keras_vit.build_resnet(config)
    recipe = keras_vit.train.hyper_rule(32, (12, 10)).replace(steps=2, batch_size=8, image_size=16)
    assert keras_vit.fine_tune(resnet, two_colours(), recipe, verbose=0).history.epoch == [0]
    assert keras_vit.pretrain(resnet, two_colours(), recipe, verbose=0).history.epoch == [0]
    with pytest.raises(
        ValueError, match=r"has no such rate. Received: dropout_rate=0.1. Set it to"
    ):
        keras_vit.fine_tune(resnet, two_colours(), recipe.replace(dropout_rate=0.1))


def test_models_that_cannot_be_adapted(pretrained):
    with pytest.raises(ValueError, match=r"Only models of this package can be adapted"):
        keras_vit.adapt_model(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"do not fit the new configuration: block_1.* not in the"):
        keras_vit.adapt_model(pretrained, depth=2)
    with pytest.raises(ValueError, match=r"The model has no head. Pass `classes`"):
        keras_vit.adapt_model(keras_vit.build_vit(tiny_config(classes=None)))


@pytest.mark.slow
def test_fine_tuning_learns_and_does_not_change_the_model(pretrained, tmp_path):
    before = [weight.numpy() for weight in pretrained.weights]
    fitted = keras_vit.fine_tune(
        pretrained, two_colours(), RECIPE, two_colours(16, 1), folder=tmp_path, verbose=0
    )
    assert fitted.model.input_shape == (None, 16, 16, 3)
    assert fitted.history.history["val_accuracy"][-1] == 1
    assert predict_set(fitted.model, two_colours(16, 2)).accuracy == 1
    assert int(fitted.model.optimizer.iterations) == 24
    for one, weight in zip(before, pretrained.weights, strict=True):
        np.testing.assert_array_equal(one, weight)
    again = keras_vit.fine_tune(pretrained, two_colours(), RECIPE, folder=tmp_path, verbose=0)
    for one, other in zip(fitted.model.weights, again.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)  # the run was complete: no step is repeated


@pytest.mark.slow
def test_fine_tuning_by_low_rank_updates_leaves_the_kernels(pretrained, tmp_path):
    recipe = RECIPE.replace(lora_rank=2, lora_targets=("all-linear",), learning_rate=0.2)
    fitted = keras_vit.fine_tune(
        pretrained, two_colours(), recipe, two_colours(16, 1), folder=tmp_path, verbose=0
    )
    assert fitted.history.history["val_accuracy"][-1] == 1
    expected = {w.path: w.numpy() for w in pretrained.weights}
    same = [w for w in fitted.model.weights if w.path.startswith("block") and "lora" not in w.path]
    assert len(same) == 12
    for weight in same:
        np.testing.assert_array_equal(weight.numpy(), expected[weight.path])
    again = keras_vit.fine_tune(pretrained, two_colours(), recipe, folder=tmp_path, verbose=0)
    for one, other in zip(fitted.model.weights, again.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)  # from the state of the run
    with pytest.raises(ValueError, match=r"lora_rank=2, progressive_sizes=\(8, 16\)"):
        recipe.replace(progressive_sizes=(8, 16), image_size=16)


def test_fine_tune_equals_twenty_lines_of_keras(pretrained):
    images = two_colours()
    fitted = keras_vit.fine_tune(pretrained, images, RECIPE, verbose=0)
    assert fitted.model.class_names == tuple(images.class_names)

    model = keras_vit.adapt_model(pretrained, classes=2, image_size=16)
    rate = keras.optimizers.schedules.CosineDecay(0.0, 20, warmup_target=0.05, warmup_steps=4)
    model.compile(
        keras_vit.train.SGD(rate, momentum=0.9, global_clipnorm=1.0),
        keras.losses.CategoricalCrossentropy(from_logits=True),
    )
    batches = keras_vit.data.train_batches(
        images, model, 8, RECIPE.augmentation, repeats=6, steps=24
    )
    model.fit(batches, shuffle=False, verbose=0)
    for one, other in zip(fitted.model.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_fine_tuning_keeps_the_rates_of_the_model_unless_the_recipe_has_some(monkeypatch):
    def rates(settings):  # a configuration keeps dropout with its block, a recipe has it itself
        block = getattr(settings, "block", settings)
        return block.dropout_rate, settings.stochastic_depth_rate

    monkeypatch.setattr("keras_vit.train.fit.train_as_built", lambda model, *_: model)
    options = {"image_size": 8, "patch_size": 4, "depth": 1}
    model = keras_vit.build_vit(
        tiny_config(**options, dropout_rate=0.1, stochastic_depth_rate=0.2, classes=2)
    )
    table_4 = keras_vit.train.find_recipe("finetune_pets").replace(image_size=8)
    for recipe in (RECIPE.replace(image_size=8), table_4):
        assert rates(keras_vit.fine_tune(model, two_colours(), recipe).config) == (0.1, 0.2)
    assert keras_vit.pretrain(model, two_colours(), table_4) is model
    stated = table_4.replace(dropout_rate=0.0)
    assert rates(keras_vit.fine_tune(model, two_colours(), stated).config) == (0.0, 0.2)
    assert rates(stated.with_rates_of(model.config)) == (0.0, 0.2)
    assert rates(stated.with_rates_of(keras_vit.ResNetConfig(stages=(1,)))) == (0.0, 0.0)


@pytest.mark.slow
def test_pretraining_uses_the_head_bias_and_loss_of_the_recipe():
    recipe = dataclasses.replace(
        RECIPE, loss="sigmoid", head_bias=-3.0, optimizer="adam", weight_decay=0.1, steps=2,
        warmup_steps=1, dropout_rate=0.1,
    )  # fmt: skip
    config = tiny_config(image_size=16, depth=1, classes=2, **recipe.model_options)
    model = keras_vit.build_vit(config)
    fitted = keras_vit.pretrain(model, two_colours(), recipe, verbose=0)
    assert fitted.model is model
    # The first step has a rate of 0, so both steps have the loss log(1 + e^-3) + log(1 + e^3).
    start = np.log1p(np.exp(-3)) + np.log1p(np.exp(3))
    assert fitted.history.history["loss"] == pytest.approx([start], rel=1e-3)
    with pytest.raises(ValueError, match=r"head_bias=0.0, not -3.0.*Build it with"):
        keras_vit.pretrain(keras_vit.build_vit(tiny_config(classes=2)), two_colours(), recipe)


@pytest.mark.slow
def test_transfer_selects_on_held_out_images_and_tests_once(pretrained, monkeypatch):
    counts = []

    def watch(model, images, batch_size, verbose):
        counts.append(images.num_images)
        return predict_set(model, images, batch_size, verbose=verbose)

    monkeypatch.setattr("keras_vit.train.fit.predict_set", watch)
    short = dataclasses.replace(RECIPE, steps=12)
    found = keras_vit.train.transfer(
        pretrained, two_colours(), two_colours(20, 3), short, verbose=0
    )
    assert counts == [8, 8, 20]  # 2 rates on a quarter held out, then the test images
    assert found.learning_rate == 0.05 and found.held_out_accuracy[0.05] == 1
    assert found.held_out_accuracy[1e-50] < 1
    assert found.test_accuracy == 1
    with pytest.raises(ValueError, match=r"needs `learning_rates` and `held_out`.*held_out=0"):
        keras_vit.train.transfer(
            pretrained, two_colours(), two_colours(), dataclasses.replace(RECIPE, held_out=0)
        )


@pytest.mark.slow  # tests/test_files.py: a write that fails keeps the file before
def test_a_full_disk_keeps_the_previous_checkpoint(pretrained, tmp_path, monkeypatch):
    """`ResumeTraining` writes atomically: training resumes from the previous checkpoint."""
    longer = dataclasses.replace(RECIPE, steps=240)
    whole = keras_vit.fine_tune(pretrained, two_colours(), longer, verbose=0)
    real, saved = os.fsync, []

    def full_at_the_second_save(*args):
        states = [path.read_bytes() for path in tmp_path.glob("*.state")]
        if states:
            saved.extend(states)
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr("os.fsync", full_at_the_second_save)
    with pytest.raises(OSError, match=r"No space left on device"):
        keras_vit.fine_tune(pretrained, two_colours(), longer, folder=tmp_path, verbose=0)
    assert saved == [path.read_bytes() for path in tmp_path.glob("*.state")]
    monkeypatch.undo()
    again = keras_vit.fine_tune(pretrained, two_colours(), longer, folder=tmp_path, verbose=0)
    for one, other in zip(whole.model.weights, again.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
