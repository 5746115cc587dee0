"""Training of several labels and of regression targets."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.batches import eval_batches
from keras_vit.evaluate.targets import predict_targets
from keras_vit.train.losses import RegressionLoss
from keras_vit.train.run_folder import SaveBest
from keras_vit.train.tasks import MONITORS, in_units, standardized
from tests.fixtures import fill_random, tiny_config

RECIPE = keras_vit.train.Recipe(
    source="test",
    optimizer="adam",
    learning_rate=0.01,
    batch_size=16,
    steps=60,
    clip_norm=1.0,
    augmentation=keras_vit.data.Augmentation(crop="none", flip=False),
)


def coloured(task, count=48):
    """Images with a level of red and of blue, and what follows from them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 60, (count, 8, 8, 3))
    level = rng.uniform(0, 1, (count, 2))
    x[..., ::2] += (150 * level).astype("int64")[:, None, None]
    y = level > 0.6
    if task == "regression":
        y = np.stack([1000 + 5000 * level[:, 0], 0.01 * level[:, 1]], axis=1)
    names = ["red price", "blue"]
    return keras_vit.read_arrays(x.astype("uint8"), y.astype("float64"), names, task=task)


def tiny(classes=2, **options):
    keras.utils.set_random_seed(0)
    return keras_vit.build_vit(
        tiny_config(image_size=8, patch_size=4, depth=1, classes=classes, **options)
    )


