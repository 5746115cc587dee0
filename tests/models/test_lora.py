"""Low-rank updates: what trains, what is computed, merged and saved."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_vit
from keras_vit.layers.dense import Dense
from keras_vit.models.lora import add_lora, lora_layers, merge_lora
from tests.fixtures import images_for, numpy, tiny_config, tiny_vit


def build(**options):
    return tiny_vit(**options)


def fill_updates(model, seed=3):
    rng = np.random.default_rng(seed)
    for layer in lora_layers(model):
        layer.lora_kernel_a.assign(rng.normal(0, 0.2, layer.lora_kernel_a.shape))
        mask = layer.lora_mask()
        b = rng.normal(0, 0.2, layer.lora_kernel_b.shape)
        layer.lora_kernel_b.assign(b if mask is None else b * mask)


@pytest.mark.parametrize(
    ("targets", "parts"),
    [("qkv", None), (("query", "value"), (True, False, True)), (("v_proj",), (False, False, True))],
)
def test_the_update_is_that_of_the_paper(targets, parts):
    """h = W x + alpha / r * B A x (Eq. 3), part by part."""
    model = build()
    before = [numpy(w) for w in model.weights]
    add_lora(model, 2, targets, alpha=6)
    qkv = model.get_layer("block_1").attention.qkv
    np.testing.assert_array_equal(qkv.lora_kernel_b, 0)
    fill_updates(model)
    x = np.random.default_rng(0).normal(size=(5, 32))
    kernel = numpy(qkv.frozen_kernel).astype("float64")
    a, b = (numpy(v).astype("float64") for v in (qkv.lora_kernel_a, qkv.lora_kernel_b))
    expected = x @ kernel + numpy(qkv.bias)
    if parts is None:
        expected += 3 * (x @ a @ b)
    for row, part in enumerate(np.flatnonzero(parts or ())):
        columns = slice(32 * part, 32 * part + 32)
        rows = slice(2 * row, 2 * row + 2)
        expected[:, columns] += 3 * (x @ a[:, rows] @ b[rows, columns])
    np.testing.assert_allclose(numpy(qkv(x.astype("float32"))), expected, rtol=0, atol=1e-5)
    assert len(before) + 2 * len(lora_layers(model)) == len(model.weights)


def test_the_products_of_grid_attention():
    def updates(targets, kind="relative_2d"):
        options = {"position_embedding": "none", "class_token": False, "pooling": "gap"}
        options |= {"post_norm": True, "head_width": 12}
        model = keras_vit.build_vit(tiny_config(depth=1, grid_attention=kind, **options))
        layers = lora_layers(add_lora(model, 2, targets))
        return {layer.path.split("/", 1)[1]: layer.lora_parts for layer in layers}

    whole = {"attention/queries_keys": None, "attention/value": None}
    assert updates("qkv") == whole
    assert updates("query") == {"attention/queries_keys": (True, False)}
    assert updates(("v_proj", "fc1")) == {"attention/value": None, "mlp/hidden": None}
    outputs = {"attention/output": None, "mlp/hidden": None, "mlp/output": None}
    assert updates("all-linear") == whole | outputs
    assert updates("qkv", "offsets") == {"attention/value": None}
    with pytest.raises(ValueError, match=r"no 'query'. Their products are attention/output, "):
        updates(("query", "value"), "offsets")


def test_updates_and_head_train_alone_and_zeros_stay():
    model = add_lora(build(), 2, ("query", "value"), dropout_rate=0.2)
    images = images_for(model, 8)
    first = numpy(model(images))
    np.testing.assert_array_equal(first, numpy(merge_lora(model)(images)))  # B is zero
    with pytest.raises(ValueError, match=r"compile\(\)"):
        model.fit(images, np.arange(8) % 5, verbose=0)
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    before = {w.path: numpy(w) for w in model.weights}
    losses = model.fit(images, np.arange(8) % 5, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    changed = {w.path for w in model.weights if (numpy(w) != before[w.path]).any()}
    updates = {f"block_{i}/attention/qkv/lora_kernel_{x}" for i in (0, 1) for x in "ab"}
    seeds = {w.path for w in model.weights if "seed" in w.path and "patch" not in w.path}
    assert changed - seeds == updates | {"head/kernel", "head/bias"}
    for layer in lora_layers(model):
        assert not (numpy(layer.lora_kernel_b) * (1 - layer.lora_mask())).any()


def test_the_gradient_of_the_kernel_is_not_computed():
    """Keras's own layer has a product of the kernel's size for it in its graph."""

    def products(layer):
        @tf.function
        def gradients(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x) ** 2)
            return tape.gradient(loss, [v.value for v in layer.trainable_variables])

        graph = gradients.get_concrete_function(tf.zeros((7, 20))).graph
        used, waiting = set(), [tensor.op for tensor in graph.outputs]
        while waiting:  # what is not used is left out when the graph runs
            used.add(op := waiting.pop())
            waiting.extend(x.op for x in op.inputs if x.op not in used)
        return [x.outputs[0].shape.as_list() for x in used if x.type == "MatMul"].count([20, 30])

    counts = []
    for kind in (Dense, keras.layers.Dense):
        layer = kind(30, use_bias=False)
        layer.build((None, 20))
        layer.enable_lora(2)
        counts.append(products(layer))
    assert counts == [0, 2]


@pytest.mark.slow
def test_merged_saved_and_exported_models_compute_the_same(tmp_path):
    model = add_lora(build(), 5, "all-linear", alpha=7, rank_stabilized=True)
    assert len(lora_layers(model)) == 8
    fill_updates(model)
    images = images_for(model)
    expected = numpy(model(images))
    merged = merge_lora(model)
    assert not lora_layers(merged) and all(
        w.trainable for w in merged.weights if "seed" not in w.path
    )
    assert lora_layers(model)  # as it was
    atol = 5e-6 * np.abs(expected).max()
    np.testing.assert_allclose(numpy(merged(images)), expected, rtol=0, atol=atol)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert not lora_layers(again)
    np.testing.assert_allclose(numpy(again(images)), expected, rtol=0, atol=atol)
    report = keras_vit.export_litert(model, tmp_path / "model.tflite", images=images)
    assert report.max_difference < 1e-5
    details = Interpreter(model_path=str(report.path)).get_tensor_details()
    assert not [x for x in details if 5 in x["shape"]]  # no product of rank 5 is left


def test_a_nested_model_and_names_of_its_head():
    backbone = build(classes=None)
    outer = keras.Sequential([backbone, keras.layers.Dense(3, name="decide")])
    outer.build((None, *backbone.input_shape[1:]))
    with pytest.raises(ValueError, match=r"no layer 'head'\. Its last layers are .*decide"):
        add_lora(outer, 2)
    add_lora(outer, 2, "fc1", trainable=("decide",))
    paths = {w.path.split("/")[-1] for w in outer.trainable_weights}
    assert paths == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}
    assert len(outer.trainable_weights) == 2 * 2 + 2


def test_two_models_within_another_keep_their_own_updates():
    first, second = build(classes=None, depth=1), build(classes=None, depth=1)
    inputs = keras.Input(first.input_shape[1:])
    outputs = keras.layers.Dense(3, name="head")(first(inputs) - 2 * second(inputs))
    model = add_lora(keras.Model(inputs, outputs), 2)
    fill_updates(model)
    images = images_for(model)
    expected = numpy(model(images))
    atol = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(numpy(merge_lora(model)(images)), expected, rtol=0, atol=atol)


def test_what_cannot_be_updated_is_an_error():
    model = build()
    for targets in ((), ("qvk",), ("qkv", "query")):
        with pytest.raises(ValueError, match=r"`targets` must be 'all-linear'.*Received"):
            add_lora(model, 2, targets)
    with pytest.raises(ValueError, match="rank"):
        add_lora(model, 0)
    with pytest.raises(ValueError, match="no `TransformerBlock`"):
        add_lora(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), 2)
    assert all(w.trainable for w in model.weights if "seed" not in w.path)  # nothing was frozen
    add_lora(model, 2)
    with pytest.raises(ValueError, match=r"block_0/attention/qkv has a low-rank update already"):
        add_lora(model, 2)
    assert merge_lora(build()) is not None
    if "filters" in inspect.signature(keras.Model.quantize).parameters:
        model.quantize("int8", filters="qkv")
    else:  # Keras 3.11
        model.get_layer("block_0").attention.qkv.quantize("int8")
    with pytest.raises(ValueError, match="quantised"):
        merge_lora(model)
