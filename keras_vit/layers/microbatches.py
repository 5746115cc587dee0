"""Large batches in little memory."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.checks import check_positive

Tensor = Any  # of TensorFlow


@keras.saving.register_keras_serializable("keras_vit")
class Microbatches(keras.layers.Layer):
    """Runs a model in parts of a batch, whose activations are not kept for the gradient.

    The gradient runs the model again, part by part, and adds up what each part gives (gradient
    cache, https://arxiv.org/abs/2101.06983). A contrastive loss thereby sees a large batch, with
    the memory of a part and a second forward pass. Random numbers are those of the first pass. The
    gradient of an embedding table is dense. Needs the TensorFlow backend.

    Args:
        model: A model with one input and one output, whose outputs of an example do not depend on
            the other examples.
        size: Examples of a part. The last part is filled with examples that do not count.

    Call arguments:
        x: Tensor of shape `(B, ...)`, as the model takes it.

    Returns:
        Tensor of shape `(B, ...)`, as the model gives it.

    Raises:
        ValueError: If `size` is no positive integer, the model has several inputs or outputs, or
            Keras another backend.
    """

    def __init__(self, model: keras.Model, size: int, **kwargs: Any):
        super().__init__(**kwargs)
        check_positive("size", size)
        if len(model.inputs) != 1 or len(model.outputs) != 1:
            raise ValueError(
                "Microbatches take a model with one input and one output. Received: "
                f"{len(model.inputs)} and {len(model.outputs)} of {model.name!r}."
            )
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Microbatches need the TensorFlow backend. Received: "
                f"{keras.backend.backend()}. Train with the whole batch, or set "
                "KERAS_BACKEND=tensorflow."
            )
        self.model, self.size = model, size

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        if not training:
            return self.model(x, training=False)
        return _in_parts(self.model, self.size)(keras.ops.convert_to_tensor(x))

    def compute_output_spec(self, x: keras.KerasTensor, training: Any = None) -> keras.KerasTensor:
        output = self.model.outputs[0]
        return keras.KerasTensor((x.shape[0], *output.shape[1:]), dtype=output.dtype)

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model, "size": self.size}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Microbatches:
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("model")), **config)


def _in_parts(model: keras.Model, size: int) -> Any:
    """The model as a function of a batch with a gradient of its own."""
    import tensorflow as tf

    seeds = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]

    @tf.custom_gradient
    def run(x: Tensor) -> Any:
        before = [tf.identity(state.value) for state in seeds]
        outputs = _forward(model, x, size)

        def gradient(upstream: Tensor, variables: Any = None) -> Any:
            after = [state.value + 0 for state in seeds]
            _assign(seeds, before)  # the random numbers of the forward pass
            of_x, sums = _backward(model, x, upstream, size, list(variables or ()))
            _assign(seeds, after)
            return of_x if variables is None else (of_x, sums)

        return outputs, gradient

    return run


def _split(x: Tensor, size: int) -> Tensor:
    """Parts of a batch, of shape `(parts, size, ...)`; the last repeats its first example."""
    import tensorflow as tf

    count = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
    parts = -(-count // size)
    positions = tf.range(parts * size)
    if x.shape[0] is None or x.shape[0] % size:
        x = tf.gather(x, tf.where(positions < count, positions, 0))
    return tf.reshape(x, (parts, size, *x.shape[1:]))


def _forward(model: keras.Model, x: Tensor, size: int) -> Tensor:
    import tensorflow as tf

    shape = model.outputs[0].shape[1:]
    parts = _split(x, size)
    dtype = tf.as_dtype(model.outputs[0].dtype)
    outputs = tf.map_fn(
        lambda part: model(part, training=True),
        parts,
        fn_output_signature=tf.TensorSpec((size, *shape), dtype),
        parallel_iterations=1,
    )
    outputs = tf.reshape(outputs, (-1, *shape))
    outputs = outputs[: tf.shape(x)[0]]
    return tf.ensure_shape(outputs, (x.shape[0], *shape))


def _backward(
    model: keras.Model, x: Tensor, upstream: Tensor, size: int, variables: list[Any]
) -> tuple[Any, list[Tensor]]:
    """Gradients of the batch and of variables."""
    import tensorflow as tf

    parts = _split(x, size)
    missing = tf.shape(parts)[0] * size - tf.shape(x)[0]
    padding = [[0, missing], *[[0, 0]] * (len(upstream.shape) - 1)]
    upstream = tf.reshape(tf.pad(upstream, padding), (-1, size, *upstream.shape[1:]))
    is_float = x.dtype.is_floating

    def add(index: Tensor, sums: list[Tensor], of_parts: Any) -> tuple[Any, ...]:
        part = parts[index]
        sources = [*variables, part] if is_float else variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = model(part, training=True)
        found = tape.gradient(outputs, sources, upstream[index], tf.UnconnectedGradients.ZERO)
        if is_float:
            of_parts = of_parts.write(index, found.pop())
        pairs = zip(sums, found, strict=True)
        return index + 1, [total + tf.convert_to_tensor(each) for total, each in pairs], of_parts

    count = tf.shape(parts)[0]
    array = tf.TensorArray(x.dtype, count, element_shape=(size, *x.shape[1:]))
    _, sums, of_parts = tf.while_loop(
        lambda index, *_: index < count,
        add,
        (0, [tf.zeros(each.shape, each.dtype) for each in variables], array),
        parallel_iterations=1,
    )
    if not is_float:
        return None, sums
    of_x = tf.reshape(of_parts.stack(), (-1, *x.shape[1:]))
    return of_x[: tf.shape(x)[0]], sums


def _assign(states: list[Any], values: list[Tensor]) -> None:
    for state, value in zip(states, values, strict=True):
        state.assign(value)
