"""A run that is broken off and taken up ends as one that was not, bit for bit."""

from __future__ import annotations

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.resume.runs import (
    BATCH,
    BATCHES,
    EPOCHS,
    KillAfter,
    KilledError,
    assert_same,
    build,
    deliver,
    images,
    outcome,
    shuffled,
)


def kill():
    raise KilledError


def slices():
    return tf.data.Dataset.from_tensor_slices(images())


# Data, arguments of `fit`, arguments of `compile`: called after the seed is set, as in a script.
RUNS = {
    "shuffled": lambda: (shuffled(), {"validation_data": slices().batch(7)}, {}),
    "in order": lambda: (slices().batch(BATCH), {}, {}),
    "arrays": lambda: (images(), {"batch_size": BATCH, "shuffle": True}, {}),
    "repeated": lambda: (shuffled().repeat(), {"steps_per_epoch": 4}, {}),
    "steps": lambda: (shuffled(), {"steps_per_epoch": 3}, {}),
    "partial": lambda: (slices().shuffle(8, seed=5).batch(BATCH + 2), {}, {}),
    "two a call": lambda: (shuffled(), {}, {"steps_per_execution": 2}),
    "XLA": lambda: (shuffled(), {}, {"jit_compile": True}),
    "accumulated": lambda: (shuffled(), {}, {"optimizer": accumulating()}),
    "float16": lambda: (shuffled(), {}, {"optimizer": loss_scaled()}),
    "masked": lambda: (with_masks(), {}, {}),
    "unknown length": lambda: (slices().shuffle(8, seed=5).filter(is_kept).batch(BATCH), {}, {}),
}


# Each starts a run three times; those left to `scripts/test --slow` differ least from another.
SLOW = {
    "arrays",
    "partial",
    "masked",
    "unknown length",
    "repeated",
    "in order",
    "steps",
    "two a call",
    "accumulated",
    "float16",
    "XLA",
}


def slow(name):
    return [pytest.mark.slow] if name in SLOW else []


def is_kept(image, label):
    return label > 0


def with_masks():
    """Images whose masked patches are black: what the masks were shows in the weights."""
    masked = keras_vit.data.mask_patches(slices().batch(BATCH), patch_size=8, seed=2)
    return tf.data.Dataset.zip(masked, slices().batch(BATCH)).map(hide)


def hide(masked, labelled):
    is_shown = tf.cast(masked[0]["sources"] >= 0, "float32")  # (B, 4)
    squares = tf.reshape(is_shown, (-1, 2, 1, 2, 1, 1))
    pixels = tf.reshape(masked[0]["images"], (-1, 2, 8, 2, 8, 3)) * squares
    return tf.reshape(pixels, (-1, 16, 16, 3)), labelled[1]


def accumulating():
    return keras.optimizers.AdamW(1e-2, gradient_accumulation_steps=3)


def loss_scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), dynamic_growth_steps=4)


def fit(name="shuffled", folder=None, kill_after=None, model=None, every_n_steps=3, **changes):
    """A run as a script would do it, from the seed on: its outcome."""
    keras.utils.set_random_seed(1)
    data, arguments, compile_arguments = RUNS[name]()
    model = model or build(small=True, **compile_arguments)
    callbacks = [KillAfter(kill_after, kill)] if kill_after else []
    callbacks += changes.pop("callbacks", [])
    if folder is not None:
        callbacks.append(keras_vit.ResumeTraining(folder, every_n_steps=every_n_steps))
    x, y = changes.pop("data", data if isinstance(data, tuple) else (data, None))
    arguments = {"shuffle": False, "epochs": EPOCHS, "verbose": 0, **arguments, **changes}
    return outcome(model, model.fit(x, y, callbacks=callbacks, **arguments))


@pytest.fixture(scope="module")
def whole():
    """The outcome of the first run, never broken off."""
    return fit()


@pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
@pytest.mark.parametrize("name", [pytest.param(x, marks=slow(x)) for x in RUNS])
def test_resumes_bit_for_bit(name, tmp_path):
    whole = fit(name)
    kills = 1 if name in ("arrays", "repeated", "masked", "partial") else 2
    for step in np.sort(np.random.default_rng(len(name)).choice(np.arange(2, whole[3]), kills)):
        with pytest.raises(KilledError):
            fit(name, tmp_path, step)
    assert_same(fit(name, tmp_path), whole)


@pytest.mark.slow
def test_resumes_from_states_of_epochs(tmp_path, whole):
    with pytest.raises(KilledError):
        fit(folder=tmp_path, kill_after=BATCHES + 2, every_n_steps=None)
    assert [file.name for file in tmp_path.glob("*.state")] == [
        "epoch-000001-batch-000000000.worker-0.state"
    ]
    assert_same(fit(folder=tmp_path, every_n_steps=None), whole)


def tear(file):
    file.write_bytes(file.read_bytes()[:-1000])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [pytest.param(tear, marks=pytest.mark.slow), flip])
def test_damaged_state_is_left_out_for_the_one_before(damage, tmp_path, whole):
    with pytest.raises(KilledError):
        fit(folder=tmp_path, kill_after=8)
    files = sorted(tmp_path.glob("*.state"))
    assert len(files) == 2
    damage(files[-1])
    with pytest.warns(UserWarning, match=f"{files[-1].name} is damaged"):
        assert_same(fit(folder=tmp_path), whole)


def test_nothing_but_damage_is_an_error(tmp_path):
    with pytest.raises(KilledError):
        fit(folder=tmp_path, kill_after=4)
    for file in tmp_path.glob("*.state"):
        tear(file)
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(keras_vit.DamagedStateError, match=r"All states in .* are damaged"),
    ):
        fit(folder=tmp_path)


@pytest.mark.parametrize(
    ("build_other", "message"),
    [
        (lambda: build(small=True, optimizer="sgd"), "AdamW/.* is not in the model"),
        (
            lambda: build(small=True, units=9),
            r"model hidden/kernel was \[3, 8\] float32, is \[3, 9\]",
        ),
        (lambda: build(small=True, steps_per_execution=5), "steps_per_execution was 1, is 5"),
        (lambda: build(small=True, metrics=[]), "metrics .* is not in the model"),
    ],
)
def test_state_of_another_run_is_refused_whole(build_other, message, tmp_path):
    with pytest.raises(KilledError):
        fit(folder=tmp_path, kill_after=4)
    other = build_other()
    before = [weight.numpy() for weight in other.weights]
    with pytest.raises(keras_vit.StateMismatchError, match=message):
        fit(folder=tmp_path, model=other)
    np.testing.assert_array_equal(before[0], other.weights[0].numpy())


def test_other_data_is_refused(tmp_path):
    with pytest.raises(KilledError):
        fit("in order", tmp_path, 4)
    with pytest.raises(keras_vit.StateMismatchError, match="batches in the data was 5, is 4"):
        fit("in order", tmp_path, data=(slices().batch(BATCH + 1), None))


def test_complete_training_is_not_repeated(tmp_path, whole, capsys):
    fit(folder=tmp_path)
    assert_same(fit(folder=tmp_path), whole)
    assert "Training is complete: 3 epochs" in capsys.readouterr().err
    longer = fit(folder=tmp_path, epochs=EPOCHS + 1)
    assert longer[1] == [0, 1, 2, 3]
    assert longer[3] == (EPOCHS + 1) * BATCHES


def test_a_run_that_stopped_early_is_complete(tmp_path):
    stop = keras.callbacks.EarlyStopping("loss", min_delta=10, restore_best_weights=True)
    first = fit(folder=tmp_path, callbacks=[stop])
    assert first[1] == [0, 1]
    assert_same(fit(folder=tmp_path), first)


