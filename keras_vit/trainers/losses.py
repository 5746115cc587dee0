"""Checks that a loss fits the outputs of a model and the form of its labels.

Keras computes a number in each of these cases, or fails deep inside: a cross-entropy that takes
probabilities gives NaN on logits.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.trainers.private_names import call_of

_SPARSE = ("SparseCategoricalCrossentropy",)
_ONE_HOT = ("CategoricalCrossentropy", "CategoricalFocalCrossentropy")
_BINARY = ("BinaryCrossentropy", "BinaryFocalCrossentropy")


def takes_integers(model: Any) -> bool:
    """Tells whether a model was compiled with a loss that takes integer labels."""
    return _name(_only(getattr(model, "loss", None))) in _SPARSE


def check_loss(model: keras.Model, loss: Any) -> None:
    """Checks that a loss of probabilities is not used on logits.

    Args:
        model: A model. One loss for several outputs is not checked.
        loss: The argument of `compile`: a loss, or a list or dictionary with one for each output.

    Raises:
        ValueError: If an output is logits, which a linear dense layer proves, and its loss takes
            probabilities.
    """
    for output, one in _pairs(model, loss):
        _check_pair(output, one)


def _pairs(model: keras.Model, loss: Any) -> list[tuple[Any, Any]]:
    """Every output with its loss, as Keras pairs them."""
    outputs: list[Any] = list(getattr(model, "outputs", None) or ())
    if isinstance(loss, dict):
        own = getattr(model, "output", None)
        named = own if isinstance(own, dict) else None
        if named is None:
            named = dict(zip(getattr(model, "output_names", ()), outputs, strict=False))
        return [(named[name], one) for name, one in loss.items() if name in named]
    if isinstance(loss, list | tuple):
        return list(zip(outputs, loss, strict=False))
    return [(outputs[0], loss)] if len(outputs) == 1 else []


def _only(loss: Any) -> Any:
    """A loss, also of a list or dictionary with one."""
    parts = list(loss.values()) if isinstance(loss, dict) else loss
    return parts[0] if isinstance(parts, list | tuple) and len(parts) == 1 else loss


def _check_pair(output: Any, loss: Any) -> None:
    name = _name(loss)
    if name not in (*_SPARSE, *_ONE_HOT, *_BINARY) or not _are_logits(output):
        return
    if getattr(loss, "from_logits", False):
        return
    raise ValueError(
        f"The model returns logits, and {name} takes probabilities unless it is told so: the loss "
        "would be wrong, and soon NaN. Compile with "
        f"keras.losses.{name}(from_logits=True), or build the model with "
        'classifier_activation="softmax".'
    )


def check_labels(loss: Any, labels: Any, outputs: Any) -> None:
    """Checks that labels are integers or one-hot vectors, as the loss takes them.

    Raises:
        ValueError: If they are of the other form.
    """
    shape, expected = getattr(labels, "shape", None), getattr(outputs, "shape", None)
    if shape is None or expected is None or len(expected) != 2 or expected[-1] in (None, 1):
        return
    loss = _only(loss)
    are_vectors = len(shape) == 2 and shape[-1] == expected[-1]
    if are_vectors and _name(loss) in _SPARSE:
        raise ValueError(
            f"The loss {_name(loss)} takes integer labels of shape (B,). Received: shape "
            f"{tuple(shape)}, one-hot vectors. Compile with "
            "CategoricalCrossentropy(from_logits=True), or make integers: train_batches and "
            "eval_batches do so when they are called after `compile`, or with one_hot=False."
        )
    if len(shape) == 1 and _name(loss) in _ONE_HOT:
        raise ValueError(
            f"The loss {_name(loss)} takes one-hot labels of shape (B, {expected[-1]}). Received: "
            f"shape {tuple(shape)}, integers. Compile with "
            "SparseCategoricalCrossentropy(from_logits=True), or make one-hot labels: "
            "keras.utils.to_categorical, or one_hot=True of train_batches."
        )


def _name(loss: Any) -> str:
    """Name of Keras's class of a loss, also of its function and of the string."""
    if isinstance(loss, keras.losses.Loss):
        return type(loss).__name__
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    return name.title().replace("_", "") if "_" in name else name


def _are_logits(output: Any) -> bool:
    layer, _ = call_of(output)
    if isinstance(layer, keras.Model):
        outputs = list(layer.outputs or ())
        return len(outputs) == 1 and _are_logits(outputs[0])
    is_dense = isinstance(layer, keras.layers.Dense)
    return is_dense and layer.activation is keras.activations.linear
