"""Progressive image size: stages with models of their own sizes, and one run."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.resize import resize_position_bias, resize_positions
from keras_vit.train.run_folder import WriteMetrics
from keras_vit.train.stages import Epochs, augmentation_of, plan_run, plan_stages, share_of_pixels
from tests.fixtures import tiny_config

RECIPE = keras_vit.train.Recipe(
    source="test",
    optimizer="adam",
    learning_rate=0.01,
    batch_size=8,
    steps=16,
    warmup_steps=4,
    weight_decay=0.1,
).replace(progressive_sizes=(8, 16))


def tiny(**options):
    keras.utils.set_random_seed(0)
    fields = {"image_size": 16, "patch_size": 4, "depth": 1, "classes": 2, "dropout_rate": 0.1}
    return keras_vit.build_vit(tiny_config(**{**fields, **options}))


def images():
    rng = np.random.default_rng(0)
    return keras_vit.read_arrays(rng.integers(0, 255, (32, 16, 16, 3)), np.arange(32) % 2)


class Watch(keras.callbacks.Callback):
    """Keeps weights, optimizer and size at the start and the end of each stage; may kill the run.

    Args:
        kill_after: Training steps after which the process is ended, as far as that can be done;
            `"end"` does so at the end of the first stage.
    """

    def __init__(self, kill_after=None):
        super().__init__()
        self.kill_after = kill_after
        self.steps = 0
        self.stages = []

    def state(self):
        weights = {variable.path: np.asarray(variable) for variable in self.model.weights}
        for variable in self.model.optimizer.variables:  # its name has a number of its own
            weights[f"optimizer/{variable.path.split('/', 1)[1]}"] = np.asarray(variable)
        return weights

    def on_train_begin(self, logs=None):
        self.stages.append([self.model.input_shape[1], self.state()])

    def on_epoch_end(self, epoch, logs=None):
        self.stages[-1][2:] = [self.state()]

    def on_train_end(self, logs=None):
        if self.kill_after == "end":  # Keras has just replaced the weights with their averages
            raise KeyboardInterrupt

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == self.kill_after:
            raise KeyboardInterrupt


def train(folder=None, kill_after=None, recipe=RECIPE, callbacks=(), **options):
    watch = Watch(kill_after)
    model = tiny(dropout_rate=0.0, **options)
    result = keras_vit.pretrain(
        model, images(), recipe, folder=folder, callbacks=[watch, *callbacks], verbose=0
    )
    assert result.model is model
    return watch, result


@pytest.fixture
def short_epochs(monkeypatch):
    """Epochs of four steps."""
    monkeypatch.setattr("keras_vit.train.stages._MIN_STEPS", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "averaging", "tables"),
    [
        ("learned", None, 1),
        ("learned", 0.9, 1),
        ("learned_2d", None, 2),
        ("relative_bias", None, 1),
    ],
)
def test_each_stage_begins_where_the_one_before_ended(kind, averaging, tables, short_epochs):
    recipe = RECIPE.replace(averaging=averaging)
    watch, result = train(recipe=recipe, position_embedding=kind)
    assert [stage[0] for stage in watch.stages] == [8, 16] and watch.steps == 16
    ended, begun = watch.stages[0][2], watch.stages[1][1]
    resized = [name for name in ended if ended[name].shape != begun[name].shape]
    assert len(resized) == tables * (4 if averaging else 3)  # the weight, two moments, the average
    for name, value in ended.items():
        if name not in resized:
            np.testing.assert_array_equal(value, begun[name], err_msg=name)
            continue
        if kind == "learned_2d":  # the line between two rows or columns
            np.testing.assert_allclose(begun[name][:, [0, -1]], value, rtol=1e-6)
            continue
        if kind == "relative_bias":
            patches = resize_position_bias(value, (2, 2), (4, 4))
            np.testing.assert_allclose(
                begun[name], np.maximum(patches, 0) if (value >= 0).all() else patches, rtol=1e-6
            )
            continue
        patches = resize_positions(value[:, 1:], (2, 2), (4, 4), "align_corners")
        np.testing.assert_allclose(begun[name][:, 1:], patches, rtol=1e-6)
        np.testing.assert_array_equal(begun[name][:, :1], value[:, :1])
    assert begun["optimizer/iteration"] == 8
    assert result.history.epoch == [0, 1, 2, 3] and len(result.history.history["loss"]) == 4


@pytest.mark.slow
def test_what_is_frozen_is_so_in_every_stage(short_epochs):
    model = tiny(dropout_rate=0.0)
    model.get_layer("block_0").trainable = False
    model.get_layer("patch_encoder").projection.trainable = False
    before = [np.array(variable) for variable in model.get_layer("block_0").weights]
    watch = Watch()
    keras_vit.pretrain(model, images(), RECIPE, callbacks=[watch], verbose=0)
    begun, ended = watch.stages[0][1:]
    same = {name for name, value in ended.items() if np.array_equal(value, begun[name])}
    names = {name for name in begun if not name.startswith("optimizer") and "seed" not in name}
    frozen = ("block_0/", "patch_encoder/")
    assert {name for name in names if name.startswith(frozen)} == names & same
    for variable, value in zip(model.get_layer("block_0").weights, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.slow
@pytest.mark.parametrize(("kill_after", "averaging"), [(5, 0.9), (13, None), ("end", 0.9)])
def test_a_run_that_was_killed_ends_with_the_same_bits(
    kill_after, averaging, short_epochs, tmp_path
):
    """In the second epoch of the first stage, of the last, and at the end of the first."""
    run = functools.partial(train, recipe=RECIPE.replace(averaging=averaging))
    _, expected = run(tmp_path / "whole", callbacks=[WriteMetrics(tmp_path / "whole")])
    (tmp_path / "cut").mkdir()
    metrics = [WriteMetrics(tmp_path / "cut")]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", kill_after, callbacks=metrics)
    again, result = run(tmp_path / "cut", callbacks=metrics)
    assert again.steps < 16
    for one, other in zip(result.model.weights, expected.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert result.history.epoch == expected.history.epoch
    assert result.history.history == expected.history.history
    lines = (tmp_path / "cut/metrics.csv").read_text().splitlines()
    names = [line.split(",")[0] for line in lines]
    assert names == ["epoch", "0", "1", "2", "3"]
    done, same = run(tmp_path / "cut", callbacks=metrics)  # complete
    assert done.steps == 0
    for one, other in zip(same.model.weights, expected.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("epochs", "images", "batch", "size", "expected"),
    [
        (3, 10, 32, 10, Epochs(3, 1, 1)),  # fewer images than a batch
        (3, 10, 8, 8, Epochs(3, 2, 2)),
        (3, 1504, 10, 10, Epochs(3, 151, 2)),  # 150.4 steps an epoch
        (1, 10, 32, 10, Epochs(1, 1, 1)),
        (2.5, 100, 10, 10, Epochs(3, 9, 1)),
        (200, 40, 20, 20, Epochs(200, 2, 1)),  # and not four of 100 steps
    ],
)
def test_as_many_epochs_as_asked_for_are_run(epochs, images, batch, size, expected):
    one = RECIPE.replace(progressive_sizes=(), batch_size=batch)
    recipe = one.replace(epochs=epochs).for_images(images)
    assert (recipe.batch_size, plan_run(recipe, images)) == (size, expected)
    assert ("no more images" in recipe.source) == (size < batch)
    assert one.for_images(images) == one  # of steps, which repeats the images
    assert plan_run(RECIPE.replace(epochs=3), 32).epochs == 3  # also of two image sizes
    assert RECIPE.replace(epochs=3, batch_size=32).for_images(10, replicas=4).batch_size == 8


def test_epochs_are_divided_over_the_sizes():
    recipe = RECIPE.replace(progressive_sizes=(8, 12, 16), steps=700)
    assert recipe.image_size == 16 and recipe.warmup_steps == 175
    plan = plan_run(recipe, 32)
    assert plan == Epochs(9, 78, 20)  # seven epochs of 100 steps become nine
    stages = plan_stages(recipe, plan.epochs)
    assert [(s.image_size, s.first, s.end) for s in stages] == [(8, 0, 3), (12, 3, 6), (16, 6, 9)]
    recipe = recipe.replace(crop="resize", resize_size=(20, 24))
    assert augmentation_of(recipe, stages[0]).resize_size == (10, 12)
    assert augmentation_of(recipe, stages[2]) == recipe.augmentation
    assert share_of_pixels((8, 16)) == 0.625 and share_of_pixels(()) == 1


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"two rising sizes or more.*16, 8"):
        RECIPE.replace(progressive_sizes=(16, 8))
    with pytest.raises(ValueError, match=r"the last of them `image_size`.*image_size=32"):
        RECIPE.replace(image_size=32)
    with pytest.raises(ValueError, match="must be a whole number of patches"):
        train(recipe=RECIPE.replace(progressive_sizes=(10, 16)))
    with pytest.raises(ValueError, match="relative positions keep their image size"):
        train(position_embedding="relative")
