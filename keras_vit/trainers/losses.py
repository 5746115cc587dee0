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
    return _name(getattr(model, "loss", None)) in _SPARSE


def check_loss(model: keras.Model, loss: Any) -> None:
    """Checks that a loss of probabilities is not used on logits.

    Args:
        model: A model with one output; nothing is known of others.
        loss: The argument of `compile`.

    Raises:
        ValueError: If the model returns logits, which a linear dense layer at its output proves,
            and the loss takes probabilities.
    """
    name = _name(loss)
    if name not in (*_SPARSE, *_ONE_HOT, *_BINARY) or not _returns_logits(model):
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


def _returns_logits(model: keras.Model) -> bool:
    outputs: list[Any] = list(getattr(model, "outputs", None) or ())
    if len(outputs) != 1:
        return False
    layer, _ = call_of(outputs[0])
    if isinstance(layer, keras.Model):
        return _returns_logits(layer)
    is_dense = isinstance(layer, keras.layers.Dense)
    return is_dense and layer.activation is keras.activations.linear
