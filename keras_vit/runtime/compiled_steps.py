"""Training and evaluation steps that XLA compiles where that means the same as TensorFlow's graph.

Only where this package has chosen XLA: `jit_compile=True` compiles whatever the user asked for.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

from keras_vit.runtime.xla_checks import ChangesMeaningError, check_graph, describe

Logs = dict[str, Any]
_LOGGER = logging.getLogger("keras_vit")
# XLA compiles a program for every shape of a batch. Further shapes run in the graph.
MOST_SHAPES = 3


def log_refusal(name: str, reason: object) -> None:
    """Says in one line why XLA was not used, and how to ask for it."""
    _LOGGER.info(
        "%s runs without XLA, which may mean something else: %s. compile(jit_compile=True) uses "
        "XLA all the same.",
        name,
        reason,
    )


def graph_and_xla(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Returns a function as TensorFlow's graph, and the same graph compiled by XLA."""
    import tensorflow as tf

    options = {"autograph": False, "reduce_retracing": True}
    graph = tf.function(function, **options)
    return graph, tf.function(lambda *args: graph(*args), jit_compile=True, **options)


class CompiledSteps:
    """Runs steps of `fit` or `evaluate` with XLA, or as Keras does where XLA may differ.

    A batch whose indices are outside of their range, such as labels outside of the classes, runs
    as in Keras too, which then raises its error.

    Args:
        model: A compiled model whose optimizer and metrics have their variables.
        step: A training or test step of the model.
        as_keras: Keras's function of an iterator for the same step, without XLA.
    """

    def __init__(self, model: Any, step: Callable[[Any], Logs], as_keras: Callable[[Any], Logs]):
        self._model, self._as_keras = model, as_keras
        self._graph, self._compiled = graph_and_xla(step)
        self._checks: dict[str, Callable[..., Any]] = {}  # by description of a batch
        self._shapes: set[tuple[Any, ...]] = set()

    def __call__(self, iterator: Any) -> Logs:
        import tensorflow as tf

        model = self._model
        eager = tf.config.functions_run_eagerly() or tf.distribute.has_strategy()
        if eager or not model._has_variables or not model._chose_xla:
            return self._as_keras(iterator)
        if isinstance(iterator, tf.data.Iterator):
            description = iterator.element_spec
        else:  # of `train_on_batch`
            batch = tf.nest.map_structure(_as_tensor, next(iterator))
            iterator, description = iter([batch]), tf.nest.map_structure(describe, batch)
        if (is_valid := self._check(description)) is None:
            return self._as_keras(iterator)
        logs = None
        for batch in itertools.islice(iterator, model.steps_per_execution):
            logs = self._run(batch, is_valid)
        if logs is None:
            raise StopIteration
        return logs

    def _check(self, description: Any) -> Callable[..., Any] | None:
        """The check of batches that a description fits; `None` if XLA may differ."""
        key = repr(description)
        if key not in self._checks:
            try:
                _check_description(description)
                # Traced once, for any number of images, as in Keras.
                self._checks[key] = check_graph(self._graph.get_concrete_function(description))
                self._compiled.get_concrete_function(description)
            except Exception as error:  # of a user's function: Keras's step raises it again
                self._refuse(error)
                return None
        return self._checks[key]

    def _refuse(self, reason: object) -> None:
        log_refusal(f"The step of {self._model.name!r}", str(reason).partition("\n")[0])
        self._model._chose_xla = self._model.jit_compile = False

    def _run(self, batch: Any, is_valid: Callable[..., Any]) -> Logs:
        import tensorflow as tf

        shapes = tuple(x.shape for x in tf.nest.flatten(batch) if x is not None)
        is_new = shapes not in self._shapes
        too_many = is_new and len(self._shapes) >= MOST_SHAPES
        if too_many or not self._model._chose_xla or not is_valid(batch):
            return self._as_keras(iter([batch]))
        try:
            logs = self._compiled(batch)
        except tf.errors.OpError as error:  # InvalidArgument, Unimplemented, Internal
            if not is_new:
                raise
            # XLA compiles the whole step before it runs: no variable was changed.
            self._refuse(error)
            return self._as_keras(iter([batch]))
        self._shapes.add(shapes)
        return logs


def _as_tensor(part: Any) -> Any:
    import tensorflow as tf

    return None if part is None else tf.convert_to_tensor(part)


def _check_description(description: Any) -> None:
    """Checks that a batch is dense numbers whose shapes are known but for their count."""
    import tensorflow as tf

    for part in tf.nest.flatten(description):
        if part is None:
            continue
        known = isinstance(part, tf.TensorSpec) and part.shape.rank is not None
        if not known or None in part.shape[1:] or part.dtype == tf.string:
            raise ChangesMeaningError(f"batches of {part}")
