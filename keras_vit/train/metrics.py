"""Metrics of training: average precision of several labels, error of regression targets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

_THRESHOLDS = np.linspace(-10, 10, 200).astype("float32")  # logits


@keras.saving.register_keras_serializable("keras_vit")
class AveragePrecision(keras.metrics.Metric):
    """Macro average precision of several labels, from logits, at 200 thresholds.

    The sum of precision times step of recall, averaged over the labels that occur. The thresholds
    are evenly spread over logits from -10 to 10, so that rare labels, whose probabilities are all
    small, are told apart; `keras.metrics.AUC` spreads them over probabilities. `predict_targets`
    takes all thresholds.

    Args:
        num_labels: Number of labels `K`.
        **kwargs: As for `keras.metrics.Metric`.
    """

    def __init__(self, num_labels: int, name: str = "average_precision", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.num_labels = num_labels
        shape = (num_labels, len(_THRESHOLDS))
        self.right = self.add_variable(shape, "zeros", name="right")
        self.predicted = self.add_variable(shape, "zeros", name="predicted")
        self.true = self.add_variable((num_labels,), "zeros", name="true")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        chosen = ops.cast(y_pred[..., None] >= _THRESHOLDS, "float32")  # (B, K, thresholds)
        weights = ops.ones_like(y_true[:, :1])
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        chosen = chosen * weights[..., None]
        self.right.assign_add(ops.sum(y_true[..., None] * chosen, axis=0))
        self.predicted.assign_add(ops.sum(chosen, axis=0))
        self.true.assign_add(ops.sum(y_true * weights, axis=0))

    def result(self) -> Any:
        precision = self.right / ops.maximum(self.predicted, 1e-12)
        recall = self.right / ops.maximum(self.true, 1e-12)[:, None]
        rises = recall - ops.pad(recall[:, 1:], ((0, 0), (0, 1)))  # thresholds rise, recall falls
        occurs = ops.cast(self.true > 0, "float32")
        values = ops.sum(precision * rises, axis=-1) * occurs
        return ops.sum(values) / ops.maximum(ops.sum(occurs), 1.0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_labels": self.num_labels}


@keras.saving.register_keras_serializable("keras_vit")
class TargetError(keras.metrics.Mean):
    """Mean absolute error of one regression target in its units.

    Args:
        index: Position of the target.
        mean: Mean of the target, if predictions are standard deviations from it; otherwise 0.
        stddev: Its standard deviation in that case; otherwise 1.
        **kwargs: As for `keras.metrics.Mean`.
    """

    def __init__(self, index: int, mean: float, stddev: float, name: str = "mae", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.index, self.mean, self.stddev = index, mean, stddev

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        predicted = ops.cast(y_pred[:, self.index], "float32") * self.stddev + self.mean
        error = ops.absolute(predicted - ops.cast(y_true[:, self.index], "float32"))
        super().update_state(error, sample_weight)

    def get_config(self) -> dict[str, Any]:
        own = {"index": self.index, "mean": self.mean, "stddev": self.stddev}
        return {**super().get_config(), **own}
