"""From the tokens of a text to one vector."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer


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

    def call(self, tokens: keras.KerasTensor, ids: keras.KerasTensor) -> keras.KerasTensor:
        end = ops.max(ids, axis=1, keepdims=True) if self.end_id is None else self.end_id
        # No ArgMax of integers, which ONNX Runtime lacks on some devices.
        ends = ops.cast(ops.equal(ids, end), "int32")
        first = ops.logical_and(ops.equal(ends, 1), ops.equal(ops.cumsum(ends, axis=1), 1))
        return ops.sum(tokens * ops.cast(first, tokens.dtype)[..., None], axis=1)

    def compute_output_spec(
        self, tokens: keras.KerasTensor, ids: keras.KerasTensor
    ) -> keras.KerasTensor:
        return keras.KerasTensor((tokens.shape[0], tokens.shape[2]), dtype=self.compute_dtype)

    def count_costs(self, *_: Shape) -> Cost:
        """Cost for one text: next to none."""
        return Cost()
