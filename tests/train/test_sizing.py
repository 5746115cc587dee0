"""Recipes by the number of images, the learning-rate finder, and classes of unequal size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit.data.image_set import read_arrays
from tests.fixtures import tiny_config
from tests.train.test_fit import RECIPE


def test_a_small_data_set_gets_a_small_plan():
    plan = keras_vit.train.plan_training(600)
    recipe, options = plan.recipe, plan.model_options
    size = recipe.image_size
    model = keras_vit.create_model(
        plan.model, classes=10, input_shape=(size, size, 3), **options, **recipe.model_options
    )
    exaflops = keras_vit.evaluate.training_exaflops(model, recipe.steps * recipe.batch_size)
    assert exaflops < 60e-6  # minutes at 0.1 TFLOP/s
    assert recipe.batch_size * 4 < 600 and recipe.held_out == 0.2
    tuned = keras_vit.train.plan_training(600, pretrained=True)
    assert tuned.recipe.image_size is None and tuned.model_options == {}
    assert tuned.recipe.steps == 500 and tuned.recipe.warmup_steps == 50
    assert tuned.recipe.optimizer == "adam" and tuned.recipe.initial_head == "probe"


@pytest.mark.parametrize("pretrained", [False, True])
def test_plans_grow_with_the_images(pretrained):
    plans = [keras_vit.train.plan_training(n, pretrained) for n in (20, 600, 20_000, 1_000_000)]
    for field in ("steps", "batch_size", "image_size", "warmup_steps"):
        values = [getattr(plan.recipe, field) or 0 for plan in plans]
        assert values == sorted(values), field
    assert all(plan.recipe.count_warmup(20) < plan.recipe.steps for plan in plans)


def test_low_rank_updates_get_a_rate_that_moves_them():
    plan = keras_vit.train.plan_training(600, pretrained=True, lora_rank=8)
    found = plan.recipe.lora_rank, plan.recipe.optimizer, plan.recipe.learning_rate
    assert found == (8, "adam", 1e-3)
    assert keras_vit.train.plan_training(600, lora_rank=8).recipe.lora_rank == 0  # random weights


@pytest.mark.parametrize(("num_images", "least"), [(600, 0.25), (4_999, 0.25), (5_000, 0.05)])
def test_few_images_are_fine_tuned_on_larger_crops(num_images, least):
    recipe = keras_vit.train.plan_training(num_images, pretrained=True).recipe
    assert recipe.augmentation == keras_vit.data.Augmentation(area_range=(least, 1.0))
    other = keras_vit.train.plan_training(num_images, pretrained=True, task="multi_label").recipe
    assert other.augmentation == keras_vit.data.Augmentation(area_range=(0.5, 1.0))


@pytest.mark.parametrize("pretrained", [False, True])
def test_numbers_are_trained_on_whole_images(pretrained):
    for lora_rank in (0, 8):
        plan = keras_vit.train.plan_training(600, pretrained, "regression", lora_rank=lora_rank)
        assert plan.recipe.augmentation == keras_vit.data.Augmentation(crop="none")


@pytest.mark.parametrize("pretrained", [False, True])
def test_classes_of_unequal_size_get_weights(pretrained):
    for sizes, expected in (((50, 26), False), ((50, 25), True), ((50, 50, 0), False), ((), False)):
        plan = keras_vit.train.plan_training(75, pretrained, class_sizes=sizes)
        assert plan.recipe.class_weights is expected, sizes


def unequal():
    """Thirty images of class 0, two of class 1; the pixels are the class."""
    y = np.array([0] * 30 + [1] * 2)
    return read_arrays(np.zeros((32, 8, 8, 3), "uint8") + y[:, None, None, None].astype("uint8"), y)


def test_classes_of_unequal_size_count_alike():
    images, transform = unequal(), keras_vit.data.InputTransform((8, 8))
    weights = images.class_weights()
    np.testing.assert_allclose(weights, [32 / 60, 32 / 4])
    plain = keras_vit.data.Augmentation(crop="none")
    for augmentation in (plain, dataclasses.replace(plain, mixup=0.5, label_smoothing=0.1)):
        batches = keras_vit.data.train_batches(
            images, transform, 32, augmentation, class_weights=weights
        )
        (x, y, w), *_ = batches.as_numpy_iterator()
        share = x[:, 0, 0, 0]  # of class 1 in the pixels, and so in the mixture
        np.testing.assert_allclose(w, weights[0] * (1 - share) + weights[1] * share, rtol=1e-5)
        assert y.shape == (32, 2) and w.mean() == pytest.approx(1)
    balanced = images.balanced()
    batches = keras_vit.data.train_batches(balanced, transform, 32, plain, repeats=10)
    labels = np.concatenate([y.argmax(-1) for _, y in batches.as_numpy_iterator()])
    assert len(labels) == 320 and 0.4 < labels.mean() < 0.6
    epochs = [next(iter(batches))[1].numpy() for _ in range(2)]
    assert not np.array_equal(*epochs)  # each epoch draws others
    rest, _ = balanced.split(4)
    for drawn, size in ((rest, 28), (balanced.in_memory(), 32)):  # is drawn as before
        parts = keras_vit.data.train_batches(drawn, transform, size, plain, repeats=10)
        labels = np.concatenate([y.argmax(-1) for _, y in parts.as_numpy_iterator()])
        assert 0.25 < labels.mean() < 0.75
    held_out = keras_vit.data.eval_batches(balanced, transform, 32)
    assert next(iter(held_out))[1].numpy()[:, 1].sum() == 2  # evaluation sees all once
    with pytest.raises(ValueError, match="must be 2 numbers of 0 or more"):
        keras_vit.data.train_batches(images, transform, 4, class_weights=[1.0])
    sequential = dataclasses.replace(images, records=lambda *_: None)
    with pytest.raises(ValueError, match=r"images.in_memory\(\)"):
        sequential.balanced()


@pytest.mark.slow
def test_recipes_use_weights_and_sampling():
    model = keras_vit.build_vit(tiny_config(image_size=8, depth=1, classes=2))
    recipe = RECIPE.replace(image_size=8, steps=2, learning_rate=1e-9, batch_size=32)
    plain, weighted = (
        keras_vit.fine_tune(model, unequal(), recipe.replace(class_weights=on), verbose=0)
        for on in (False, True)
    )
    for fitted in (plain, weighted):  # weights have a mean of 1, and logits are zero
        assert fitted.history.history["loss"][0] == pytest.approx(np.log(2), rel=1e-3)
    biases = [fitted.model.get_layer("head").weights[1].numpy() for fitted in (plain, weighted)]
    assert biases[0][0] > 1e-10 and abs(biases[1][0]) < 1e-12  # only the first prefers a class
    with pytest.raises(ValueError, match="favour rare classes"):
        RECIPE.replace(class_weights=True, balanced_sampling=True)


@pytest.mark.parametrize(
    ("images", "advice"),
    [
        ("photos", r"the path 'photos'. Make one: `keras_vit.read_folder\('photos'\)`"),
        ((np.zeros((1, 8, 8, 3)), [0]), r"a tuple. Make one: `keras_vit.read_arrays\(x, y\)`"),
        (None.__class__, "batches of your own go to `model.fit`"),
    ],
)
def test_images_that_are_none(images, advice):
    model = keras_vit.build_vit(tiny_config(image_size=8, depth=1, classes=2))
    with pytest.raises(TypeError, match=f"`images` must be an `ImageSet`.*{advice}"):
        keras_vit.fine_tune(model, images, RECIPE)
    with pytest.raises(TypeError, match=f"`validation` must be an `ImageSet`.*{advice}"):
        keras_vit.pretrain(model, unequal(), RECIPE, images)
    with pytest.raises(TypeError, match=f"`test` must be an `ImageSet`.*{advice}"):
        keras_vit.train.transfer(model, unequal(), images, RECIPE)


def test_names_of_models_and_recipes_are_explained():
    with pytest.raises(TypeError, match=r"`keras_vit.create_model\('vit_b16'"):
        keras_vit.fine_tune("vit_b16", unequal(), RECIPE)
    model = keras_vit.build_vit(tiny_config(image_size=8, depth=1, classes=2))
    with pytest.raises(TypeError, match=r"find_recipe\('finetune_pets'\)"):
        keras_vit.fine_tune(model, unequal(), "finetune_pets")
    with pytest.raises(ValueError, match="Early stopping needs val_accuracy"):
        keras_vit.fine_tune(model, unequal(), RECIPE.replace(early_stopping=2))
