"""Patch tokens put out of place, for masked patch prediction."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape

MASKED = -1


@keras.saving.register_keras_serializable("keras_vit")
class PatchMask(keras.layers.Layer):
    """Replaces patch tokens by a learned mask token, or by other patches of their image.

    Masked patch prediction, Appendix B.1.2 of https://arxiv.org/abs/2010.11929: it stands between
    `PatchEncoder` and the class token. Which patches go is part of the data, so that batches are
    repeatable and losses know them: see `keras_vit.data.mask_patches`.

    Args:
        stddev: Standard deviation of the mask token's normal start, as BERT's.

    Call arguments:
        tokens: Float tensor of shape `(B, N, D)`.
        sources: Integer tensor of shape `(B, N)`: for each place the patch whose token comes
            there, in [0, N), or -1 for the mask token.

    Returns:
        Float tensor of shape `(B, N, D)`.
    """

    def __init__(self, stddev: float = 0.02, **kwargs: Any):
        super().__init__(**kwargs)
        self.stddev = stddev

    def build(
        self,
        tokens_shape: Shape,
        sources_shape: Shape | None = None,
    ) -> None:
        self.token = self.add_weight(
            name="token",
            shape=(1, 1, tokens_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=self.stddev),
        )

    def call(self, tokens: keras.KerasTensor, sources: keras.KerasTensor) -> keras.KerasTensor:
        places = ops.maximum(sources, 0)[:, :, None]  # (B, N, 1)
        taken = ops.take_along_axis(tokens, places, axis=1)  # (B, N, D)
        is_masked = ops.equal(sources, MASKED)[:, :, None]
        return ops.where(is_masked, ops.cast(self.token, tokens.dtype), taken)

    def compute_output_shape(
        self,
        tokens_shape: Shape,
        sources_shape: Shape | None = None,
    ) -> Shape:
        return tokens_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "stddev": self.stddev}
