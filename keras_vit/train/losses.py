"""Losses: summed sigmoid cross-entropy, distillation from a teacher, regression targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.checks import check_choice


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Binary cross-entropy of every class, summed over classes and averaged over images.

    The loss of the official pre-training on ImageNet and ImageNet-21k. Keras's
    `BinaryCrossentropy` takes the mean instead: a 21,843rd of the sum for ImageNet-21k.

    Args:
        label_smoothing: With a smoothing of `s`, labels of 1 become `1 - s / 2` and labels of 0
            become `s / 2`, as in Keras. The official ImageNet run used 1 - 1e-4 and 1e-4, which is
            2e-4 here.
        **kwargs: As for `keras.losses.Loss`.

    Call arguments:
        y_true: Float labels of shape `(B, K)`.
        y_pred: Logits of shape `(B, K)`.
    """

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "sigmoid_crossentropy", **kwargs: Any
    ):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(y_true, "float32")
        labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        # -y log p - (1 - y) log(1 - p), without the exponential of large numbers
        loss = ops.softplus(logits) - labels * logits
        return ops.sum(loss, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_vit")
class DistillationLoss(keras.losses.Loss):
    """Knowledge distillation loss between the logits of a student and of a teacher.

    https://arxiv.org/abs/2012.12877, Section 4. Hard: cross-entropy with the teacher's most likely
    class (Eq. 3). Soft: `T^2` times the Kullback-Leibler divergence of the student's distribution
    from the teacher's, both at temperature `T` (Eq. 2). DeiT's code also divides the soft loss by
    the number of classes.

    Args:
        kind: `"hard"` or `"soft"`.
        temperature: `T` of the soft loss.

    Call arguments:
        y_true: Labels, which this loss ignores.
        y_pred: Float tensor of shape `(B, 2, K)`, the logits of the student and of the teacher:
            the output `distillation` of `keras_vit.train.distillation_model`.

    Raises:
        ValueError: If `kind` is unknown or `temperature` not positive.
    """

    def __init__(
        self,
        kind: str = "hard",
        temperature: float = 1.0,
        name: str = "distillation_loss",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        check_choice("kind", kind, ("hard", "soft"))
        if not temperature > 0:
            raise ValueError(f"`temperature` must be positive. Received: {temperature!r}.")
        self.kind = kind
        self.temperature = temperature

    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        student, teacher = y_pred[:, 0], ops.stop_gradient(y_pred[:, 1])
        if self.kind == "hard":
            return keras.losses.sparse_categorical_crossentropy(
                ops.argmax(teacher, axis=-1), student, from_logits=True
            )
        student = ops.log_softmax(student / self.temperature)
        teacher = ops.log_softmax(teacher / self.temperature)
        divergence = ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)
        return self.temperature**2 * divergence

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind, "temperature": self.temperature}


@keras.saving.register_keras_serializable("keras_vit")
class RegressionLoss(keras.losses.Loss):
    """Loss of regression targets, each divided by its standard deviation, averaged over targets.

    So the size of the loss, and with it learning rate and clipping, do not depend on units.

    Args:
        names: Names of the targets.
        mean: Mean of every target in the training images.
        stddev: Standard deviation of every target there, above 0.
        kind: `"mse"` (squared error) or `"huber"` (squared below one standard deviation, linear
            above; half of the squared error, as in Keras).
        predicts_units: Whether predictions are in the units of the targets; otherwise they are
            standard deviations from the mean, as in training.
        **kwargs: As for `keras.losses.Loss`.

    Call arguments:
        y_true: Targets in their units, of shape `(B, K)`.
        y_pred: Predictions of shape `(B, K)`.

    Raises:
        ValueError: If `kind` is unknown, or a standard deviation is not above 0.
    """

    def __init__(
        self,
        names: Sequence[str],
        mean: Sequence[float],
        stddev: Sequence[float],
        kind: str = "mse",
        predicts_units: bool = False,
        name: str = "regression_loss",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        check_choice("kind", kind, ("mse", "huber"))
        if not all(value > 0 for value in stddev):
            raise ValueError(f"`stddev` must be above 0 for every target. Received: {stddev}.")
        self.kind = kind
        self.names, self.mean, self.stddev = tuple(names), tuple(mean), tuple(stddev)
        self.predicts_units = predicts_units

    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        mean, stddev = (ops.convert_to_tensor(v, "float32") for v in (self.mean, self.stddev))
        y_pred = ops.cast(y_pred, "float32")
        true = (ops.cast(y_true, "float32") - mean) / stddev
        error = (y_pred - mean) / stddev - true if self.predicts_units else y_pred - true
        if self.kind == "mse":
            return ops.mean(ops.square(error), axis=-1)
        size = ops.absolute(error)
        return ops.mean(ops.where(size <= 1, ops.square(error) / 2, size - 0.5), axis=-1)

    def get_config(self) -> dict[str, Any]:
        own = {"names": self.names, "mean": self.mean, "stddev": self.stddev, "kind": self.kind}
        return {**super().get_config(), **own, "predicts_units": self.predicts_units}
