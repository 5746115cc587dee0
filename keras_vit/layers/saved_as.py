"""Names of layers in files of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import keras

Kind = TypeVar("Kind", bound=type[keras.layers.Layer])


def saved_as(name: str) -> Callable[[Kind], Kind]:
    """Makes Keras save the weights of a derived class under the name of another class.

    In `.keras` and `.weights.h5` files the layers of a model are numbered by `__name__` of their
    classes. Blocks of one kind have the same weights as those of another.
    """

    def rename(kind: Kind) -> Kind:
        kind.__name__ = name
        return kind

    return rename
