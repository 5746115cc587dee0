"""Recipes against the paper's tables and the formulas of the official code."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.augmentation import AUGREG
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.recipes import AUGREG_FINE_TUNING, AUGREG_PRETRAINING, FINE_TUNING, RECIPES

SGD = Recipe("a test", "sgd", 0.1, 8, steps=20, warmup_steps=5)


def rates(schedule, steps):
    return np.array([float(schedule(t)) for t in range(steps)])


def official(base, steps, warmup, kind, end=1e-5):
    """Learning rates of the official trainer, from step 0."""
    t = np.arange(steps)
    progress = np.clip((t - warmup) / (steps - warmup), 0, 1)
    falls = {
        "cosine": base * 0.5 * (1 + np.cos(np.pi * progress)),
        "linear": end + (base - end) * (1 - progress),
    }
    return falls[kind] * np.minimum(1, t / warmup)


class Weights(keras.layers.Layer):
    """Two variables, one of which is a kernel."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(3,), name="kernel")
        self.bias = self.add_weight(shape=(3,), name="bias")


START = {"kernel": np.array([1.0, -2.0, 3.0]), "bias": np.array([0.5, 0.25, -1.0])}
RNG = np.random.default_rng(0)
GRADIENTS = [{name: RNG.normal(size=3) for name in START} for _ in range(20)]


def run(optimizer, steps=20):
    """Weights after every step."""
    layer = Weights(name="layer")
    layer.build(None)
    variables = [layer.kernel, layer.bias]
    for variable, value in zip(variables, START.values(), strict=True):
        variable.assign(value)
    values = []
    for gradient in GRADIENTS[:steps]:
        arrays = [keras.ops.convert_to_tensor(gradient[n], "float32") for n in START]
        optimizer.apply(arrays, variables)
        values.append({n: v.numpy() for n, v in zip(START, variables, strict=True)})
    optimizer.finalize_variable_values(variables)
    values.append({n: v.numpy() for n, v in zip(START, variables, strict=True)})
    return values


def clipped(gradient, norm):
    length = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
    return {name: g * min(1, norm / length) for name, g in gradient.items()}


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_sgd_matches_the_official_one(schedule):
    recipe = dataclasses.replace(SGD, schedule=schedule, clip_norm=1.0, end_learning_rate=1e-5)
    rate = official(0.1, 20, 5, schedule)
    if schedule == "cosine":
        rate = rates(recipe.build_schedule(8), 20)
    value, velocity = dict(START), dict.fromkeys(START, 0.0)
    found = run(recipe.build_optimizer(8))
    for t, gradient in enumerate(GRADIENTS):
        for name, g in clipped(gradient, 1.0).items():
            velocity[name] = g + 0.9 * velocity[name]
            value[name] = value[name] - rate[t] * velocity[name]
            np.testing.assert_allclose(found[t][name], value[name], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[0]["bias"], START["bias"].astype("float32"))  # rate 0


