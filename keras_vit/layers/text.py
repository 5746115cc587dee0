"""From the tokens of a text to one vector."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.layer import Layer, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class SinusoidalPositions(Layer):
    """Multiplies tokens by the root of their width, and adds sines and cosines of their positions.

    Sections 3.4 and 3.5 of https://arxiv.org/abs/1706.03762, with all sines before all cosines.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, T, D)`, in the type of variables.

    Raises:
        ValueError: If `D` is odd or less than 4.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)  # as learned positions

    def build(self, tokens_shape: Shape) -> None:
        _, length, width = tokens_shape
        if width % 2 or width < 4:
            raise ValueError(
                f"Sines and cosines need an even width of 4 or more. Received: {width}."
            )
        rates = 10_000.0 ** (-np.arange(width // 2) / (width // 2 - 1))
        angles = np.arange(length)[:, None] * rates  # (T, D / 2)
        self._table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[None]

    def call(self, tokens: Tensor) -> Tensor:
        tokens = ops.cast(tokens, self.variable_dtype)
        return tokens * tokens.shape[-1] ** 0.5 + ops.cast(self._table, tokens.dtype)


@keras.saving.register_keras_serializable("keras_vit")
class EndOfTextPooling(Layer):
    """Takes the token at the end of each text, as in CLIP (https://arxiv.org/abs/2103.00020).

    Args:
        end_id: Id of the end of a text, whose first position counts; `None` takes the largest id of
            each text, which it is in CLIP's vocabulary.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        ids: Integer tensor of shape `(B, T)`.

    Returns:
        Float tensor of shape `(B, D)`; zeros for a text without `end_id`.
    """

    def __init__(self, end_id: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.end_id = end_id

    def call(self, tokens: Tensor, ids: Tensor) -> Tensor:
        end = ops.max(ids, axis=1, keepdims=True) if self.end_id is None else self.end_id
        # No ArgMax of integers, which ONNX Runtime lacks on some devices.
        ends = ops.cast(ops.equal(ids, end), "int32")
        first = ops.logical_and(ops.equal(ends, 1), ops.equal(ops.cumsum(ends, axis=1), 1))
        return ops.sum(tokens * ops.cast(first, tokens.dtype)[..., None], axis=1)
