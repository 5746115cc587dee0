"""The model that trains one of mask classification, with the loss of all its predictions."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_vit.layers.queries import CLASSES, MASKS
from keras_vit.models.matching import part_of_replica
from keras_vit.runtime.model import Model


@keras.saving.register_keras_serializable("keras_vit")
class MaskTrainer(Model):
    """A model to the predictions of EoMT before its masked blocks and after the last.

    Labels are a dict of `masks`, of shape `(B, M, H, W)`, and `labels`, of shape `(B, M)`, as for
    `MaskLoss`. The loss is the sum over all predictions.

    Args:
        *args: As for `keras_vit.Model`.
        mask_loss: The `MaskLoss`.
        **kwargs: As for `keras_vit.Model`.
    """

    def __init__(self, *args: Any, mask_loss: Any = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mask_loss = mask_loss  # Keras makes the model of a file without it

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        """As `keras_vit.Model.compile`, without XLA, which has no matching of queries to masks."""
        super().compile(optimizer, *args, **{**kwargs, "jit_compile": False})

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        """The sum of the losses of all predictions, and of the layers."""
        if not isinstance(y, dict) or not {"masks", "labels"} <= y.keys():
            received = list(y) if isinstance(y, dict) else type(y).__name__
            raise ValueError(
                "Labels are a dict of `masks`, of shape (B, M, H, W), and `labels`, of shape "
                f"(B, M). Received: {received}."
            )
        losses = [
            self.mask_loss(logits, y_pred[key.replace(MASKS, CLASSES)], y["masks"], y["labels"])
            for key, logits in y_pred.items()
            if key.startswith(MASKS)
        ]
        return part_of_replica(keras.ops.sum(keras.ops.stack([*losses, *self.losses])))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mask_loss": dataclasses.asdict(self.mask_loss)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        from keras_vit.train.mask_loss import MaskLoss  # needs TensorFlow

        fields = dict(config)
        mask_loss = MaskLoss(**fields.pop("mask_loss"))
        model: Any = super().from_config(fields, custom_objects)
        model.mask_loss = mask_loss
        return model


@keras.saving.register_keras_serializable("keras_vit")
class PredictedSegmenter(Model):
    """A segmenter whose outputs are no logits: it predicts, and does not train."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Raises a `ValueError`, as `train_on_batch` does."""
        raise ValueError(
            "Sums of probabilities do not train. Take segmentation.build_mask_trainer of EoMT."
        )

    train_on_batch = fit
