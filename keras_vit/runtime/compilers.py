"""The compiler of inference on processors: TensorFlow's graph or XLA, whichever is faster here.

Which one it is depends on the processor, the versions, the dtype, the sizes and the batch, so that
no table of processors is right for long. One block of the model is timed both ways, once, in less
than two seconds after both are compiled. The result is kept in the process and in a file of the
user's cache.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import pathlib
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.files import cache_dir, write_text
from keras_vit.reading import read_json
from keras_vit.runtime.compiled_steps import MOST_SHAPES, log_refusal
from keras_vit.runtime.private_names import Tensor, flatten_layers, supports_xla
from keras_vit.runtime.processors import (
    FreeCores,
    count_cores,
    describe_processor,
    runs_on_processors_alone,
    xla_pays,
)
from keras_vit.runtime.xla_checks import ChangesMeaningError, check_graph

SWITCH = "KERAS_VIT_TIME_COMPILERS"
_FILE = "compilers.json"
_DTYPES = ("float32", "bfloat16")  # float16 has no fast products on most processors
_SECONDS = 0.6  # of timing, after both are compiled
_LONGEST_CALL = 0.15  # seconds: a batch has no more images than that
_LONGEST_FIRST_CALL = 0.5  # seconds for one image: the first call of a process prepares kernels
_MIN_GAIN = 1.05  # XLA must be so much faster: it takes longer to compile
_LEAST_FREE = 0.85  # of the cores, while timing: with less, times are not written to the file
_chosen: dict[str, bool] = {}  # of this process, by key


class Timing(NamedTuple):
    """Seconds of a block, the least of several calls.

    Args:
        graph: With TensorFlow's own executor.
        xla: Compiled by XLA.
    """

    graph: float
    xla: float


def xla_for_inference(model: keras.Model, batch_size: int, measure: bool = True) -> bool:
    """Tells whether a model predicts faster with XLA than without on this machine.

    Args:
        model: A built model.
        batch_size: Images of a batch. Batches from 8 on count as 8, others as the power of two
            below them.
        measure: Whether a block may be timed. The environment variable `KERAS_VIT_TIME_COMPILERS`
            set to `0` forbids it too. Then the rule for training decides, `xla_pays`.

    Returns:
        False on accelerators and under `tf.distribute`, where Keras chooses, and for models that
        XLA cannot compile. `xla_pays` for blocks that are too large to be timed: `time_block`.
    """
    dtype = compute_dtype(model)
    if dtype not in _DTYPES or not runs_on_processors_alone() or not supports_xla(model):
        return False
    block = _find_block(model) if measure and _may_measure() else None
    if block is None:
        return xla_pays(dtype)
    batch = 1 << min(3, max(1, batch_size).bit_length() - 1)
    key = _key(block, dtype, batch)
    if key not in _chosen:
        _chosen[key] = _choose(key, block, batch, dtype)
    return _chosen[key]


def prefers_xla(model: keras.Model) -> bool:
    """Tells whether a model trains faster with XLA than without on this machine."""
    return xla_pays(compute_dtype(model)) and supports_xla(model)


class ChosenByBatch:
    """A predict function that chooses the compiler by the size of its batch.

    A batch that is smaller than the one before is the rest of the data: it runs in the graph unless
    its size is known, because XLA would compile the model again for every rest.

    It gives `predict_step` the inputs alone: XLA takes no strings, such as names of files. What may
    mean something else under XLA runs in the graph, as do sizes after the first three.

    Args:
        model: A built model, which is not compiled to run eagerly.
        measure: As for `xla_for_inference`.
    """

    def __init__(self, model: Any, measure: bool):
        import tensorflow as tf

        self._model, self._measure = model, measure
        options = {"autograph": False, "reduce_retracing": True}
        self._graph = tf.function(lambda x: model.predict_step((x,)), **options)
        self._compiled = tf.function(lambda x: self._graph(x), jit_compile=True, **options)
        self._choices: dict[int, bool] = {}
        self.always: bool | None = None  # XLA or not, as in an earlier run; None chooses
        self._is_refused = False
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
            self._choices[size] = self._choose(x, size)
        if self._choices.get(size) and not self._is_refused and self._are_valid(x):
            try:
                return self._compiled(x)
            except tf.errors.OpError as error:  # InvalidArgument, Unimplemented, Internal
                self._refuse(str(error).partition("\n")[0])
        return self._graph(x)

    def _choose(self, x: Any, size: int) -> bool:
        import tensorflow as tf

        if (
            self._is_refused
            or sum(self._choices.values()) >= MOST_SHAPES
            or tf.config.functions_run_eagerly()
        ):
            return False
        try:
            self._are_valid = check_graph(self._graph.get_concrete_function(x))
        except ChangesMeaningError as reason:
            self._refuse(reason)
            return False
        if self.always is not None:
            return self.always
        return xla_for_inference(self._model, size, self._measure)

    def _refuse(self, reason: object) -> None:
        log_refusal(f"predict of {self._model.name!r}", reason)
        self._is_refused = True


def compute_dtype(model: keras.Model) -> str:
    """The dtype that most of the model computes in: of its blocks, that with most weights.

    Blocks are layers with parts of their own. Others count only in a model without blocks: a head
    of many classes is float32 and can have more weights than all blocks.
    """
    layers = [layer for layer in flatten_layers(model) if not isinstance(layer, keras.Model)]
    weights: dict[str, int] = defaultdict(int)
    for layer in list(filter(_has_parts, layers)) or layers:
        weights[layer.compute_dtype] += sum(math.prod(each.shape) for each in layer.weights)
    return max(weights, key=lambda dtype: weights[dtype])


def _may_measure() -> bool:
    return os.environ.get(SWITCH, "").lower() not in ("0", "false", "no")


def _find_block(model: keras.Model) -> keras.layers.Layer | None:
    """The first of the layers that a model consists of: of one class, with most weights together.

    Layers without parts of their own are left out: a head can have more weights than all blocks.
    """
    groups: dict[type, list[keras.layers.Layer]] = defaultdict(list)
    for layer in flatten_layers(model):
        if not isinstance(layer, keras.Model) and _has_parts(layer) and _input_shape(layer):
            groups[type(layer)].append(layer)
    weights = {kind: sum(x.count_params() for x in group) for kind, group in groups.items()}
    return groups[max(weights, key=lambda kind: weights[kind])][0] if weights else None


def _has_parts(layer: keras.layers.Layer) -> bool:
    return len(list(flatten_layers(layer))) > 1


def _input_shape(layer: keras.layers.Layer) -> tuple[int, ...] | None:
    """The shape of a layer's one input without the batch; `None` if there is no such shape."""
    try:
        shape = layer.input.shape[1:]
    except (AttributeError, ValueError):  # no call, several, or several inputs
        return None
    return None if None in shape else tuple(shape)


