"""The compiler on processors: TensorFlow's graph or XLA, by a table of measured rules."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.runtime.compiled_steps import MOST_SHAPES, graph_and_xla, log_refusal
from keras_vit.runtime.private_names import flatten_layers, supports_xla
from keras_vit.runtime.processors import onednn_is_on, runs_on_processors_alone
from keras_vit.runtime.xla_checks import ChangesMeaningError, check_graph

SWITCH = "KERAS_VIT_XLA"  # "0": XLA only where `compile(jit_compile=True)` asks for it


# What takes XLA, by the dtype that most of a model computes in, and by whether TensorFlow uses
# oneDNN's kernels, which XLA does not reach. XLA's speed over the graph's is in
# docs/performance.md, "XLA on processors". float16 has no fast products on most processors, and was
# not measured.
RULES: dict[tuple[str, bool], tuple[str, ...]] = {
    ("float32", True): ("predict",),  # 1.01 to 1.36
    ("bfloat16", True): (),  # 0.55 to 1.03
    ("float32", False): ("predict", "fit"),
    ("bfloat16", False): ("predict", "fit"),
}
_NARROW = 256  # filters: XLA takes 1.1 to 1.7 times as long as oneDNN, for 768 0.9 times


def prefers_xla(model: keras.Model, use: str) -> bool:
    """Tells whether a model is to be compiled by XLA on this machine.

    Args:
        model: A built model.
        use: `"predict"` or `"fit"`.

    Returns:
        What `RULES` say. False on accelerators and under `tf.distribute`, where Keras chooses; for
        models that XLA cannot compile, or computes slowly beside oneDNN; and where the environment
        variable `KERAS_VIT_XLA` is `0`.
    """
    if os.environ.get(SWITCH) == "0" or not runs_on_processors_alone() or not supports_xla(model):
        return False
    if onednn_is_on() and any(map(_is_slow_in_xla, flatten_layers(model))):
        return False
    return use in RULES.get((compute_dtype(model), onednn_is_on()), ())


def _is_slow_in_xla(x: keras.Layer) -> bool:
    """Tells of convolutions of dense heads: XLA computes depthwise ones 80 times as slowly."""
    is_plain = type(x) is keras.layers.Conv2D and x.kernel_size == (3, 3)
    return (is_plain and x.filters <= _NARROW) or isinstance(x, keras.layers.DepthwiseConv2D)


class ChosenByBatch:
    """A predict function that runs in the graph where XLA would compile too often or mean another.

    A batch that is smaller than the one before is the rest of the data: it runs in the graph unless
    its size is known, because XLA would compile the model again for every rest.

    It gives `predict_step` the inputs alone: XLA takes no strings, such as names of files. What may
    mean something else under XLA runs in the graph, as do sizes after the first three.

    Args:
        model: A built model, which is not compiled to run eagerly.
    """

    def __init__(self, model: Any):
        self._model = model
        self._graph, self._compiled = graph_and_xla(lambda x: model.predict_step((x,)))
        self._choices: dict[int, bool] = {}
        self.prefers_xla = prefers_xla(model, "predict")
        self._are_valid: Callable[..., Any] = lambda x: True
        self.start()

    def start(self) -> None:
        """Begins with other data, of which no batch was seen."""
        self._size_before = 0

    def __call__(self, data: list[Any]) -> Any:
        outputs = [self._predict(batch) for batch in data]  # of `steps_per_execution`
        return keras.tree.map_structure(lambda *parts: keras.ops.concatenate(parts), *outputs)

    def _predict(self, batch: Any) -> Any:
        import tensorflow as tf

        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        x = self._model.select_inputs(x)
        size = keras.tree.flatten(x)[0].shape[0]
        is_rest, self._size_before = size < self._size_before, size
        if size not in self._choices and not is_rest:
            self._choices[size] = self._choose(x)
        if self.prefers_xla and self._choices.get(size) and self._are_valid(x):
            try:
                return self._compiled(x)
            except tf.errors.OpError as error:  # InvalidArgument, Unimplemented, Internal
                self._refuse(str(error).partition("\n")[0])
        return self._graph(x)

    def _choose(self, x: Any) -> bool:
        import tensorflow as tf

        if (
            not self.prefers_xla
            or sum(self._choices.values()) >= MOST_SHAPES
            or tf.config.functions_run_eagerly()
        ):
            return False
        try:
            self._are_valid = check_graph(self._graph.get_concrete_function(x))
        except ChangesMeaningError as reason:
            self._refuse(reason)
        return self.prefers_xla

    def _refuse(self, reason: object) -> None:
        log_refusal(f"predict of {self._model.name!r}", reason)
        self.prefers_xla = False


def compute_dtype(model: keras.Model) -> str:
    """The dtype that most of the model computes in: of its blocks, that with most weights.

    Blocks are layers with parts of their own. Others count only in a model without blocks: a head
    of many classes is float32 and can have more weights than all blocks.
    """
    layers = [layer for layer in flatten_layers(model) if not isinstance(layer, keras.Model)]
    weights: dict[str, int] = defaultdict(int)
    blocks = [layer for layer in layers if len(list(flatten_layers(layer))) > 1]
    for layer in blocks or layers:
        weights[layer.compute_dtype] += sum(math.prod(each.shape) for each in layer.weights)
    return max(weights, key=lambda dtype: weights[dtype])
