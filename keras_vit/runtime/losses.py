"""Checks that losses and metrics fit the outputs of a model and the form of its labels.

Keras computes a number in each of these cases, or fails deep inside: a cross-entropy that takes
probabilities gives NaN on logits, and an AUC of logits has most thresholds in the wrong place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.runtime.private_names import call_of

_SPARSE = ("sparsecategoricalcrossentropy", "sparsecategoricalfocalcrossentropy")
_ONE_HOT = ("categoricalcrossentropy", "categoricalfocalcrossentropy")
_BINARY = ("binarycrossentropy", "binaryfocalcrossentropy")
_CHOSEN = ("ce", "crossentropy")  # Keras chooses one of them when it sees the labels

# Which outputs each loss and metric of Keras takes, by the name of its class or function in small
# letters; a test finds those that are missing. The kinds before "indices" are about an argument.
_TABLE = {
    "from_logits": " ".join((*_SPARSE, *_ONE_HOT, *_BINARY, *_CHOSEN, "auc")),
    "thresholds": "precision recall truepositives truenegatives falsepositives falsenegatives",
    "threshold": "binaryaccuracy binaryiou",
    "probability": "f1score fbetascore",  # a threshold above 0, or none
    "sparse_y_pred": "iou meaniou onehotiou onehotmeaniou",
    "indices": "accuracy",  # the class: of the string Keras makes another
    "probabilities": """kldivergence dice tversky categoricalgeneralizedcrossentropy
        precisionatrecall recallatprecision sensitivityatspecificity specificityatsensitivity""",
    "any": """loss ctc circle categoricalhinge hinge squaredhinge huber logcosh logcosherror poisson
        cosinesimilarity meanabsoluteerror meanabsolutepercentageerror meansquarederror
        meansquaredlogarithmicerror rootmeansquarederror concordancecorrelation pearsoncorrelation
        r2score categoricalaccuracy sparsecategoricalaccuracy topkcategoricalaccuracy
        sparsetopkcategoricalaccuracy metric mean meanmetricwrapper sum""",
}
_TAKES = {name: kind for kind, names in _TABLE.items() for name in names.split()}

# Layers and operations whose outputs are logits if their inputs are.
_KEEP = """activation activityregularization add average averagepooling2d cast concatenate copy
    cropping2d divide dropout expanddims flatten getitem globalaveragepooling1d
    globalaveragepooling2d identity max maximum mean median min minimum moveaxis multiply negative
    permute ravel repeatvector rescaling reshape resize resizemaps resizing spatialdropout2d split
    squeeze stack subtract sum swapaxes take transpose truedivide upsampling2d zeropadding2d"""


def takes_integers(model: Any) -> bool:
    """Tells whether a model was compiled with a loss that takes integer labels."""
    return _name(_only(getattr(model, "loss", None))) in _SPARSE


def check_loss(model: keras.Model, loss: Any) -> None:
    """Checks that a loss of probabilities is not used on logits.

    Args:
        model: A model.
        loss: The argument of `compile`: a loss, or a list or dictionary with one for each output.

    Raises:
        ValueError: If an output is logits, which its layers prove, and its loss takes
            probabilities.
    """
    _map_outputs(model, loss, _check_loss)


def check_metrics(model: keras.Model, loss: Any, metrics: Any) -> Any:
    """Checks that metrics of probabilities are not used on logits.

    Args:
        model: A model.
        loss: The argument of `compile`. A linear output with a loss of regression, or of margins,
            is no logits.
        metrics: The argument of `compile`: a list, or a list or dictionary of them for each output.

    Returns:
        The metrics, with the accuracy of a single logit, for which Keras has no class, in place of
        "accuracy": a logit above 0 is a probability above 0.5.

    Raises:
        ValueError: If an output is logits, and a metric takes probabilities.
    """
    of_scores: list[Any] = []
    _map_outputs(model, loss, lambda output, one: _note_scores(of_scores, output, one))

    def check(output: Any, metric: Any) -> Any:
        if any(output is other for other in of_scores) or not _are_logits(output):
            return metric
        if isinstance(metric, str) and metric.lower() in ("accuracy", "acc"):
            return _accuracy_of_logit(model, metric) if output.shape[-1] == 1 else metric
        _check_metric(metric)
        return metric

    return _map_outputs(model, metrics, check)


def _map_outputs(model: keras.Model, given: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Applies a function to every output and each of its losses or metrics, paired as by Keras."""
    outputs: list[Any] = list(getattr(model, "outputs", None) or ())
    if isinstance(given, dict) and len(outputs) != 1:
        named = getattr(model, "output", None)
        if not isinstance(named, dict):
            named = dict(zip(getattr(model, "output_names", ()), outputs, strict=False))
        return {
            name: _map(one, [named[name]] if name in named else [], change)
            for name, one in given.items()
        }
    if isinstance(given, list | tuple) and len(given) == len(outputs):
        parts = zip(given, outputs, strict=True)
        return [_map(one, [output], change) for one, output in parts]
    return _map(given, outputs, change)


