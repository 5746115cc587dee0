"""`fit` on several replicas: corrections of Keras 3 under `tf.distribute`.

Without a strategy Keras trains as usual, except for the last point. With a strategy, Keras 3 has
these faults. `tests/runtime/test_distributed.py` fails when Keras corrects one, so that the
correction here can go.

- `jit_compile=True` compiles all devices as one program, which fails: here each replica's forward
  and backward pass is compiled, and the all-reduce and the update are outside.
- With several workers, Keras builds the model from values that are distributed over replicas, and
  averages logs over an axis that they do not have.
- Gradients are clipped before they are summed over replicas, and accumulated inside a condition
  that must not communicate: here gradients are summed first, then every replica updates its own
  copy of the variables in the same way, without communication.
- Replicas with unequal parts of a batch have equal weight: here every image has equal weight.
- Replicas draw the same random numbers: here each draws its own.

`compile(all_reduce_dtype="bfloat16")` halves the bytes of the gradients that replicas exchange.

With or without a strategy, where a dataset of unknown length and static shapes ends, TensorFlow
runs the parts of a step that do not need a batch once more (the step counter, weight decay, moving
averages). Here a step depends on its batch, and variables that XLA could not create in such a step
are created before.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.runtime.compiled_steps import CompiledSteps, graph_and_xla, log_refusal
from keras_vit.runtime.private_names import Tensor
from keras_vit.runtime.xla_checks import ChangesMeaningError, accept_all, check_graph

if TYPE_CHECKING:
    from keras import Model as Base
else:
    Base = object  # `keras.Model` comes after this class in the bases of `keras_vit.Model`

Step = Callable[..., Any]  # a function of a batch or of an iterator
Logs = dict[str, Any]


def is_distributed(model: keras.Model) -> bool:
    """Tells whether a model was made under a strategy of `tf.distribute`."""
    if keras.backend.backend() != "tensorflow":
        return False
    return model._distribute_strategy is not None


class DistributedTraining(Base):
    """Methods of `keras_vit.Model` that train and evaluate under `tf.distribute`."""

    # Attributes of keras.Model.
    jit_compile: bool
    outputs: list[Tensor]
    steps_per_execution: int
    train_function: Any
    check_process: Callable[[], None]  # of keras_vit.Model
    _batches_to_skip = 0
    _describing: int | None = None  # the thread that asks for the shapes of the outputs alone
    _all_reduce_dtype: str | None = None  # of `compile`
    _has_variables = False  # whether `_symbolic_build` made those of optimizer and metrics
    _chose_xla = False  # whether `jit_compile` is the choice of this package

    def skip_batches(self, count: int) -> None:
        """Makes `fit` draw its next batches without training on them.

        A resumed run thereby continues at the batch where the first run stopped. Batch callbacks
        are called for skipped batches too, with unchanged metrics.

        Args:
            count: Batches, a multiple of `steps_per_execution`.

        Raises:
            ValueError: If `count` is not a multiple of `steps_per_execution`.
        """
        if count % self.steps_per_execution:
            raise ValueError(
                "The number of skipped batches must be a multiple of `steps_per_execution`. "
                f"Received: count={count}, steps_per_execution={self.steps_per_execution}."
            )
        self._batches_to_skip = count

    def make_train_function(self, force: bool = False) -> Step:
        self.check_process()  # of `train_on_batch`
        if self.train_function is not None and not force:
            return self.train_function
        super().make_train_function(force)
        if keras.backend.backend() == "tensorflow":
            self.train_function = _skip_batches(self, self.train_function)
        return self.train_function

    def train_step(self, *args: Any) -> Logs:
        with depend_on(args):
            return self._train_replica(*args) if is_distributed(self) else super().train_step(*args)

    def _train_replica(self, data: Any) -> Logs:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        images = _count_images(x)
        share = images / _sum_over_replicas([images])[0]
        with _own_random_numbers(self):
            loss, outputs, gradients = self._parts.differentiate(_at_least_one(data), share)
        outputs = _first(images, outputs)
        self._loss_tracker.update_state(loss, sample_weight=images)
        gradients = self._as_variables(_sum_over_replicas(gradients))
        with _local_updates(self.optimizer):
            self.optimizer.apply(gradients, self.trainable_variables)
        return self.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    def _differentiate(self, data: Any, share: Tensor) -> tuple[Tensor, Any, list[Any]]:
        """Computes one replica's mean loss, outputs, and the gradients of its share of the loss.

        The gradients have the dtype in which they are exchanged.
        """
        import tensorflow as tf

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self._parts.train(x)
            loss = self._mean_loss(x, y, outputs, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(scaled, self.trainable_variables)
        return loss, outputs, self._for_exchange(gradients)

    def _for_exchange(self, gradients: list[Any]) -> list[Any]:
        """Rounds dense gradients to the dtype of `compile(all_reduce_dtype=...)`.

        TensorFlow gathers sparse ones, of embeddings, and cannot do so in bfloat16.
        """
        import tensorflow as tf

        dtype = self._all_reduce_dtype
        if dtype is None or self.distribute_strategy.num_replicas_in_sync == 1:
            return gradients
        return [tf.cast(g, dtype) if isinstance(g, tf.Tensor) else g for g in gradients]

    def _as_variables(self, gradients: list[Any]) -> list[Any]:
        """Casts gradients to the dtypes of their variables, after the exchange."""
        import tensorflow as tf

        pairs = zip(gradients, self.trainable_variables, strict=True)
        return [g if g is None else tf.cast(g, variable.dtype) for g, variable in pairs]

    def _mean_loss(
        self, x: Any, y: Any, outputs: Any, sample_weight: Any, training: bool
    ) -> Tensor:
        """Computes the mean loss of this replica's images: Keras divides it by the replicas."""
        loss = self._compute_loss(
            x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=training
        )
        replicas = self.distribute_strategy.num_replicas_in_sync
        return keras.ops.sum(loss) * keras.ops.cast(replicas, loss.dtype)

    def test_step(self, *args: Any) -> Logs:
        with depend_on(args):
            return self._test_replica(*args) if is_distributed(self) else super().test_step(*args)

    def _test_replica(self, data: Any) -> Logs:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        images = _count_images(x)
        loss, outputs = self._parts.evaluate(_at_least_one(data))
        outputs = _first(images, outputs)
        self._loss_tracker.update_state(loss, sample_weight=images)
        return self.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    def _evaluate(self, data: Any) -> tuple[Tensor, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self._parts.infer(x)
        return self._mean_loss(x, y, outputs, sample_weight, training=False), outputs

    def _make_function(self, step_function: Step, **options: Any) -> Step:  # options of JAX
        if not is_distributed(self):
            return self._choose_function(step_function, **options)
        parts: dict[str, Step] = {
            "differentiate": self._differentiate,
            "evaluate": self._evaluate,
            "train": lambda inputs: self(inputs, training=True),
            "infer": lambda inputs: self(inputs, training=False),
        }
        losses = keras.tree.flatten(self.loss)
        communicates = any(getattr(loss, "gathers_rows", False) for loss in losses)
        # Where the loss communicates, XLA compiles the model alone, and its gradient.
        for name in ("train", "infer") if communicates else ("differentiate", "evaluate"):
            parts[name] = _compiled(self, parts[name])
        self._parts = types.SimpleNamespace(**parts)
        return _function_of_iterator(self, step_function)

    def _choose_function(self, step_function: Step, **options: Any) -> Step:
        """Makes Keras's function; where XLA was chosen by us, it compiles what means the same."""
        if not self._chose_xla:
            return super()._make_function(step_function, **options)
        with self._without_xla():
            as_keras = super()._make_function(step_function, **options)
        if not self._has_own_steps():
            log_refusal(f"{self.name!r}", "a training or test step of its own")
            return as_keras
        return CompiledSteps(self, step_function, as_keras)

    @contextlib.contextmanager
    def _without_xla(self) -> Iterator[None]:
        jit_compile, self.jit_compile = self.jit_compile, False
        try:
            yield
        finally:
            self.jit_compile = jit_compile

    def make_test_function(self, force: bool = False) -> Step:
        self.check_process()
        return super().make_test_function(force)

    def make_predict_function(self, force: bool = False) -> Step:
        self.check_process()
        if not is_distributed(self) or (self.predict_function is not None and not force):
            return super().make_predict_function(force)
        self._predictor = types.SimpleNamespace(step=_compiled(self, super().predict_step))
        with self._without_xla():  # before 3.15: all as one program
            super().make_predict_function(force)
        return self.predict_function

    def predict_step(self, *args: Any) -> Any:
        if not is_distributed(self):
            return super().predict_step(*args)
        return self._predictor.step(*args)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Creates the variables of optimizer and metrics before TensorFlow traces a step.

        Keras leaves that to the step, and TensorFlow traces a function that creates variables
        twice: the first step of Ti/16 then takes 1.7 times as long.
        """
        alone = not is_distributed(self)
        compiled = keras.backend.backend() == "tensorflow" and self.jit_compile
        described = iterator is not None and self._has_own_steps() and _is_described(iterator)
        if alone and (self.run_eagerly or not (compiled or described)):
            return super()._maybe_symbolic_build(iterator, data_batch)
        try:
            if iterator is not None:  # the description alone: a batch that is drawn would be lost
                data_batch = _describe_batch(iterator._distributed_dataset.element_spec)
            with self.distribute_strategy.scope():
                self._symbolic_build(data_batch=data_batch)
        except Exception:
            if not alone:
                raise
            # Without a strategy Keras traces the step alone. What cannot be described may work
            # there, and what is wrong is told there.
            super()._maybe_symbolic_build(iterator, data_batch)

    def _symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        """As Keras, which runs `call` for the shapes of the outputs alone; here they are known."""
        if keras.backend.backend() != "tensorflow":  # Keras draws a batch there
            return super()._symbolic_build(*args, **kwargs)
        known = all(x.shape[:1] == (None,) and None not in x.shape[1:] for x in self.outputs)
        steps = type(self).compute_loss, type(self).compute_metrics
        if known and all(_is_known(step) for step in steps):
            self._describing = threading.get_ident()
        try:
            super()._symbolic_build(*args, **kwargs)
            self._has_variables = True
        finally:
            self._describing = None

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._describing != threading.get_ident():
            return super().call(inputs, *args, **kwargs)
        images = next(x for x in keras.tree.flatten(inputs) if x is not None)
        size = keras.ops.shape(images)[0]
        outputs = keras.tree.map_structure(
            lambda x: keras.ops.zeros((size, *x.shape[1:]), x.dtype), self._outputs_struct
        )
        one = isinstance(outputs, list | tuple) and len(outputs) == 1
        return outputs[0] if one else outputs  # as Keras

    def _has_own_steps(self) -> bool:
        """Tells whether batches are what Keras expects: steps of a user's own may read others."""
        cls, ours = type(self), DistributedTraining
        return cls.train_step is ours.train_step and cls.test_step is ours.test_step

    def predict_on_batch(self, x: Any) -> Any:
        if not is_distributed(self):
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=len(keras.tree.flatten(x)[0]), verbose=0)


