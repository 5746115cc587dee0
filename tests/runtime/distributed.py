"""Checks that test_distributed.py runs in processes of their own.

One run is 20 or more steps of a tiny ViT, with every batch of 8 images but the last, which has 5.
"""

from __future__ import annotations

import contextlib
import functools
import traceback

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from tests.workers import use_two_cpus

CLASSES = 4
OPTIMIZERS = keras.optimizers
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 255, (29, 8, 8, 3)).astype("float32")
LABELS = RNG.integers(0, CLASSES, 29)


def adam():
    # The gradient of the keys' bias is zero but for rounding, because softmax is shift invariant.
    # Adam must not divide rounding by rounding: epsilon is larger.
    return OPTIMIZERS.AdamW(1e-2, weight_decay=0.1, global_clipnorm=0.1, epsilon=1e-4)


def sgd(**options):
    return OPTIMIZERS.SGD(0.1, momentum=0.9, **options)


def excluding():
    optimizer = OPTIMIZERS.AdamW(1e-2, weight_decay=0.5, epsilon=1e-4)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def build(
    optimizer=adam, jit_compile=False, compile_options=None, prepare=None, depth=1, **options
):
    """The same model with the same weights every time."""
    config = keras_vit.make_config(
        patch_size=4,
        width=16,
        depth=depth,
        num_heads=2,
        mlp_dim=32,
        image_size=8,
        classes=CLASSES,
        **options,
    )
    keras.utils.set_random_seed(3)
    model = keras_vit.build_vit(config)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(0, 0.2, weight.shape) for weight in model.get_weights()])
    if prepare is not None:
        prepare(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"loss": loss, "metrics": ["accuracy"], **(compile_options or {})}
    model.compile(optimizer(), jit_compile=jit_compile, **options)
    return model


def batches():
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8)


def default():
    return contextlib.nullcontext()


@functools.cache
def two_cpus():
    # One for all: TensorFlow numbers what a strategy exchanges from 100 each time, and takes
    # the exchanges of another for its own.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def replicas():
    return two_cpus().scope()


def train(scope=default, fit=None, data=batches, epochs=5, thorough=False, **options) -> dict:
    """Everything that a run ends with; where thorough, with all that can be done beside `fit`."""
    with scope() if callable(scope) else scope.scope():
        model = build(**options)
    fit = {"shuffle": False, **({"validation_data": batches()} if thorough else {}), **(fit or {})}
    results = {"history": model.fit(data(), epochs=epochs, verbose=0, **fit).history}
    if thorough:
        results["predictions"] = model.predict(batches(), verbose=0)
        results["evaluation"] = model.evaluate(batches(), verbose=0)
    results["weights"] = model.get_weights()
    results["optimizer"] = [np.array(variable) for variable in model.optimizer.variables]
    seeds = (v for v in model.variables if v.name == "seed_generator_state")
    results["seeds"] = [np.array(seed) for seed in seeds]
    return results


def assert_same(received, expected, tolerance=3e-6):
    # Float32 after 20 steps on weights of about 0.2: some tens of units in the last place.
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance), received, expected
    )


def check(*names):
    """Runs checks, prints the names of those that pass, and the errors of the others."""
    use_two_cpus()
    for name in names:
        keras.config.set_dtype_policy("float32")
        try:
            globals()[f"check_{name}"]()
            print(f"passed: {name}", flush=True)
        except Exception:
            print(f"failed: {name}", traceback.format_exc(), flush=True)


def check_two_replicas(thorough=False):
    expected = train(thorough=thorough)
    losses = expected["history"]["loss"]
    assert losses[-1] < losses[0] - 0.05, losses
    assert_same(train(replicas, thorough=thorough), expected)


def check_validation_and_prediction():
    check_two_replicas(thorough=True)


def check_class_weights():
    """Unequal classes in unequal batches: the weights are those of the images, not of replicas."""
    images = keras_vit.read_arrays(IMAGES, LABELS)
    transform = keras_vit.data.InputTransform((8, 8), classes=CLASSES)
    plain = keras_vit.data.Augmentation(crop="none", flip=False)

    def weighted(scope, weights):
        def data():
            options = {"one_hot": False, "class_weights": weights, "drop_remainder": False}
            with scope():
                return keras_vit.data.train_batches(images, transform, 8, plain, **options)

        return train(scope, data=data)

    expected = weighted(default, images.class_weights())
    assert_same(weighted(replicas, images.class_weights()), expected)
    other = weighted(default, np.ones(CLASSES))["weights"]
    assert max(np.abs(x - y).max() for x, y in zip(other, expected["weights"], strict=True)) > 1e-3


