"""AdamW with layer-wise learning rate decay, and the optimizers of recipes."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.train.hyperparameters import Recipe
from tests.fixtures import tiny_config, tiny_vit


def test_a_step_matches_the_formula():
    factors, start, gradient = (0.25, 1.0, 0.25), np.array([1.0, -2.0]), np.array([0.5, 0.1])
    variables = [keras.Variable(start, name=f"kernel_{i}") for i in range(len(factors))]
    by_path = {v.path: factor for v, factor in zip(variables, factors, strict=True)}
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.1, 0.05])
    optimizer = keras_vit.train.AdamW(rates, rate_factors=by_path, weight_decay=0.2, epsilon=1e-8)
    expected = [start] * len(factors)
    mean = square = 0
    for step, rate in ((1, 0.1), (2, 0.05)):
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")] * 3, variables)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        update = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        expected = [
            x * (1 - rate * factor * 0.2) - rate * factor * update
            for x, factor in zip(expected, factors, strict=True)
        ]
    for variable, values in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), values, rtol=1e-5)


def test_steps_are_those_of_optax():
    """The values after each step of `optax.adamw(1e-2, weight_decay=0.1)`, optax 0.2.8."""
    gradients = [[1e-6, -1e-8, 1.0, 3e-4], [2e-6, 1e-8, -0.5, 0.0], [-1e-6, -3e-8, 0.25, 1e-4]]
    expected = [
        [0.9890991, -0.4945, 1.988, 0.2397504],
        [0.9785189, -0.4942687, 1.983349, 0.2328105],
        [0.973369, -0.4900914, 1.977961, 0.2256428],
    ]
    variable = keras.Variable([1.0, -0.5, 2.0, 0.25], name="kernel")
    optimizer = keras_vit.train.AdamW(1e-2, weight_decay=0.1)
    for gradient, values in zip(gradients, expected, strict=True):
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")], [variable])
        np.testing.assert_allclose(variable.numpy(), values, rtol=0, atol=5e-7)
    assert optimizer.get_config()["epsilon"] == 1e-8


@pytest.mark.parametrize("form", [{}, {"amsgrad": True}, {"gradient_accumulation_steps": 2}])
def test_without_factors_and_epsilon_it_equals_adamw_of_keras(form):
    def train(optimizer):
        # Gradients that are given: those of a model differ by rounding, which Adam would divide.
        rng = np.random.default_rng(0)
        model = tiny_vit(classes=3, depth=1)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        variables = model.trainable_variables
        optimizer.build(variables)
        step = tf.function(lambda gradients: optimizer.apply(gradients, variables))
        for _ in range(6):
            gradients = [tf.constant(rng.normal(0, 1, v.shape), "float32") for v in variables]
            step(gradients)
        counts.append(len(step.get_concrete_function(gradients).graph.as_graph_def().node))
        return model.get_weights()

    counts: list[int] = []
    options = {"weight_decay": 0.3, "global_clipnorm": 1.0, "epsilon": 1e-14, **form}
    ours = train(keras_vit.train.AdamW(1e-2, **options))
    for x, y in zip(ours, train(keras.optimizers.AdamW(1e-2, **options)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
    if "gradient_accumulation_steps" not in form:  # there, updates are a function of the graph
        limit = 0.8 if "amsgrad" in form else 0.5  # one operator updates a variable and its moments
        assert counts[0] < limit * counts[1]


def test_learning_rates_decay_from_the_head_to_the_patches():
    model = keras_vit.build_vit(tiny_config(classes=3, depth=2))
    factors = keras_vit.train.layerwise_decay(model, 0.5)
    assert factors.keys() == {variable.path for variable in model.trainable_variables}
    assert factors["head/kernel"] == factors["encoder_norm/gamma"] == 1
    assert factors["block_1/mlp/hidden/kernel"] == 0.5
    assert factors["block_0/attention/qkv/bias"] == 0.25
    assert factors["patch_encoder/projection/kernel"] == factors["class_token/token"] == 0.125
    assert factors["position_embedding/embedding"] == 0.125
    restored = keras.optimizers.deserialize(
        keras.optimizers.serialize(keras_vit.train.AdamW(1e-3, rate_factors=factors))
    )
    assert restored.rate_factors == factors


def test_unknown_paths_decay_and_models():
    model = keras_vit.build_vit(tiny_config(classes=3))
    optimizer = keras_vit.train.AdamW(rate_factors={"haed/kernel": 0.1})
    with pytest.raises(ValueError, match=r"not trainable: haed/kernel\..*'patch_encoder"):
        optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"in \(0, 1\]. Received: 1.5"):
        keras_vit.train.layerwise_decay(model, 1.5)
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="no layers block_0"):
        keras_vit.train.layerwise_decay(plain, 0.5)


RECIPE = Recipe("a test", "sgd", 0.1, 8, steps=20, warmup_steps=5)


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
    recipe = dataclasses.replace(RECIPE, schedule=schedule, clip_norm=1.0, end_learning_rate=1e-5)
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
    schedule = RECIPE.build_schedule(8)
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
        RECIPE, optimizer=optimizer, weight_decay=0.3, decay_kernels_only=kernels_only
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
    found = run(dataclasses.replace(RECIPE, averaging=0.9).build_optimizer(8))
    average = found[0]["kernel"]
    for values in found[1:-1]:
        average = 0.9 * average + 0.1 * values["kernel"]
    np.testing.assert_allclose(found[-1]["kernel"], average, rtol=1e-5)
