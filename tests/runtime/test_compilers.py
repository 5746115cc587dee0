"""The choice between graph and XLA for inference, by timing a block."""

from __future__ import annotations

import itertools
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.files import cache_dir
from keras_vit.models.vit import build_vit
from keras_vit.runtime import compilers
from keras_vit.runtime.compilers import SWITCH, Timing, compute_dtype, time_block, xla_for_inference
from tests.fixtures import tiny_config, tiny_vit

IMAGES = np.random.default_rng(0).uniform(0, 255, (4, 16, 16, 3)).astype("float32")


@pytest.fixture(scope="module")
def model():
    return tiny_vit(stddev=0.1, image_size=16, patch_size=8, depth=2)


@pytest.fixture
def timer(tmp_path, monkeypatch):
    """Timing as for users, with a fake timer and an empty cache."""

    class Timer:
        timing = Timing(graph=2.0, xla=1.0)
        file = tmp_path / "cache/compilers.json"

        def __init__(self):
            self.batches = []

        def __call__(self, block, batch):
            assert block.name == "block_0"
            self.batches.append(batch)
            return self.timing

        def start_process(self):
            monkeypatch.setattr(compilers, "_chosen", {})

    timer = Timer()
    timer.start_process()
    monkeypatch.setattr(compilers, "time_block", timer)
    monkeypatch.setattr(compilers.FreeCores, "count", lambda self: float(os.cpu_count()))
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH)
    return timer


def test_the_faster_compiler_is_chosen_once_for_each_class_of_batches(model, timer):
    before = dict(os.environ)
    assert all(xla_for_inference(model, size) for size in (1, 8, 9, 300, 2, 3, 1))
    assert timer.batches == [1, 8, 2]
    timer.start_process()
    assert xla_for_inference(model, 1) and timer.batches == [1, 8, 2]  # from the file
    assert dict(os.environ) == before


def test_times_that_other_processes_disturb_are_not_kept_in_the_file(model, timer, monkeypatch):
    with monkeypatch.context() as busy:
        busy.setattr(compilers.FreeCores, "count", lambda self: 0.8 * compilers.count_cores())
        assert xla_for_inference(model, 1) and xla_for_inference(model, 1)
    assert timer.batches == [1] and not timer.file.exists()
    timer.start_process()
    assert xla_for_inference(model, 1) and timer.batches == [1, 1] and timer.file.exists()


def test_another_version_of_this_package_is_timed_again(model, timer, monkeypatch):
    assert xla_for_inference(model, 1)
    timer.start_process()
    monkeypatch.setattr(keras_vit, "__version__", "9.9.9")
    assert xla_for_inference(model, 1) and timer.batches == [1, 1]
    assert len(json.loads(timer.file.read_text())) == 2


@pytest.mark.parametrize(("graph", "chosen"), [(1.0, False), (1.04, False), (1.06, True)])
def test_xla_must_gain_more_than_noise(graph, chosen, model, timer):
    timer.timing = Timing(graph=graph, xla=1.0)
    assert xla_for_inference(model, 1) is chosen


def test_predict_follows_the_choice(model, timer, monkeypatch):
    expected = model.predict(IMAGES, 3, verbose=0)
    monkeypatch.setattr(compilers, "xla_for_inference", lambda model, size, measure: size == 3)
    model.compile()
    for received in (
        model.predict(IMAGES, 3, verbose=0),
        model.predict(tf.data.Dataset.from_tensor_slices((IMAGES, ["a"] * 4)).batch(3), verbose=0),
    ):
        np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(IMAGES[:3]), expected[:3], atol=1e-5)
    chosen = model.predict_function
    assert chosen._compiled.experimental_get_tracing_count() == 1  # batches of 3
    assert chosen._graph.experimental_get_tracing_count() == 2  # and the last one
    assert chosen._choices == {3: True}


def test_the_rest_of_the_data_is_not_compiled(model, timer, monkeypatch):
    asked = []
    monkeypatch.setattr(
        compilers, "xla_for_inference", lambda model, size, measure: asked.append(size) or True
    )
    model.compile()
    images = np.concatenate([IMAGES] * 3)
    expected = model(images)
    for count in (12, 11, 10, 9, 8, 11):  # rests of 4, 3, 2, 1, 0 and 3 images
        received = model.predict(images[:count], 8, verbose=0)
        np.testing.assert_allclose(received, expected[:count], rtol=0, atol=1e-5)
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=0, atol=1e-5)
    assert asked == [8]
    assert model.predict_function._compiled.experimental_get_tracing_count() == 1
    assert model.predict_function._graph.experimental_get_tracing_count() == 2  # any number
    model.predict(images[:8], verbose=0)
    model.predict(images[:3], verbose=0)  # the first batch of its data
    model.predict_on_batch(images[:2])
    assert asked == [8, 3, 2]


@pytest.mark.parametrize("switch", ["argument", "variable"])
def test_nothing_is_timed_when_it_is_switched_off(switch, model, timer, monkeypatch):
    if switch == "variable":
        monkeypatch.setenv(SWITCH, "0")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    model.compile(jit_compile="auto" if switch == "variable" else "untimed")
    assert model.get_compile_config()["jit_compile"] == ("auto", "untimed")[switch == "argument"]
    model.predict(IMAGES, verbose=0)
    assert timer.batches == [] and not timer.file.exists()