def check_xla():
    """With validation, `predict` and `evaluate`."""
    expected = train(thorough=True)
    one_device = tf.distribute.OneDeviceStrategy("CPU:1").scope
    for scope in (default, one_device, replicas):
        assert_same(train(scope, jit_compile=True, thorough=True), expected)


def check_labels(compilers=(False,)):
    """Labels outside of the classes are the error of a single device."""
    for scope in (replicas, tf.distribute.MultiWorkerMirroredStrategy().scope):
        for jit_compile in compilers:
            with scope():
                model = build(jit_compile=jit_compile)
            for function in (model.fit, model.evaluate):
                message = ""
                try:
                    function(IMAGES, LABELS + 1, batch_size=8, verbose=0)
                except tf.errors.InvalidArgumentError as error:
                    message = str(error)
                assert f"Received a label value of {CLASSES}" in message, (jit_compile, message)
            assert all(np.isfinite(weight).all() for weight in model.get_weights())


def check_labels_with_xla():
    check_labels((True,))


def check_optimizers():
    cases = {
        "clip": lambda: sgd(global_clipnorm=0.01),
        "exclude": excluding,
        "overwrite": lambda: sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
        "accumulate": lambda: sgd(gradient_accumulation_steps=2, global_clipnorm=0.1),
        "rates by layer": lambda: keras_vit.train.AdamW(
            1e-2, rate_factors={"head/kernel": 0.1}, weight_decay=0.5, epsilon=1e-4
        ),
        "official momentum": lambda: keras_vit.train.SGD(0.1, gradient_accumulation_steps=2),
        "momentum of Nesterov": lambda: OPTIMIZERS.Nadam(1e-2, epsilon=1e-4),
        "loss scale": lambda: OPTIMIZERS.LossScaleOptimizer(sgd(global_clipnorm=0.1)),
        "loss scale, accumulate": lambda: OPTIMIZERS.LossScaleOptimizer(
            sgd(gradient_accumulation_steps=2)
        ),
    }
    if hasattr(OPTIMIZERS, "MultiOptimizer"):
        cases["several"] = several
    for name, optimizer in cases.items():
        print(name, flush=True)
        assert_same(train(replicas, optimizer=optimizer), train(optimizer=optimizer))


def several():
    rules = OPTIMIZERS.OptimizerMap(sgd())
    rules["head/.*"] = OPTIMIZERS.SGD(0.2)
    return OPTIMIZERS.MultiOptimizer(rules)


def check_precision():
    exact = train(optimizer=sgd)
    for policy in ("mixed_bfloat16", "mixed_float16"):
        keras.config.set_dtype_policy(policy)  # float16 brings its loss scale along
        single = distance(train(optimizer=sgd), exact)
        for jit_compile in (False, True):
            several = train(replicas, optimizer=sgd, jit_compile=jit_compile)
            print(policy, jit_compile, single, distance(several, exact), flush=True)
            assert distance(several, exact) < 2 * single


def check_bfloat16_exchange():
    """Gradients are rounded to 8 bits where replicas exchange them, and nowhere else."""
    one_step = {"epochs": 1, "data": lambda: batches().take(1)}
    before = build(sgd).get_weights()
    for jit_compile in (False, True):
        options = {"optimizer": lambda: OPTIMIZERS.SGD(1.0), "jit_compile": jit_compile}
        exact = train(replicas, **one_step, **options)
        options["compile_options"] = {"all_reduce_dtype": "bfloat16"}
        rounded = train(replicas, **one_step, **options)
        gradients = distance({"weights": before}, exact)
        error = distance(rounded, exact) / gradients
        print(f"relative error of the gradients {error:.2g}", flush=True)
        assert 2**-12 < error < 2**-8
        assert_same(rounded["history"], exact["history"])  # metrics and counts are exact
    # With clipping, accumulation and a loss scale, and batches that divide unequally.
    for optimizer in (
        adam,
        lambda: OPTIMIZERS.LossScaleOptimizer(sgd(gradient_accumulation_steps=2)),
    ):
        exact = train(replicas, optimizer=optimizer)
        options = {"compile_options": {"all_reduce_dtype": "bfloat16"}}
        rounded = train(replicas, optimizer=optimizer, **options)
        error = distance(rounded, exact) / distance({"weights": before}, exact)
        print(f"relative error of the change in 20 steps {error:.2g}", flush=True)
        assert 1e-4 < error < 0.02
    with replicas():  # gradients of embeddings are sparse
        numbers = keras.Input((2,), dtype="int32")
        values = keras.layers.Flatten()(keras.layers.Embedding(CLASSES, 3)(numbers))
        model = keras_vit.Model(numbers, values)
        model.compile("sgd", "mse", all_reduce_dtype="bfloat16")
    model.fit(np.ones((8, 2), "int32"), np.ones((8, 6)), verbose=0)


