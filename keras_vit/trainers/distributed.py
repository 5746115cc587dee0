"""`fit` on several replicas: what Keras 3 needs mended under TensorFlow, and nothing else.

Without a strategy Keras trains as ever, but for the last point. With one, Keras 3 has these
faults, which `tests/trainers/test_upstream.py` watches, so that their mending can go when Keras
is mended:

- `jit_compile=True` compiles all devices as one program, which cannot be: here each replica's
  forward and backward pass is compiled, the exchange and the update are outside.
- Several workers: the model is built from values that are spread over replicas, and logs are
  averaged over an axis that they do not have.
- Gradients are clipped before they are summed over the replicas, and accumulated inside a
  condition that must not exchange: here they are summed first, then every replica does the same
  to its own copy, in which nothing needs to be exchanged.
- Replicas with unequal shares of a batch count the same: here every image does.
- Replicas draw the same random numbers: here each draws its own.

With or without a strategy, what a step does without its batch (counting itself, weight decay, the
moving average) is done once more where a dataset of unknown length and static shapes ends: here
a step waits for its batch, and variables that XLA could not create in such a step are made before.
"""

from __future__ import annotations

import contextlib
import types

import keras


def is_distributed(model) -> bool:
    """Whether a model was made under a strategy of `tf.distribute`."""
    if keras.backend.backend() != "tensorflow":
        return False
    return model._distribute_strategy is not None


