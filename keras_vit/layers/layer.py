"""The base of the layers of this package."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import keras

Tensor = keras.KerasTensor  # symbolic, or one of the backend


class Layer(keras.layers.Layer):
    """A Keras layer whose configuration is the arguments of its constructor.

    The values are those of its attributes of these names, and of the fields of its `options`.
    """

    def get_config(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for kind in type(self).__mro__:
            if issubclass(kind, Layer) and "__init__" in vars(kind):
                names = inspect.getfullargspec(kind.__init__).args[1:]
                fields |= {name: getattr(self, name) for name in names if hasattr(self, name)}
        if hasattr(self, "options"):  # of a block
            fields |= dataclasses.asdict(self.options)
        return {**super().get_config(), **fields}