def test_sgd_of_keras_differs():
    schedule = SGD.build_schedule(8)
    theirs = run(keras.optimizers.SGD(schedule, momentum=0.9))
    ours = run(keras_vit.train.SGD(schedule, momentum=0.9))
    assert np.abs(ours[-1]["bias"] - theirs[-1]["bias"]).max() > 0.01
    constant = run(keras.optimizers.SGD(0.1, momentum=0.9)), run(keras_vit.train.SGD(0.1))
    for one, other in zip(*constant, strict=True):  # as long as the rate stays
        np.testing.assert_allclose(one["bias"], other["bias"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernels_only", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_decay_is_decoupled_and_follows_the_learning_rate(optimizer, kernels_only):
    recipe = dataclasses.replace(
        SGD, optimizer=optimizer, weight_decay=0.3, decay_kernels_only=kernels_only
    )
    rate = rates(recipe.build_schedule(8), 20)
    found = run(recipe.build_optimizer(8))
    value = dict(START)
    first, second = dict.fromkeys(START, 0.0), dict.fromkeys(START, 0.0)
    for t, gradient in enumerate(GRADIENTS):
        for name, g in gradient.items():
            if optimizer == "adam":
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                mean, square = first[name] / (1 - 0.9 ** (t + 1)), second[name]
                update = mean / (np.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
            else:
                first[name] = g + 0.9 * first[name]
                update = first[name]
            decay = 0.3 if name == "kernel" or not kernels_only else 0.0
            value[name] = value[name] - rate[t] * (update + decay * value[name])
            np.testing.assert_allclose(found[t][name], value[name], rtol=1e-4, atol=1e-5)


def test_optimizers_have_complete_configs():
    for optimizer in (keras_vit.train.SGD(0.1, decay_kernels_only=True, weight_decay=0.1),
                      keras_vit.train.AdamW(0.1, decay_kernels_only=True)):  # fmt: skip
        again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        assert type(again) is type(optimizer) and again.decay_kernels_only
    with pytest.raises(ValueError, match=r"official SGD has no Nesterov"):
        keras_vit.train.SGD(0.1, nesterov=True)


def test_weights_are_averaged_at_the_end():
    found = run(dataclasses.replace(SGD, averaging=0.9).build_optimizer(8))
    average = found[0]["kernel"]
    for values in found[1:-1]:
        average = 0.9 * average + 0.1 * values["kernel"]
    np.testing.assert_allclose(found[-1]["kernel"], average, rtol=1e-5)


def test_the_sigmoid_loss_is_summed_over_classes():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 5, (4, 50)).astype("float32")
    labels = np.eye(50)[[1, 2, 3, 4]]
    for smoothing, on, off in ((0.0, 1.0, 0.0), (2e-4, 1 - 1e-4, 1e-4)):
        y = np.where(labels, on, off)
        x = logits.astype("float64")
        terms = y * np.log1p(np.exp(-x)) + (1 - y) * np.log1p(np.exp(x))
        found = keras_vit.train.SigmoidCrossentropy(smoothing)(labels, logits)
        np.testing.assert_allclose(found, terms.sum(-1).mean(), rtol=1e-5)
        keras_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing)
        np.testing.assert_allclose(found, 50 * keras_loss(labels, logits), rtol=1e-5)
    extreme = keras_vit.train.SigmoidCrossentropy()([[1.0, 0.0]], [[200.0, -200.0]])
    assert float(extreme) == 0
    saved = keras.losses.deserialize(
        keras.losses.serialize(keras_vit.train.SigmoidCrossentropy(2e-4))
    )
    assert saved.label_smoothing == 2e-4


def row(recipe, *fields):
    return tuple(getattr(recipe, field) for field in fields)


RATES = ("dropout_rate", "stochastic_depth_rate")
PRETRAINING = ("learning_rate", "epochs", "schedule", "weight_decay", "dropout_rate", "clip_norm")


@pytest.mark.parametrize(
    ("name", "numbers"),
    {
        "paper_jft_b": (8e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_l32": (6e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_l16": (4e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_l16_14": (4e-4, 14, "linear", 0.1, 0, None),
        "paper_jft_h14": (3e-4, 14, "linear", 0.1, 0, None),
        "paper_jft_r50": (1e-3, 7, "linear", 0.1, 0, None),
        "paper_jft_r101": (8e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r152": (6e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_b": (8e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_l32": (2e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_l16": (4e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_l16_14": (4e-4, 14, "linear", 0.1, 0, None),
        "paper_in21k_b": (1e-3, 90, "linear", 0.03, 0.1, None),
        "paper_in21k_l": (1e-3, 90, "linear", 0.03, 0.1, None),
        "paper_in21k_l_30": (1e-3, 30, "linear", 0.03, 0.1, None),
        "paper_in1k": (3e-3, 300, "cosine", 0.3, 0.1, 1.0),
    }.items(),
)
def test_table_3(name, numbers):
    recipe = keras_vit.train.find_recipe(name)
    assert row(recipe, *PRETRAINING) == numbers
    assert row(recipe, "batch_size", "warmup_steps", "image_size", "head_bias", "loss") == (
        4096, 10_000, 224, -10.0, "sigmoid",
    )  # fmt: skip
    assert recipe.stochastic_depth_rate == 0


@pytest.mark.parametrize(
    ("name", "numbers"),
    {
        "finetune_imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
        "finetune_cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
        "finetune_cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
        "finetune_pets": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
        "finetune_flowers": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
        "finetune_vtab": (2_500, (0.01,), 200),
    }.items(),
)
def test_table_4(name, numbers):
    recipe = FINE_TUNING[name]
    assert row(recipe, "steps", "learning_rates", "held_out") == numbers
    assert row(recipe, "optimizer", "batch_size", "schedule", "weight_decay", "clip_norm") == (
        "sgd", 512, "cosine", 0.0, 1.0,
    )  # fmt: skip
    assert row(recipe, "image_size", "loss", "head_bias") == (384, "softmax", 0.0)
    assert row(recipe, *RATES) == (None, None)  # those of the variant
    assert recipe.learning_rate in recipe.learning_rates


def test_the_other_recipes():
    assert len(AUGREG_PRETRAINING) == 28 * 3
    strong = keras_vit.train.find_recipe("augreg_in21k_300_strong2_wd0.03_do0.1")
    assert strong.augmentation == AUGREG["strong2"]
    assert strong.augmentation.rand_augment == (2, 20) and strong.augmentation.mixup == 0.8
    assert row(strong, "learning_rate", "weight_decay", "dropout_rate") == (1e-3, 0.03, 0.1)
    assert row(strong, "stochastic_depth_rate", "clip_norm", "epochs") == (0.1, 1.0, 300)
    plain = keras_vit.train.find_recipe("plain_vit_90")
    assert row(plain, "batch_size", "learning_rate", "weight_decay") == (1024, 1e-3, 0.1)
    assert plain.augmentation.rand_augment == (2, 10) and plain.augmentation.mixup == 0.2
    deit = keras_vit.train.find_recipe("deit")
    assert deit.count_warmup(1_281_167) == 6256 and deit.count_steps(1_281_167) == 375_342
    assert row(deit, "learning_rate", "weight_decay", "end_learning_rate") == (1e-3, 0.05, 1e-5)
    assert row(deit, *RATES) == (0.0, 0.1) and row(plain, *RATES) == (0.0, 0.0)
    for recipe in AUGREG_FINE_TUNING.values():
        assert row(recipe, *RATES) == (0.0, 0.0)
    averaged = keras_vit.train.find_recipe("finetune_imagenet_512")  # over 10,000 of 20,000 steps
    assert averaged.averaging == averaged.replace(steps=20_000).averaging == 0.9999
    assert averaged.replace(steps=200).averaging == pytest.approx(0.99)
    assert averaged.replace(epochs=3, averaging=0.9).averaging == 0.9
    with pytest.raises(ValueError, match=r"for its steps. Received: epochs=3. Pass `averaging`"):
        averaged.replace(epochs=3)
    assert all(recipe.source for recipe in RECIPES.values())
    assert set(keras_vit.train.list_recipes()) == set(RECIPES)


@pytest.mark.parametrize(
    ("images", "pixels", "expected"),
    [
        (1_000, (300, 400), (500, 100, 480, (0.4, 0.6, 0.8), 0.0)),
        (50_000, (32, 32), (10_000, 500, 128, (0.3, 0.6, 0.9), 0.1)),
        (1_281_167, (400, 500), (20_000, 500, 480, (0.3, 0.6, 0.9), 0.1)),
    ],
)
def test_bit_hyper_rule(images, pixels, expected):
    recipe = keras_vit.train.hyper_rule(images, pixels)
    found = row(recipe, "steps", "warmup_steps", "image_size", "drops")
    assert (*found, recipe.augmentation.mixup) == expected
    assert row(recipe, "learning_rate", "batch_size", "weight_decay") == (0.003, 512, 0.0)


def test_the_warm_up_keeps_its_share_of_the_run():
    pets = keras_vit.train.find_recipe("finetune_pets")  # 500 steps, 100 of warm-up
    assert row(pets.replace(steps=50), "steps", "warmup_steps") == (50, 10)
    assert row(pets.replace(steps=50, warmup_steps=20), "warmup_steps") == (20,)
    epochs = pets.replace(epochs=3)
    assert row(epochs, "steps", "epochs", "warmup_steps") == (None, 3, 0)
    assert (epochs.count_steps(40_960), epochs.count_warmup(40_960)) == (240, 48)
    assert epochs.replace(steps=500).warmup_steps == 100
    assert pets.replace(epochs=3, warmup_steps=50).count_warmup(40_960) == 50
    for none in ({"warmup_steps": 0}, {"warmup_epochs": 0}):
        assert pets.replace(epochs=3, **none).count_warmup(40_960) == 0
    assert pets.replace(warmup_epochs=0.5).count_warmup(40_960) == 40  # not the 100 steps
    long = SGD.replace(epochs=4, warmup_epochs=2)
    assert row(long.replace(steps=20), "warmup_steps", "warmup_epochs") == (10, 0)
    deit = keras_vit.train.find_recipe("deit")
    assert deit.replace(epochs=30).warmup_epochs == 0.5
    paper = keras_vit.train.find_recipe("paper_in1k")  # 300 epochs, 10,000 steps of warm-up
    assert deit.replace(steps=1000).count_warmup(100_000) == 16  # 5 of 300 epochs
    assert row(paper.replace(epochs=30), "epochs", "warmup_steps") == (30, 1000)
    assert row(paper.replace(steps=100), "steps", "epochs", "warmup_steps") == (100, None, 20)
    assert paper.count_warmup(1_281_167) == 10_000
    assert paper.count_steps(600) == 44 and paper.count_warmup(600) == 8  # not 10,000
    mixed = deit.replace(batch_size=64, mixup=0.5, erasing=0.0)
    assert (mixed.augmentation.mixup, mixed.augmentation.cutmix, mixed.batch_size) == (0.5, 1, 64)
    assert deit.augmentation.erasing == 0.25 and pets.replace() == pets
    with pytest.raises(ValueError, match=r"no field `mix_up`. Did you mean `mixup`"):
        deit.replace(mix_up=1.0)


def test_wrong_names_and_fields():
    with pytest.raises(ValueError, match=r"no recipe 'finetune_pet'. Similar names: finetune_pets"):
        keras_vit.train.find_recipe("finetune_pet")
    with pytest.raises(ValueError, match=r"needs either `steps` or `epochs`"):
        dataclasses.replace(SGD, epochs=3)
    with pytest.raises(ValueError, match=r"`learning_rate` must be above 0. Received: 0"):
        dataclasses.replace(SGD, learning_rate=0)
    with pytest.raises(ValueError, match=r"`loss` must be one of 'softmax', 'sigmoid'"):
        dataclasses.replace(SGD, loss="hinge")
