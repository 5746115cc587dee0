"""The model that trains a masked autoencoder."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.models.matching import part_of_replica
from keras_vit.runtime.model import Model


def hidden_loss(outputs: dict[str, Any]) -> Any:
    """Mean squared error of the pixels of hidden patches (https://arxiv.org/abs/2111.06377).

    Args:
        outputs: `patches` and `targets`, of shape `(B, N, pixels * C)`, and `mask`, of shape
            `(B, N)`: 1 where a patch is hidden, 0 elsewhere.

    Returns:
        A scalar.
    """
    errors = ops.mean(ops.square(outputs["patches"] - outputs["targets"]), axis=-1)
    return ops.sum(errors * outputs["mask"]) / ops.sum(outputs["mask"])


@keras.saving.register_keras_serializable("keras_vit")
class PixelTrainer(Model):
    """A masked autoencoder that trains on images alone: `compile(optimizer)` and `fit(images)`.

    Labels are not read.

    Args:
        *args: As for `keras_vit.Model`.
        **kwargs: As for `keras_vit.Model`.
    """

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        """The mean of `hidden_loss` over a batch, and the losses of the layers."""
        return part_of_replica(ops.sum(ops.stack([hidden_loss(y_pred), *self.losses])))
