"""Losses and metrics of depth."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.layer import Tensor

_TINY = 1e-6


def _known(depth: Tensor) -> Tensor:
    """Whether the depth of a pixel is known: it is finite and above 0."""
    return ops.logical_and(ops.isfinite(depth), depth > 0)


@keras.saving.register_keras_serializable("keras_vit")
class ScaleShiftInvariantLoss(keras.losses.Loss):
    """Loss of relative depth, whatever its scale and shift.

    Prediction and target of each image are shifted by their medians and divided by their mean
    absolute deviations over the known pixels; the loss is their mean absolute difference
    (https://arxiv.org/abs/1907.01341, equations 5 and 6; https://arxiv.org/abs/2401.10891, equation
    3), and `gradients` times the mean absolute difference of neighbouring pixels at four scales
    (equation 11 of the former).

    Args:
        gradients: Weight of the second part.
        name: Name of the loss.

    Call arguments:
        y_true: Inverse depth of shape `(B, H, W)`. Pixels that are not finite, or not above 0, are
            not known and do not count.
        y_pred: Predicted inverse depth of the same shape.
    """

    def __init__(self, gradients: float = 0.5, name: str = "scale_shift_invariant"):
        super().__init__(name=name)
        self.gradients = gradients

    def get_config(self) -> dict[str, Any]:
        return {"gradients": self.gradients, "name": self.name}

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true, y_pred = (ops.cast(y, "float32") for y in (y_true, y_pred))
        known = _known(y_true)
        y_true = ops.where(known, y_true, 0.0)
        apart = ops.where(known, _standard(y_pred, known) - _standard(y_true, known), 0.0)
        loss = _mean(ops.abs(apart), known)
        for step in (1, 2, 4, 8) if self.gradients else ():
            at, seen = apart[:, ::step, ::step], known[:, ::step, ::step]
            count, total = ops.sum(ops.cast(seen, "float32"), (1, 2)), 0.0
            for first, second, both in (
                (at[:, 1:], at[:, :-1], ops.logical_and(seen[:, 1:], seen[:, :-1])),
                (at[:, :, 1:], at[:, :, :-1], ops.logical_and(seen[:, :, 1:], seen[:, :, :-1])),
            ):
                total += ops.sum(ops.where(both, ops.abs(first - second), 0.0), (1, 2))
            loss += self.gradients * total / ops.maximum(count, 1.0)
        return loss


def _mean(values: Tensor, known: Tensor) -> Tensor:
    """Means over the known pixels of each image, of values that are 0 elsewhere."""
    return ops.sum(values, (1, 2)) / ops.maximum(ops.sum(ops.cast(known, "float32"), (1, 2)), 1.0)


def _standard(depth: Tensor, known: Tensor) -> Tensor:
    """Depth less its median, divided by the mean absolute distance from it."""
    flat = ops.reshape(ops.where(known, depth, float("inf")), (-1, depth.shape[1] * depth.shape[2]))
    count = ops.sum(ops.cast(known, "int32"), (1, 2))
    middle = ops.maximum(count - 1, 0) // 2  # the lower one of two, as PyTorch's
    median = ops.take_along_axis(ops.sort(flat, axis=1), middle[:, None], axis=1)[:, :, None]
    apart = depth - ops.where(ops.isfinite(median), median, 0.0)
    scale = _mean(ops.where(known, ops.abs(apart), 0.0), known)
    return apart / ops.maximum(scale, _TINY)[:, None, None]


@keras.saving.register_keras_serializable("keras_vit")
class SILogLoss(keras.losses.Loss):
    """Scale-invariant loss of metric depth (https://arxiv.org/abs/1406.2283, equation 4).

    The root of the mean square of the logarithms' differences, less `variance_focus` times their
    squared mean, over the known pixels of each image.

    Args:
        variance_focus: 0.5 as in Depth Anything V2; 0.85 in later work on NYU.
        name: Name of the loss.

    Call arguments:
        y_true: Depth in metres of shape `(B, H, W)`. Pixels that are not finite, or not above 0, do
            not count.
        y_pred: Predicted depth of the same shape.
    """

    def __init__(self, variance_focus: float = 0.5, name: str = "silog"):
        super().__init__(name=name)
        self.variance_focus = variance_focus

    def get_config(self) -> dict[str, Any]:
        return {"variance_focus": self.variance_focus, "name": self.name}

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true, y_pred = (ops.cast(y, "float32") for y in (y_true, y_pred))
        known = _known(y_true)
        apart = ops.log(ops.where(known, y_true, 1.0)) - ops.log(
            ops.where(known, ops.maximum(y_pred, _TINY), 1.0)
        )
        variance = _mean(ops.square(apart), known)
        variance -= self.variance_focus * ops.square(_mean(apart, known))
        return ops.sqrt(ops.maximum(variance, _TINY**2))


class _DepthMetric(keras.metrics.Mean):
    """Mean of a value of every known pixel."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        y_true, y_pred = (ops.cast(y, "float32") for y in (y_true, y_pred))
        known = _known(y_true)
        y_true = ops.where(known, y_true, 1.0)
        weights = ops.cast(known, "float32")
        if sample_weight is not None:
            weights *= ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1, 1))
        super().update_state(self.value_of(y_true, y_pred), weights)

    def value_of(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        raise NotImplementedError


@keras.saving.register_keras_serializable("keras_vit")
class AbsRel(_DepthMetric):
    """Mean of the absolute error of depth, divided by the true depth: NYU's AbsRel."""

    def __init__(self, name: str = "abs_rel", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def value_of(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.abs(y_pred - y_true) / y_true


@keras.saving.register_keras_serializable("keras_vit")
class DeltaAccuracy(_DepthMetric):
    """Share of pixels whose depth is less than 1.25 times too large or too small."""

    def __init__(self, name: str = "delta_1.25", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def value_of(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_pred = ops.maximum(y_pred, _TINY)
        return ops.cast(ops.maximum(y_pred / y_true, y_true / y_pred) < 1.25, "float32")