def test_a_later_fit_begins_where_it_should(tmp_path):
    with pytest.raises(KilledError):
        fit(folder=tmp_path, kill_after=BATCHES + 1)
    model = build(small=True)
    fit(folder=tmp_path, model=model)
    assert model.fit(shuffled(), shuffle=False, verbose=0).epoch == [0]
    model.skip_batches(BATCHES)  # as a run that continues does, and is broken off while it skips
    with pytest.raises(KilledError):
        stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: kill())
        model.fit(shuffled(), shuffle=False, verbose=0, callbacks=[stop])
    before = int(model.optimizer.iterations.numpy())
    model.fit(shuffled(), shuffle=False, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == before + BATCHES


def test_nan_in_the_loss_keeps_the_last_good_state(tmp_path):
    x, y = images()
    x[4 * BATCH] = np.nan  # in the fifth batch
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    with pytest.raises(
        FloatingPointError, match=r"loss is nan after step 5 \(epoch 1, batch 5"
    ) as e:
        fit("in order", tmp_path, data=(data, None))
    (file,) = tmp_path.glob("*.state")
    assert file.name == "epoch-000000-batch-000000003.worker-0.state"
    assert str(file) in str(e.value)
    assert fit("in order", tmp_path)[3] == EPOCHS * BATCHES  # with data that are mended


def test_nan_in_a_weight_is_not_saved(tmp_path):
    def spoil(batch, logs):
        if batch == 4:
            weight = spoiler.model.weights[0]
            weight.assign(np.full(weight.shape, np.nan))

    spoiler = keras.callbacks.LambdaCallback(on_train_batch_end=spoil)
    with pytest.raises(FloatingPointError, match=r"hidden/kernel is no longer finite"):
        fit(folder=tmp_path, callbacks=[spoiler])
    assert [file.name[:28] for file in tmp_path.glob("*.state")] == ["epoch-000000-batch-000000003"]


@pytest.mark.slow
def test_order_that_no_process_repeats_is_refused(tmp_path):
    tf.random.set_seed(None)
    callbacks = [keras_vit.ResumeTraining(tmp_path)]
    model = build(small=True)
    with pytest.raises(ValueError, match="shuffles the arrays"):
        model.fit(*images(), callbacks=callbacks, verbose=0)
    with pytest.raises(ValueError, match="shuffles without a seed"):
        model.fit(slices().shuffle(5).batch(2), callbacks=callbacks, shuffle=False, verbose=0)


def test_random_operations_in_the_data_are_named(tmp_path):
    data = slices().map(lambda x, y: (tf.image.random_flip_left_right(x), y)).batch(BATCH)
    with pytest.warns(UserWarning, match="calls RandomUniform"):
        fit("in order", tmp_path, data=(data, None))
    seeds = tf.data.Dataset.counter().map(lambda i: tf.stack([i, i]))
    data = tf.data.Dataset.zip(slices(), seeds).map(flip_by_seed).batch(BATCH)
    fit("in order", tmp_path, data=(data, None))


def flip_by_seed(example, seed):
    return tf.image.stateless_random_flip_left_right(example[0], seed), example[1]


def test_models_of_keras_are_refused(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"needs .* a `keras_vit.Model`. Received: Sequential"):
        model.fit(np.ones((2, 1)), np.ones(2), callbacks=[keras_vit.ResumeTraining(tmp_path)])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="`every_n_steps` must be at least 1"):
        keras_vit.ResumeTraining("folder", every_n_steps=0)
    with pytest.raises(ValueError, match="`keep` must be at least 2"):
        keras_vit.ResumeTraining("folder", keep=1)


def test_sigterm_does_what_it_did_after_fit_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "raise_signal", deliver)
    heard = []

    def hear(*_):
        heard.append(True)

    former = signal.signal(signal.SIGTERM, hear)
    try:
        for folder in ("first", "second"):
            with pytest.raises(KilledError):
                fit(folder=tmp_path / folder, kill_after=2)
        failed = signal.getsignal(signal.SIGTERM).__self__
        assert failed._former is hear  # and not what the first one left behind
        signal.raise_signal(signal.SIGTERM)
        assert heard == [True]
    finally:
        signal.signal(signal.SIGTERM, former)