def _is_known(method: Step) -> bool:
    """Tells whether a method is that of this package or of Keras, not a user's own."""
    return method.__module__.partition(".")[0] in ("keras", "keras_vit")


def depend_on(data: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes operations wait for values, in TensorFlow's graphs.

    A training step that depends on its batch does not run after the data ends.
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    parts = tf.nest.flatten(data, expand_composites=True)
    return tf.control_dependencies([part for part in parts if tf.is_tensor(part)])


def _compiled(model: keras.Model, function: Step) -> Step:
    """Compiles a part of a replica's step with XLA, if the model is compiled with XLA.

    Indices of the batch, such as labels, are checked outside of the compiled part, which gives NaN
    for a label outside of the classes: the graph then raises its error.
    """
    import tensorflow as tf

    # A TPU compiles the whole step by itself.
    on_tpu = isinstance(model.distribute_strategy, tf.distribute.TPUStrategy)
    if not model.jit_compile or model.run_eagerly or on_tpu:
        return function
    graph, compiled = graph_and_xla(function)

    def run(*args: Any) -> Any:
        try:
            check = check_graph(graph.get_concrete_function(*args))
        except ChangesMeaningError:  # XLA was asked for
            check = accept_all
        if check is accept_all:
            return compiled(*args)

        def fail() -> Tensor:
            outputs = tf.nest.flatten(graph(*args))  # raises the error of a processor
            text = "Indices of the batch, such as labels, are outside of their range: "
            tf.raw_ops.Assert(condition=False, data=[text, outputs[0]])
            return tf.constant(False)

        with depend_on(tf.cond(check(*args), lambda: tf.constant(True), fail)):
            return compiled(*args)

    return run


def _count_images(x: Any) -> Tensor:
    """Counts the images of this replica, as a float; there may be none."""
    import tensorflow as tf

    first = next(part for part in keras.tree.flatten(x) if part is not None)
    return tf.cast(tf.shape(first)[0], "float32")


def _at_least_one(data: Any) -> Any:
    """Replaces an empty batch by one image of zeros: oneDNN has no gradient of an empty product."""
    import tensorflow as tf

    def fill(part: Tensor) -> Tensor:
        if part.shape.rank == 0 or part.shape[0]:
            return part
        one = tf.concat([[1], tf.shape(part)[1:]], axis=0)
        return tf.cond(tf.size(part) > 0, lambda: part, lambda: tf.zeros(one, part.dtype))

    return tf.nest.map_structure(fill, data)


def _first(images: Tensor, outputs: Any) -> Any:
    """Removes the outputs of the image that `_at_least_one` added."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda part: part[: tf.cast(images, "int32")], outputs)


def _sum_over_replicas(values: list[Any]) -> list[Any]:
    """Sums values over replicas, such as gradients; `None` stays `None`."""
    import tensorflow as tf

    known = [value for value in values if value is not None]
    context = tf.distribute.get_replica_context()
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, known))
    return [value if value is None else next(sums) for value in values]


# Between two replicas: a layer's seed is below 1e9.
_SEED_DISTANCE = 1_000_000_007


@contextlib.contextmanager
def _own_random_numbers(model: keras.Model) -> Iterator[None]:
    """Gives this replica its own random numbers, while the states stay equal on all replicas."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    states = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
    shift = [tf.cast(replica, "int64") * _SEED_DISTANCE, 0]
    for state in states:
        state.assign(state + tf.cast(shift, state.dtype))
    yield
    for state in states:
        state.assign(state - tf.cast(shift, state.dtype))


@contextlib.contextmanager
def _local_updates(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes an optimizer apply gradients that are summed over replicas already.

    Every replica updates its own copy of the variables in the same way, without communication:
    TensorFlow calls this "no merge call". The rest of `optimizer.apply`, such as the step counter,
    is unchanged.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    updates = [
        vars(part).setdefault("_backend_apply_gradients", _LocalUpdate(part))
        for part in (optimizer, *getattr(optimizer, "optimizers", ()))
    ]
    for update in updates:
        update.depth += 1  # replicas of one step can be here at the same time
    try:
        yield
    finally:
        for update in updates:
            update.depth -= 1


class _LocalUpdate:
    """Takes the place of `_backend_apply_gradients` in one optimizer.

    For all threads: a loss scale applies gradients in another thread than that of the replica.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self.optimizer = optimizer
        self.depth = 0

    def __call__(self, gradients: list[Any], variables: list[Any]) -> None:
        optimizer = self.optimizer
        apply = type(optimizer)._backend_apply_gradients
        if not self.depth:
            return apply(optimizer, gradients, variables)
        import tensorflow as tf

        with _without_merge_call(tf.distribute.get_strategy().extended):
            vars(optimizer)["_all_reduce_sum_gradients"] = list
            try:
                return apply(optimizer, gradients, variables)
            finally:
                del vars(optimizer)["_all_reduce_sum_gradients"]


@contextlib.contextmanager
def _without_merge_call(extended: Any) -> Iterator[None]:
    """Lets this thread update variables without a merge call; other threads are not affected.

    Models that train in other threads may share the strategy. The method is replaced in the
    strategy's instance while at least one thread needs it.
    """
    with _MergeCallSwitch.lock:
        switch = vars(extended).setdefault("_use_merge_call", _MergeCallSwitch(extended))
        switch.users.append(threading.get_ident())
    try:
        yield
    finally:
        with _MergeCallSwitch.lock:
            switch.users.remove(threading.get_ident())
            if not switch.users:
                del vars(extended)["_use_merge_call"]


class _MergeCallSwitch:
    """Takes the place of `_use_merge_call` in one strategy."""

    lock = threading.Lock()

    def __init__(self, extended: Any):
        self.extended = extended
        self.users: list[int] = []  # threads that update variables without a merge call

    def __call__(self) -> bool:
        if threading.get_ident() in self.users:
            return False
        return type(self.extended)._use_merge_call(self.extended)


def _skip_batches(model: DistributedTraining, function: Step) -> Step:
    """Makes a train function draw the batches that `skip_batches` set without training."""

    def run(iterator: Iterator[Any]) -> Logs:
        if not model._batches_to_skip:
            return function(iterator)
        for _ in range(model.steps_per_execution):
            next(iterator)
        model._batches_to_skip -= model.steps_per_execution
        return model.get_metrics_result()

    return run


def _is_described(iterator: Any) -> bool:
    """Tells whether the batches are dense, with a known number of axes."""
    import tensorflow as tf

    parts = tf.nest.flatten(iterator._distributed_dataset.element_spec)
    return all(isinstance(part, tf.TensorSpec) and part.shape.rank is not None for part in parts)


def _describe_batch(spec: Any) -> Any:
    """Describes a batch of a distributed dataset as Keras does, with the shapes of one replica."""
    import tensorflow as tf

    def describe(part: Any) -> keras.KerasTensor:
        part = getattr(part, "_value_specs", (part,))[0]  # of the first replica
        if part.shape.rank is None:
            raise ValueError(
                f"The batches of the dataset must have a known number of axes. Received: {spec}. "
                "Map them through `tf.ensure_shape`."
            )
        return keras.KerasTensor(tuple(part.shape), dtype=part.dtype.name)

    return tf.nest.map_structure(describe, spec, expand_composites=False)


def _function_of_iterator(model: keras.Model, step_function: Step) -> Step:
    """Makes a function that runs the steps of one execution and returns their logs."""
    import tensorflow as tf

    strategy = model.distribute_strategy

    def one_step(batch: Any) -> Logs:
        logs = strategy.run(step_function, args=(batch,))
        metrics = model.get_metrics_result()  # of all replicas together
        if isinstance(logs, dict) and logs.keys() == metrics.keys():
            return metrics
        return tf.nest.map_structure(lambda log: strategy.reduce("MEAN", log, axis=None), logs)

    def next_step(iterator: Any) -> Logs:
        return one_step(iterator.get_next())

    if not model.run_eagerly:
        next_step = tf.function(next_step, reduce_retracing=True, autograph=False)

    def run(iterator: Any) -> Logs:
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            iterator = _distribute(next(iterator), strategy)  # of `train_on_batch`
        logs = next_step(iterator)
        # One call per step: in a loop inside the graph, TensorFlow mixes up the all-reduces.
        for _ in range(1, model.steps_per_execution):
            try:
                logs = next_step(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return logs

    return run


def _distribute(batch: Any, strategy: Any) -> Iterator[Any]:
    """Distributes one batch over the replicas; every worker passes the whole batch."""
    import tensorflow as tf

    batch = keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))
    size = len(keras.tree.flatten(batch)[0])
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(size)
    return iter(strategy.experimental_distribute_dataset(dataset))