def _map(given: Any, outputs: list[Any], change: Callable[[Any, Any], Any]) -> Any:
    if isinstance(given, dict):
        return {name: _map(one, outputs, change) for name, one in given.items()}
    if isinstance(given, list | tuple):
        return [_map(one, outputs, change) for one in given]
    for output in outputs:
        given = change(output, given)
    return given


def _only(loss: Any) -> Any:
    """A loss, also of a list or dictionary with one."""
    parts = list(loss.values()) if isinstance(loss, dict) else loss
    return parts[0] if isinstance(parts, list | tuple) and len(parts) == 1 else loss


def _note_scores(of_scores: list[Any], output: Any, loss: Any) -> Any:
    if _TAKES.get(_name(loss)) == "any":
        of_scores.append(output)
    return loss


def _check_loss(output: Any, loss: Any) -> Any:
    name = _name(loss)
    takes = _TAKES.get(name, "any")
    if takes == "any" or not _are_logits(output) or _config(loss).get("from_logits"):
        return loss
    activations = 'build the model with classifier_activation="softmax" (or "sigmoid")'
    if takes == "probabilities":
        advice = f"It has no `from_logits`: {activations}, or end it with keras.layers.Softmax()."
    else:
        kinds = (_SPARSE[0], _ONE_HOT[0], _BINARY[0]) if name in _CHOSEN else (name,)
        names = [_public_name(keras.losses, kind) for kind in kinds]
        choices = " or ".join(f"keras.losses.{each}(from_logits=True)" for each in names)
        advice = f"Compile with {choices}, or {activations}."
    shown = repr(loss) if name in _CHOSEN else _public_name(keras.losses, name)
    raise ValueError(
        f"The model returns logits, and {shown} takes probabilities unless it is told so: the loss "
        f"would be wrong, and soon NaN. {advice}"
    )


def _check_metric(metric: Any) -> None:
    if isinstance(metric, str):
        try:
            metric = keras.metrics.get(metric)
        except (TypeError, ValueError):  # Keras says so itself
            return
    name = _name(metric)
    takes = _TAKES.get(name, "any")
    if takes == "any":
        return
    shown, config = _public_name(keras.metrics, name), _config(metric)
    call, cuts = f"keras.metrics.{shown}", config.get("thresholds")
    cuts_at_zero = config.get("top_k") or (cuts is not None and not np.any(cuts))
    is_right, advice = {
        "from_logits": (config.get("from_logits"), f"{call}(from_logits=True)"),
        "thresholds": (
            cuts_at_zero,
            f"{call}(thresholds=0.0): a logit of 0 is a probability of 0.5",
        ),
        "threshold": (not config.get("threshold", 0.5), f"{call}(threshold=0.0)"),
        "probability": (config.get("threshold") is None, f"{call}(threshold=None)"),
        "sparse_y_pred": (not config.get("sparse_y_pred"), f"{call}(..., sparse_y_pred=False)"),
        "indices": (False, '"accuracy"'),
        "probabilities": (False, "a model that ends in keras.layers.Softmax() or in a sigmoid"),
    }[takes]
    if not is_right:
        kind = "class indices" if takes in ("indices", "sparse_y_pred") else "probabilities"
        raise ValueError(
            f"The model returns logits, and the metric {shown} takes {kind}: its number would be "
            f"wrong. Use {advice}; or build the model with "
            'classifier_activation="softmax" (or "sigmoid").'
        )


