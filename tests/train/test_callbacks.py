"""Early stopping and averaged weights, also in runs that are interrupted."""

from __future__ import annotations

import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.train import run_folder
from keras_vit.train.callbacks import EvaluateAverages, averaged_weights
from keras_vit.train.run_folder import SaveBest

ACCURACIES = (0.2, 0.5, 0.4, 0.5, 0.3, 0.9)


class KilledError(BaseException):
    """Stands for SIGKILL."""


class Accuracies(keras.callbacks.Callback):
    """Sets the validation accuracies, and kills the process at an epoch."""

    def __init__(self, kill_in=None):
        super().__init__()
        self.kill_in = kill_in

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.kill_in:
            raise KilledError

    def on_epoch_end(self, epoch, logs=None):
        logs["val_accuracy"] = ACCURACIES[epoch]


def fit(callbacks, optimizer="sgd", epochs=6, validation=None):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((2,))
    model = keras_vit.Model(inputs, keras.layers.Dense(2, name="head")(inputs))
    model.compile(optimizer, "mse", metrics=["accuracy"], run_eagerly=True, jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 2)), np.eye(2)[rng.integers(0, 2, 8)]
    options = {"callbacks": callbacks, "epochs": epochs, "validation_data": validation}
    return model, model.fit(x, y, batch_size=4, verbose=0, **options)


def stopping(folder, patience=2, kill_in=None):
    stop = keras_vit.train.EarlyStopping(patience)
    return [Accuracies(kill_in), stop, keras_vit.ResumeTraining(folder)]


@pytest.mark.slow
def test_training_stops_at_the_epoch_of_keras(tmp_path):
    model, history = fit(stopping(tmp_path / "whole"))
    keras_stop = keras.callbacks.EarlyStopping("val_accuracy", patience=2, mode="max")
    _, expected = fit([Accuracies(), keras_stop])
    assert history.epoch == expected.epoch == [0, 1, 2, 3]
    # Keras's own callback would forget the epochs before the kill, and train six.
    with pytest.raises(KilledError):
        fit(stopping(tmp_path / "killed", kill_in=3))
    resumed, history = fit(stopping(tmp_path / "killed"))
    assert history.epoch == [0, 1, 2, 3]
    again, history = fit(stopping(tmp_path / "killed"))  # complete: trains nothing
    assert history.epoch == [0, 1, 2, 3]
    for other in (resumed, again):
        for one, weight in zip(model.weights, other.weights, strict=True):
            np.testing.assert_array_equal(one, weight)
    with pytest.raises(ValueError, match=r"needs val_accuracy. Received: accuracy, loss"):
        fit([keras_vit.train.EarlyStopping(2)])


def test_the_best_epoch_is_one_of_the_present_image_size(tmp_path, monkeypatch):
    """After two epochs of smaller images, which were better; a loss that is no number is none."""
    saved = []
    monkeypatch.setattr(run_folder, "save_keras_file", lambda model, path: path.touch())
    monkeypatch.setattr(run_folder, "in_units", lambda model: saved.append(epoch) or model)
    best, stop = SaveBest(tmp_path / "best.keras"), keras_vit.train.EarlyStopping(3, "loss", "min")
    best.path.touch()  # of the smaller images
    best.first_epoch = 2
    model = types.SimpleNamespace(optimizer=None, stop_training=False)
    model.history = types.SimpleNamespace(history={"val_accuracy": [0.9, 1.0], "loss": []})
    for callback in (best, stop):
        callback.set_model(model)
    values = ((0.5, float("nan")), (0.6, 0.5), (0.6, 0.4), (0.55, 0.3))
    for epoch, (accuracy, loss) in enumerate(values, 2):
        best.on_epoch_end(epoch, {"val_accuracy": accuracy})
        stop.on_epoch_end(epoch, {"loss": loss})
        model.history.history["loss"].append(loss)
    assert saved == [2, 3] and not model.stop_training


def test_a_kill_after_the_last_epoch_trains_no_further(tmp_path):
    class KilledAtTheEnd(keras_vit.ResumeTraining):
        def on_train_end(self, logs=None):
            raise KilledError

    with pytest.raises(KilledError):
        fit([*stopping(tmp_path)[:2], KilledAtTheEnd(tmp_path)])
    _, history = fit(stopping(tmp_path))
    assert history.epoch == [0, 1, 2, 3]


@pytest.mark.slow
def test_averaged_weights_are_validated_and_saved(tmp_path):
    """And the weights that are trained stay as they are, to the last bit."""

    def average():
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)

    class Weights(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_accuracy"] = float(epoch)
            trained.append(self.model.get_weights())

    rng = np.random.default_rng(1)
    held_out = rng.normal(size=(8, 2)), np.eye(2)[rng.integers(0, 2, 8)]
    trained = []
    model, history = fit(
        [Weights(), EvaluateAverages(), SaveBest(tmp_path / "best.keras")],
        average(),
        validation=held_out,
    )
    ours, trained = trained, []
    _, plain = fit([Weights()], average(), validation=held_out)
    for one, other in zip(ours, trained, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    final = model.evaluate(*held_out, verbose=0)[0]  # after `fit`, the weights are the averages
    assert history.history["val_loss"][-1] == pytest.approx(final)
    assert plain.history["val_loss"][-1] != pytest.approx(final, rel=1e-3)
    best = keras.saving.load_model(tmp_path / "best.keras")
    np.testing.assert_array_equal(best.get_weights()[0], model.get_weights()[0])
    assert np.abs(ours[-1][0] - model.get_weights()[0]).max() > 1e-3
    model, _ = fit([], epochs=1)
    with averaged_weights(model):  # without averages, nothing changes
        assert model.optimizer.use_ema is False