def _key(block: keras.layers.Layer, dtype: str, batch: int) -> str:
    """Everything that the choice depends on."""
    import tensorflow as tf

    config = {name: value for name, value in block.get_config().items() if name != "name"}
    about = {
        "processor": describe_processor(),
        "threads": [count_cores(), tf.config.threading.get_intra_op_parallelism_threads()],
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS"),
        "xla": os.environ.get("XLA_FLAGS"),
        "block": [type(block).__name__, repr(_input_shape(block)), repr(config)],
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    version = sys.modules[__name__.partition(".")[0]].__version__  # of a higher level: not imported
    versions = f"keras_vit {version}, tensorflow {tf.__version__}, keras {keras.__version__}"
    return f"{versions}, {dtype}, batch {batch}, {digest}"


def _choose(key: str, block: keras.layers.Layer, batch: int, dtype: str) -> bool:
    """Reads the times of a block from the cache, or measures them."""
    try:
        path = cache_dir() / _FILE
    except OSError:  # no home directory: this process alone knows
        path = None
    known = _read(path) if path else {}
    if key not in known:
        free = FreeCores()
        timing = time_block(block, batch)
        if timing is None:
            return xla_pays(dtype)
        known = {**known, key: timing}
        if path and free.count() >= _LEAST_FREE * count_cores():
            _write(path, known)
    return known[key].graph >= _MIN_GAIN * known[key].xla


def _read(path: pathlib.Path) -> dict[str, Timing]:
    """The times in a file; none if there is no file or if it is damaged."""
    if not path.is_file():
        return {}
    try:
        content = read_json(path)
        times = {str(key): Timing(*map(float, value)) for key, value in content.items()}
        if not all(0 < seconds < 60 for timing in times.values() for seconds in timing):
            raise ValueError("seconds outside of (0, 60)")
    except OSError:  # no file, or none that this user may read
        return {}
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        warnings.warn(
            f"The times of compilers in {path} cannot be read ({error}); measuring again.",
            stacklevel=2,
        )
        return {}
    return times


def _write(path: pathlib.Path, times: dict[str, Timing]) -> None:
    try:
        write_text(path, json.dumps(times, indent=1) + "\n")
    except OSError:  # a home directory that is read-only: this process alone knows
        return


def time_block(
    block: keras.layers.Layer, batch: int, clock: Callable[[], float] = time.perf_counter
) -> Timing | None:
    """Times a layer in the graph and with XLA, in turns.

    All calls together take less than 2 s, if a compiled call is not slower than an eager one: two
    eager calls of one image, the first at most 0.5 s, then calls of 0.15 s. Compiling comes on top,
    which takes as long for large images as for small ones. Of a layer whose first call takes longer
    than 0.5 s, there is only that call.

    Args:
        block: A layer of a functional model, with one input.
        batch: Images of a batch. Fewer are taken if they take longer than 0.15 s in one call.
        clock: Seconds, from any start.

    Returns:
        The times of a batch; `None` for a layer that takes longer than 0.15 s for one image.
    """
    import tensorflow as tf

    shape = (1, *(_input_shape(block) or ()))
    values = np.random.default_rng(0).normal(size=shape).astype("float32")
    image = tf.cast(tf.constant(values), block.compute_dtype)

    def run(x: Tensor) -> Any:
        return block(x, training=False)

    seconds = _time(lambda: run(image), clock)
    if seconds <= _LONGEST_FIRST_CALL:
        seconds = min(seconds, _time(lambda: run(image), clock))
    images = min(batch, int(_LONGEST_CALL / max(seconds, 1e-6)))
    if not images:
        return None
    inputs = tf.repeat(image, images, axis=0)
    functions = [tf.function(run, jit_compile=xla, autograph=False) for xla in (False, True)]
    return Timing(*_take_turns([functools.partial(f, inputs) for f in functions], clock))


def _take_turns(calls: list[Callable[[], Any]], clock: Callable[[], float]) -> list[float]:
    """Seconds of each call, the mean of the three fastest, after a first one that compiles."""
    for call in calls:
        _time(call, clock)
    seconds: list[list[float]] = [[] for _ in calls]
    end = clock() + _SECONDS
    while len(seconds[0]) < 2 or (clock() < end and len(seconds[0]) < 50):
        for call, times in zip(calls, seconds, strict=True):
            times.append(_time(call, clock))
    return [float(np.mean(sorted(times)[:3])) for times in seconds]


def _time(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    keras.tree.flatten(call())[0].numpy()  # waits for the result
    return clock() - begin