def _accuracy_of_logit(model: keras.Model, name: str) -> keras.metrics.Metric:
    strategy = getattr(model, "distribute_strategy", None)  # of TensorFlow: owns its variables
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        return keras.metrics.BinaryAccuracy(name, threshold=0.0)


def check_labels(loss: Any, labels: Any, outputs: Any) -> None:
    """Checks that labels are integers or one-hot vectors, as the loss takes them.

    Raises:
        ValueError: If they are of the other form.
    """
    shape, expected = getattr(labels, "shape", None), getattr(outputs, "shape", None)
    if shape is None or expected is None or len(expected) != 2 or expected[-1] in (None, 1):
        return
    loss = _only(loss)
    name = _public_name(keras.losses, _name(loss))
    are_vectors = len(shape) == 2 and shape[-1] == expected[-1]
    if are_vectors and _name(loss) in _SPARSE:
        raise ValueError(
            f"The loss {name} takes integer labels of shape (B,). Received: shape "
            f"{tuple(shape)}, one-hot vectors. Compile with "
            "CategoricalCrossentropy(from_logits=True), or make integers: train_batches and "
            "eval_batches do so when they are called after `compile`, or with one_hot=False."
        )
    if len(shape) == 1 and _name(loss) in _ONE_HOT:
        raise ValueError(
            f"The loss {name} takes one-hot labels of shape (B, {expected[-1]}). Received: "
            f"shape {tuple(shape)}, integers. Compile with "
            "SparseCategoricalCrossentropy(from_logits=True), or make one-hot labels: "
            "keras.utils.to_categorical, or one_hot=True of train_batches."
        )


def _name(given: Any) -> str:
    """Name of Keras's class of a loss or metric, or of its function or string, in small letters."""
    if isinstance(given, str) and given not in _CHOSEN:
        try:
            given = keras.losses.get(given)
        except (TypeError, ValueError):  # Keras says so itself
            return ""
    if isinstance(given, str):
        return given.lower()
    kind = given if callable(given) and hasattr(given, "__name__") else type(given)
    if str(getattr(kind, "__module__", "")).partition(".")[0] != "keras":
        return ""  # a user's own, whose name says nothing
    return kind.__name__.replace("_", "").lower()


def _config(given: Any) -> dict[str, Any]:
    """Arguments of one of Keras's losses or metrics; none of a function."""
    return given.get_config() if hasattr(given, "get_config") else {}


def _public_name(module: Any, name: str) -> str:
    return next((key for key in vars(module) if key.lower() == name), name)


def _are_logits(output: Any) -> bool:
    """Tells whether layers prove that an output is logits."""
    layer, node = call_of(output)
    if isinstance(layer, keras.Model):
        inner = list(layer.outputs or ()) if hasattr(layer, "outputs") else []
        index = next((i for i, other in enumerate(node.outputs) if other is output), None)
        return index is not None and index < len(inner) and _are_logits(inner[index])
    if isinstance(layer, keras.layers.TimeDistributed):
        layer = layer.layer
        if isinstance(layer, keras.Model):
            return len(layer.outputs or ()) == 1 and _are_logits(layer.outputs[0])
    activation = getattr(layer, "activation", keras.activations.linear)
    if activation is not keras.activations.linear:
        return False
    if isinstance(layer, _STARTS):
        return True
    is_kept = type(layer).__name__.lower() in _KEEP.split()
    return is_kept and bool(node.input_tensors) and all(map(_are_logits, node.input_tensors))


_STARTS = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.Conv2DTranspose,
)