def distance(received, expected) -> float:
    """Between weights, all together."""
    pairs = zip(received["weights"], expected["weights"], strict=True)
    return sum(np.sum((x - y) ** 2) for x, y in pairs) ** 0.5


def check_fit_arguments():
    weights = np.linspace(0, 2, len(LABELS))
    with_weights = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS, weights))

    cases = {
        "several steps": {"compile_options": {"steps_per_execution": 3}},
        "class weights": {"fit": {"class_weight": {0: 0.1, 1: 2.0, 2: 1.0, 3: 0.5}}},
        "sample weights": {"data": lambda: with_weights.batch(8)},
        "static shapes": {"data": lambda: batches().unbatch().batch(8, drop_remainder=True)},
        "one image left": {"data": lambda: batches().unbatch().take(9).batch(8)},
        "frozen": {"prepare": freeze},
        "penalty": {"prepare": penalise},
    }
    for name, options in cases.items():
        print(name, flush=True)
        assert_same(train(replicas, **options), train(**options))
    assert_same(train(replicas, compile_options={"run_eagerly": True}, epochs=2), train(epochs=2))


def check_the_end_of_the_data():
    """Nothing is done where a step has no batch: neither counted nor decayed."""
    for scope in (default, replicas):
        with scope():
            model = build()
        data = batches().unbatch().batch(8, drop_remainder=True)
        history = model.fit(data, epochs=2, verbose=0).history
        assert np.array(model.optimizer.iterations) == 6
        assert model.evaluate(data, verbose=0)[0] > 0.95 * history["loss"][-1]


def freeze(model):
    model.get_layer("patch_encoder").trainable = False
    model.get_layer("block_0").trainable = False


def penalise(model):
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)


def check_single_batches():
    results = []
    for scope in (default, replicas):
        with scope():
            model = build()
        trained = [model.train_on_batch(IMAGES[:7], LABELS[:7]) for _ in range(3)]
        tested = model.test_on_batch(IMAGES, LABELS, return_dict=True)
        results.append((trained, tested, model.predict_on_batch(IMAGES[:5]), model.get_weights()))
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=3e-6), *results
    )


def check_own_models():
    """Models that users compose, with two inputs by name and two losses."""

    def compose():
        backbone = build()
        images, sizes = keras.Input((8, 8, 3), name="images"), keras.Input((2,), name="size")
        features = keras.layers.Concatenate()([backbone(images), sizes])
        features = keras.layers.BatchNormalization(synchronized=True)(features)
        start = keras.initializers.RandomNormal(seed=1)
        outputs = {
            name: keras.layers.Dense(units, name=name, kernel_initializer=start)(features)
            for name, units in (("kind", CLASSES), ("value", 1))
        }
        model = keras_vit.Model({"images": images, "size": sizes}, outputs)
        losses = {
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "value": "mse",
        }
        model.compile(sgd(), losses, metrics={"kind": "accuracy"})
        return model

    sizes = np.linspace(-1, 1, 2 * len(LABELS)).reshape(-1, 2).astype("float32")
    targets = {"kind": LABELS, "value": sizes.sum(-1, keepdims=True)}
    inputs = {"images": IMAGES, "size": sizes}
    results = []
    for scope in (default, replicas):
        with scope():
            model = compose()
        data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8)
        history = model.fit(data, epochs=2, verbose=0).history
        # Keras means the losses of the outputs over batches, however large they are.
        kept = [history[name] for name in ("loss", "kind_accuracy")]
        results.append((kept, model.get_weights(), model.predict(inputs, verbose=0)))
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5), *results
    )