class DistributedTraining:
    """What `keras_vit.Model` does before `keras.Model` under `tf.distribute`."""

    steps_per_execution: int  # of keras.Model
    _batches_to_skip = 0

    def skip_batches(self, count: int) -> None:
        """Makes `fit` draw its next batches without training on them.

        For a run that goes on where another stopped: the data then stands where it stood. Batch
        callbacks are called for them with the metrics as they are.

        Args:
            count: Batches, a whole number of `steps_per_execution`.
        """
        if count % self.steps_per_execution:
            raise ValueError(
                "Batches can be left out in whole executions only. Received: "
                f"count={count}, with steps_per_execution={self.steps_per_execution}."
            )
        self._batches_to_skip = count

    def make_train_function(self, force=False):
        if self.train_function is not None and not force:
            return self.train_function
        super().make_train_function(force)
        if keras.backend.backend() == "tensorflow":
            self.train_function = _skipping(self, self.train_function)
        return self.train_function

    def train_step(self, *args):
        with _once_there_is(args):
            return self._train_replica(*args) if is_distributed(self) else super().train_step(*args)

    def _train_replica(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        images = _count_images(x)
        share = images / _sum_over_replicas([images])[0]
        with _own_random_numbers(self):
            loss, outputs, gradients = self._parts.differentiate(_at_least_one(data), share)
        outputs = _first(images, outputs)
        self._loss_tracker.update_state(loss, sample_weight=images)
        gradients = _sum_over_replicas(gradients)
        with _local_updates(self.optimizer):
            self.optimizer.apply(gradients, self.trainable_variables)
        return self.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    def _differentiate(self, data, share):
        """One replica's mean loss, outputs and gradients of what the loss has from it."""
        import tensorflow as tf

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self._mean_loss(x, y, outputs, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss * share)
        return loss, outputs, tape.gradient(scaled, self.trainable_variables)

    def _mean_loss(self, x, y, outputs, sample_weight, training):
        """The loss of this replica's images, without the share of it that Keras takes."""
        loss = self._compute_loss(
            x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=training
        )
        replicas = self.distribute_strategy.num_replicas_in_sync
        return keras.ops.sum(loss) * keras.ops.cast(replicas, loss.dtype)

    def test_step(self, *args):
        with _once_there_is(args):
            return self._test_replica(*args) if is_distributed(self) else super().test_step(*args)

    def _test_replica(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        images = _count_images(x)
        loss, outputs = self._parts.evaluate(_at_least_one(data))
        outputs = _first(images, outputs)
        self._loss_tracker.update_state(loss, sample_weight=images)
        return self.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    def _evaluate(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self(x, training=False)
        return self._mean_loss(x, y, outputs, sample_weight, training=False), outputs

    def _make_function(self, step_function, **options):  # JAX has an option of its own
        if not is_distributed(self):
            return super()._make_function(step_function, **options)
        self._parts = types.SimpleNamespace(
            differentiate=_compiled(self, self._differentiate),
            evaluate=_compiled(self, self._evaluate),
        )
        return _function_of_iterator(self, step_function)

    def make_predict_function(self, force=False):
        if not is_distributed(self) or (self.predict_function is not None and not force):
            return super().make_predict_function(force)
        self._predictor = types.SimpleNamespace(step=_compiled(self, super().predict_step))
        jit_compile, self.jit_compile = self.jit_compile, False  # before 3.15: all as one program
        super().make_predict_function(force)
        self.jit_compile = jit_compile
        return self.predict_function

    def predict_step(self, *args):
        if not is_distributed(self):
            return super().predict_step(*args)
        return self._predictor.step(*args)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        compiled = keras.backend.backend() == "tensorflow" and self.jit_compile
        if not (compiled or is_distributed(self)):
            return super()._maybe_symbolic_build(iterator, data_batch)
        if iterator is not None:  # its description: drawing a batch would lose it
            data_batch = _describe_batch(iterator._distributed_dataset.element_spec)
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def predict_on_batch(self, x):
        if not is_distributed(self):
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=len(keras.tree.flatten(x)[0]), verbose=0)


def _once_there_is(data):
    """Keeps a step from beginning before its batch is there, or in place of one after the last."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    parts = tf.nest.flatten(data, expand_composites=True)
    return tf.control_dependencies([part for part in parts if tf.is_tensor(part)])


def _compiled(model, function):
    """A part of a replica's step, compiled by XLA where the model is."""
    import tensorflow as tf

    # A TPU compiles the whole step by itself.
    on_tpu = isinstance(model.distribute_strategy, tf.distribute.TPUStrategy)
    if not model.jit_compile or model.run_eagerly or on_tpu:
        return function
    return tf.function(function, jit_compile=True, reduce_retracing=True, autograph=False)


def _count_images(x):
    """Images that this replica has of the batch, as a float; it may have none."""
    import tensorflow as tf

    first = next(part for part in keras.tree.flatten(x) if part is not None)
    return tf.cast(tf.shape(first)[0], "float32")


def _at_least_one(data):
    """A batch, or one image of zeros for none: oneDNN has no gradient of a product with nothing."""
    import tensorflow as tf

    def fill(part):
        if part.shape.rank == 0 or part.shape[0]:
            return part
        one = tf.concat([[1], tf.shape(part)[1:]], axis=0)
        return tf.cond(tf.size(part) > 0, lambda: part, lambda: tf.zeros(one, part.dtype))

    return tf.nest.map_structure(fill, data)


def _first(images, outputs):
    """Outputs without those of what `_at_least_one` filled in."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda part: part[: tf.cast(images, "int32")], outputs)


def _sum_over_replicas(values: list) -> list:
    """Sums of what each replica has, such as gradients; `None` stays where there is none."""
    import tensorflow as tf

    known = [value for value in values if value is not None]
    context = tf.distribute.get_replica_context()
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, known))
    return [value if value is None else next(sums) for value in values]


# Far apart: a layer's seed is below 1e9.
_SEEDS_APART = 1_000_000_007


@contextlib.contextmanager
def _own_random_numbers(model):
    """Lets this replica draw other numbers than the others, from states that stay the same."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    states = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
    shift = [tf.cast(replica, "int64") * _SEEDS_APART, 0]
    for state in states:
        state.assign(state + tf.cast(shift, state.dtype))
    yield
    for state in states:
        state.assign(state - tf.cast(shift, state.dtype))


@contextlib.contextmanager
def _local_updates(optimizer):
    """Makes an optimizer take gradients that are summed over replicas already.

    Every replica then does the same to its own copy of the variables, and nothing is exchanged:
    the way that TensorFlow calls "no merge call". What the optimizer does around it, such as
    counting its steps, stays as it is.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    if "_backend_apply_gradients" not in vars(optimizer):
        vars(optimizer)["_backend_apply_gradients"] = _LocalUpdate(optimizer)
    update = vars(optimizer)["_backend_apply_gradients"]
    update.depth += 1  # replicas take turns inside one another
    try:
        yield
    finally:
        update.depth -= 1


class _LocalUpdate:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.depth = 0

    def __call__(self, gradients, variables):
        optimizer = self.optimizer
        apply = type(optimizer)._backend_apply_gradients
        if not self.depth:
            return apply(optimizer, gradients, variables)
        import tensorflow as tf

        extended = tf.distribute.get_strategy().extended
        with (
            _replaced(extended, "_use_merge_call", lambda: False),
            _replaced(optimizer, "_all_reduce_sum_gradients", list),
        ):
            return apply(optimizer, gradients, variables)


@contextlib.contextmanager
def _replaced(instance, name: str, function):
    """An instance with one method replaced."""
    vars(instance)[name] = function
    try:
        yield
    finally:
        del vars(instance)[name]


def _skipping(model, function):
    """The train function, that first draws the batches that are to be left out."""

    def run(iterator):
        if not model._batches_to_skip:
            return function(iterator)
        for _ in range(model.steps_per_execution):
            next(iterator)
        model._batches_to_skip -= model.steps_per_execution
        return model.get_metrics_result()

    return run


def _describe_batch(spec):
    """Keras's description of a batch that is spread over replicas."""
    import tensorflow as tf

    def describe(part):
        part = getattr(part, "_value_specs", (part,))[0]  # of the first replica
        if part.shape.rank is None:
            raise ValueError(
                f"The batches of the dataset must have a known number of axes. Received: {spec}. "
                "Map them through `tf.ensure_shape`."
            )
        return keras.KerasTensor(tuple(part.shape), dtype=part.dtype.name)

    return tf.nest.map_structure(describe, spec, expand_composites=False)


def _function_of_iterator(model, step_function):
    """From an iterator to the logs of the next `steps_per_execution` steps."""
    import tensorflow as tf

    strategy = model.distribute_strategy

    def one_step(batch):
        logs = strategy.run(step_function, args=(batch,))
        metrics = model.get_metrics_result()  # of all replicas together
        if isinstance(logs, dict) and logs.keys() == metrics.keys():
            return metrics
        return tf.nest.map_structure(lambda log: strategy.reduce("MEAN", log, axis=None), logs)

    def next_step(iterator):
        return one_step(iterator.get_next())

    if not model.run_eagerly:
        next_step = tf.function(next_step, reduce_retracing=True, autograph=False)

    def run(iterator):
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            iterator = _spread(next(iterator), strategy)  # of `train_on_batch`
        logs = next_step(iterator)
        # One call a step: in a loop inside the graph TensorFlow mixes up what replicas exchange.
        for _ in range(1, model.steps_per_execution):
            try:
                logs = next_step(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return logs

    return run


def _spread(batch, strategy):
    """An iterator over one batch, which every worker gives whole, spread over the replicas."""
    import tensorflow as tf

    batch = keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))
    size = len(keras.tree.flatten(batch)[0])
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(size)
    return iter(strategy.experimental_distribute_dataset(dataset))