def test_where_xla_cannot_run_nothing_is_timed(model, timer):
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        assert not xla_for_inference(model, 1)
    half = build_vit(tiny_config(image_size=16, patch_size=8, depth=1))
    half.get_layer("block_0").supports_jit = False
    assert not xla_for_inference(half, 1)
    assert timer.batches == []


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[1]",
        b'{"x": [1]}',
        b'{"x": [1, -1]}',
        b'{"x": [1' + b"0" * 400 + b", 1]}",
        b"{",
        b"[" * 99999,
    ],
)
def test_a_damaged_cache_is_measured_again(content, model, timer):
    timer.file.parent.mkdir()
    timer.file.write_bytes(content)
    with pytest.warns(UserWarning, match=r"compilers.json cannot be read .*measuring again"):
        assert xla_for_inference(model, 1)
    timer.start_process()
    assert xla_for_inference(model, 1) and timer.batches == [1]


def test_a_cache_that_cannot_be_written_stays_whole(model, timer, monkeypatch):
    assert xla_for_inference(model, 1)
    content = timer.file.read_bytes()

    def fail(*paths):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert xla_for_inference(model, 8)
    assert timer.file.read_bytes() == content
    assert [path.name for path in timer.file.parent.iterdir()] == [timer.file.name]


@pytest.mark.parametrize("kind", ["no home", "a file", "a folder in place of the file"])
def test_predictions_do_without_a_cache(kind, model, timer, monkeypatch):
    if kind == "no home":
        for name in ("HOME", "XDG_CACHE_HOME", "KERAS_VIT_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without a passwd entry
        with pytest.raises(OSError, match=r"no home directory\. Set KERAS_VIT_CACHE"):
            cache_dir()
    elif kind == "a file":
        timer.file.parent.write_text("not a folder")
    else:
        timer.file.mkdir(parents=True)
    assert xla_for_inference(model, 1) and xla_for_inference(model, 1)
    assert timer.batches == [1]


class Recording(keras.layers.Layer):
    """Records the images of every batch that Python sees: in eager calls, and in traces."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def call(self, x):
        self.batches.append(x.shape[0])
        return x


@pytest.mark.parametrize(("seconds", "images"), [(0.001, 8), (0.06, 2), (0.14, 1), (0.16, None)])
def test_large_blocks_are_timed_with_fewer_images_or_not_at_all(seconds, images):
    layer = Recording()
    keras.Model(inputs := keras.Input((2,)), layer(inputs))
    layer.batches.clear()
    readings = itertools.chain([0, 0.5, 9, 9 + seconds], itertools.count(20))
    timing = time_block(layer, 8, lambda: next(readings))
    assert layer.batches == [1, 1, *([images] * 2 if images else [])]  # eager, graph, XLA
    assert timing == (Timing(graph=1, xla=1) if images else None)


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 0.1, 0.15])
def test_the_time_of_all_calls_is_bounded(seconds):
    now = 0.0

    def call():
        nonlocal now
        now += seconds
        return tf.zeros(())

    received = compilers._take_turns([call, call], lambda: now)
    np.testing.assert_allclose(received, [seconds] * 2)
    assert now + 0.5 + seconds < 2  # with two eager calls


def test_a_layer_that_is_far_too_large_is_called_once():
    layer = Recording()
    keras.Model(inputs := keras.Input((2,)), layer(inputs))
    layer.batches.clear()
    readings = iter([0, 0.6])
    assert time_block(layer, 8, lambda: next(readings)) is None
    assert layer.batches == [1]


def test_a_block_that_is_too_large_follows_the_rule_of_training(model, timer, monkeypatch):
    timer.timing = None
    for setting in ("1", "0"):  # of oneDNN
        timer.start_process()
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", setting)
        assert xla_for_inference(model, 1) is (setting == "0")
    assert timer.batches == [1, 1] and not timer.file.exists()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_the_dtype_is_that_of_the_blocks(policy):
    """Not that of a head, which has more weights here than all blocks together."""
    keras.config.set_dtype_policy(policy)
    try:
        model = build_vit(tiny_config(classes=21_843))
    finally:
        keras.config.set_dtype_policy("float32")
    outer = keras_vit.Model(inputs := keras.Input((32, 32, 3)), model(inputs))
    head = model.get_layer("head")
    assert head.compute_dtype == "float32" and 2 * head.count_params() > model.count_params()
    assert compute_dtype(model) == compute_dtype(outer) == policy.removeprefix("mixed_")


def test_the_dtype_of_a_model_without_blocks_is_that_of_most_weights():
    inputs = keras.Input((4,))
    small = keras.layers.Dense(2, dtype="float64")(inputs)
    assert compute_dtype(keras.Model(inputs, keras.layers.Dense(9)(small))) == "float32"


def test_a_block_is_timed_both_ways_in_turns(model):
    readings = [*[0, 0] * 4, *[0, *[0, 3, 0, 1] * 2]]  # 3 seconds in the graph, 1 with XLA
    times = iter(np.cumsum([*readings, 0]))
    timing = time_block(model.get_layer("block_0"), 2, lambda: float(next(times)))
    assert timing == Timing(graph=3, xla=1)