def check_random_numbers():
    options = {"dropout_rate": 0.3}
    first, second = train(replicas, **options), train(replicas, **options)
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)  # runs repeat
    assert distance(first, train(replicas)) > 0.01
    # From step to step the states go on as on one device.
    tf.nest.map_structure(np.testing.assert_array_equal, first["seeds"], train(**options)["seeds"])
    strategy = two_cpus()
    with strategy.scope():
        model = build(**options)
    images = tf.data.Dataset.from_tensors(np.repeat(IMAGES[:1], 8, axis=0))
    batch = next(iter(strategy.experimental_distribute_dataset(images.unbatch().batch(8))))
    seen = []

    def look(images):
        with keras_vit.runtime.distributed._own_random_numbers(model):
            seen.append(model(images, training=True))
        return seen[-1]

    one, other = strategy.run(look, args=(batch,)).values
    assert np.abs(np.array(one) - np.array(other)).max() > 0.01  # replicas differ


def check_rematerialization():
    options = {"dropout_rate": 0.3, "epochs": 1}
    for jit_compile in (False, True):
        options["jit_compile"] = jit_compile
        assert_same(train(replicas, rematerialize=True, **options), train(replicas, **options))


def check_keras_itself():
    from tests.runtime import upstream

    upstream.show_all()


WORKER_CASES = {
    "adam": {},
    "xla, accumulate, several steps": {
        "jit_compile": True,
        "optimizer": lambda: sgd(gradient_accumulation_steps=2),
        "compile_options": {"steps_per_execution": 3},
    },
}
MORE_WORKER_CASES = {
    "xla": {"jit_compile": True},
    "accumulate": {"optimizer": lambda: sgd(gradient_accumulation_steps=2)},
    "several steps": {"compile_options": {"steps_per_execution": 3}},
    "average": {
        "optimizer": lambda: sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)
    },
    "exclude": {"optimizer": excluding},
    "rates by layer": {
        "optimizer": lambda: keras_vit.train.AdamW(
            1e-2, rate_factors={"head/kernel": 0.1}, weight_decay=0.5, epsilon=1e-4
        )
    },
    "loss scale": {
        "optimizer": lambda: OPTIMIZERS.LossScaleOptimizer(sgd(global_clipnorm=0.1)),
    },
    "frozen": {"prepare": freeze},
    "class weights": {"fit": {"class_weight": {0: 0.1, 1: 2.0, 2: 1.0, 3: 0.5}}},
    "recomputed": {"rematerialize": True},
    "recomputed, xla": {"rematerialize": True, "jit_compile": True},
    "mixed_bfloat16": {"optimizer": sgd},
    "mixed_float16": {"optimizer": sgd},
}

_BFLOAT16 = {"compile_options": {"all_reduce_dtype": "bfloat16"}}
BFLOAT16_CASES = {
    "clip": {"optimizer": lambda: sgd(global_clipnorm=0.1), **_BFLOAT16},
    "xla": {"optimizer": sgd, "jit_compile": True, **_BFLOAT16},
}


def check_workers(folder, cases="WORKER_CASES"):
    """On every worker, whose results `check_alone` compares."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    for name, options in globals()[cases].items():
        print(name, flush=True)
        keras.config.set_dtype_policy(name if name.startswith("mixed") else "float32")
        received = train(strategy, thorough=name == "adam", **options)
        np.save(f"{folder}/{name}-{index}.npy", received, allow_pickle=True)
    from tests.runtime import upstream

    upstream.show(upstream.several_workers, strategy)


def check_alone(folder, cases="WORKER_CASES"):
    """The same runs in one process, without XLA, and that the first worker ended with them."""
    for name, options in globals()[cases].items():
        received = np.load(f"{folder}/{name}-0.npy", allow_pickle=True).item()
        options = {**options, "jit_compile": False}
        if cases == "BFLOAT16_CASES":
            del options["compile_options"]
            start = {"weights": build(sgd).get_weights()}
            exact = train(**options)
            error = distance(received, exact) / distance(start, exact)
            print(f"{name}: relative error of the change in 20 steps {error:.2g}", flush=True)
            assert 1e-4 < error < 0.02
            continue
        if not name.startswith("mixed"):
            assert_same(received, train(thorough=name == "adam", **options))
            continue
        exact = train(**options)
        keras.config.set_dtype_policy(name)
        single = distance(train(**options), exact)
        keras.config.set_dtype_policy("float32")
        assert distance(received, exact) < 2 * single