def test_regression_trains_and_predicts_in_units(tmp_path):
    images = coloured("regression")
    train, validation = images.split(16)
    recipe = RECIPE.replace(loss="huber", averaging=0.8, early_stopping=50)
    best = SaveBest(tmp_path / "best.keras", MONITORS["regression"])
    model = tiny()
    options = {"seed": 1, "verbose": 0, "callbacks": [best]}
    result = keras_vit.pretrain(
        model, train, recipe, validation, folder=tmp_path / "states", **options
    )
    history = result.history.history
    assert set(history) >= {"loss", "val_loss", "val_mae_red_price", "mae_blue"}
    red, blue = predict_targets(result.model, validation).score()
    assert red.mae == pytest.approx(history["val_mae_red_price"][-1], rel=1e-3)
    assert red.r2 > 0.7 and blue.r2 > 0.7 and red.mae > 10
    loaded = keras.saving.load_model(tmp_path / "best.keras")  # an epoch: the best is the last
    for one, other in zip(loaded.weights, result.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    batches = eval_batches(validation, loaded, 16)
    values = loaded.evaluate(batches, verbose=0, return_dict=True)
    assert values["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-3)
    assert values["mae_red_price"] == pytest.approx(red.mae, rel=1e-3)
    # The state of a complete run gives the same model again, from a fresh one.
    again = keras_vit.pretrain(
        tiny(), train, recipe, validation, folder=tmp_path / "states", **options
    )
    for one, other in zip(again.model.weights, result.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    # A trained model starts where it is: in standard deviations, and back.
    copy = standardized(result.model, recipe, train)
    copy.compile(
        "sgd", RegressionLoss(train.class_names, train.labels.mean(0), train.labels.std(0))
    )
    x = images_of(validation)
    np.testing.assert_allclose(in_units(copy)(x), result.model(x), rtol=1e-4)
    assert np.abs(copy(x)).max() < 5


def images_of(images):
    return np.stack([pixels for pixels, _ in images.read((0, 4), None, 0).as_numpy_iterator()])


@pytest.mark.slow
def test_several_labels_train_with_the_sigmoid_loss():
    images = coloured("multi_label")
    train, validation = images.split(16)
    result = keras_vit.fine_tune(
        tiny(5), train, RECIPE.replace(loss="sigmoid", mixup=0.2), validation, verbose=0
    )
    found = predict_targets(result.model, validation).metrics()
    history = result.history.history
    assert found["macro average precision"] > 0.9
    assert history["val_average_precision"][-1] == pytest.approx(
        found["macro average precision"], abs=0.02
    )


def test_what_does_not_fit_is_refused():
    numbers, labels = coloured("regression"), coloured("multi_label")
    with pytest.raises(ValueError, match=r"loss 'softmax' is not for task='regression'.*mse or"):
        keras_vit.fine_tune(tiny(), numbers, RECIPE)
    with pytest.raises(ValueError, match=r"'mse' is not for task='multi_label'.*loss='sigmoid'"):
        keras_vit.fine_tune(tiny(), labels, RECIPE.replace(loss="mse"))
    with pytest.raises(ValueError, match="needs a model that returns logits"):
        model = tiny(classifier_activation="sigmoid")
        keras_vit.pretrain(model, labels, RECIPE.replace(loss="sigmoid"))
    with pytest.raises(ValueError, match=r"loss 'sigmoid' of task='single_label' needs a model"):
        model = tiny(classifier_activation="softmax")
        classes = keras_vit.read_arrays(np.zeros((4, 8, 8, 3), "uint8"), np.arange(4) % 2)
        keras_vit.pretrain(model, classes, RECIPE.replace(loss="sigmoid"))
    with pytest.raises(ValueError, match="Early stopping needs val_average_precision"):
        recipe = RECIPE.replace(loss="sigmoid", early_stopping=1)
        keras_vit.pretrain(tiny(), labels, recipe)
    with pytest.raises(ValueError, match="Class weights and balanced sampling need one class"):
        keras_vit.pretrain(tiny(), labels, RECIPE.replace(loss="sigmoid", class_weights=True))
    recipe = RECIPE.replace(learning_rates=(0.1,), held_out=0.5)
    with pytest.raises(ValueError, match="`transfer`, which chooses by accuracy, needs one class"):
        keras_vit.train.transfer(tiny(), labels, labels, recipe)
    flat = keras_vit.read_arrays(
        np.zeros((4, 8, 8, 3), "uint8"), np.ones((4, 2)), task="regression"
    )
    with pytest.raises(ValueError, match="0, 1 has one value for all training images"):
        keras_vit.pretrain(tiny(), flat, RECIPE.replace(loss="mse"))
    with pytest.raises(ValueError, match="the arrays has task='regression', and"):
        keras_vit.pretrain(tiny(), labels, RECIPE.replace(loss="sigmoid"), numbers)
    with pytest.raises(ValueError, match="depends on the targets"):
        RECIPE.replace(loss="huber").build_loss()


def test_a_head_is_needed_for_regression():
    images = keras.Input((8, 8, 3))
    outputs = keras.layers.Dense(2, name="last")(keras.layers.Flatten()(images))
    model = keras_vit.Model(images, outputs)
    with pytest.raises(ValueError, match=r"needs a dense layer with a bias, named 'head'.*'last'"):
        keras_vit.pretrain(model, coloured("regression"), RECIPE.replace(loss="mse"))
    distilled = tiny(distillation_token=True)
    fill_random(distilled)
    images = coloured("regression")
    copy = standardized(distilled, RECIPE.replace(loss="mse"), images)
    x = images_of(images)
    expected = (distilled(x) - images.labels.mean(0)) / images.labels.std(0)
    np.testing.assert_allclose(copy(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_regression_by_low_rank_updates_ends_in_units_with_merged_kernels():
    images, model = coloured("regression"), tiny()
    fill_random(model)
    recipe = RECIPE.replace(loss="mse", steps=6, lora_rank=2)
    result = keras_vit.fine_tune(model, images, recipe, verbose=0)
    before = {weight.path: weight.numpy() for weight in model.weights}
    changed = {w.path for w in result.model.weights if (w.numpy() != before[w.path]).any()}
    assert changed == {"block_0/attention/qkv/kernel", "head/kernel", "head/bias"}
    kernel = result.model.get_layer("block_0").attention.qkv.kernel.numpy()
    update = kernel - before["block_0/attention/qkv/kernel"]
    assert np.linalg.matrix_rank(update, tol=1e-4 * np.linalg.norm(update)) == 2
    predicted = result.model.predict(images_of(images), verbose=0)
    assert 1000 < predicted[:, 0].mean() < 6000  # in units
    with pytest.raises(ValueError, match="`pretrain` trains the whole model"):
        keras_vit.pretrain(model, images, recipe)
