"""Losses: summed sigmoid cross-entropy, distillation, regression targets, images and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.runtime.gathering import gather_rows


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
        if self.predicts_units:
            y_pred = (y_pred - mean) / stddev
        true = (ops.cast(y_true, "float32") - mean) / stddev
        loss = keras.losses.huber if self.kind == "huber" else keras.losses.mean_squared_error
        return loss(true, y_pred)

    def get_config(self) -> dict[str, Any]:
        own = {"names": self.names, "mean": self.mean, "stddev": self.stddev, "kind": self.kind}
        return {**super().get_config(), **own, "predicts_units": self.predicts_units}


@keras.saving.register_keras_serializable("keras_vit")
class ContrastiveLoss(keras.losses.Loss):
    """Contrastive loss of images and their texts, over the batch of all replicas.

    With the similarities `L = scale * X Y^T + bias` of `B` images and texts of unit length, the
    softmax loss is the mean of the cross-entropies of the rows and of the columns of `L` (CLIP,
    https://arxiv.org/abs/2103.00020, Figure 3). The sigmoid loss is the sum of
    `-log sigmoid(m * L)` with `m = 1` for pairs and -1 for others, divided by `B` (SigLIP,
    https://arxiv.org/abs/2303.15343, Eq. 1).

    Under `tf.distribute` every replica sees the features of all, and the gradients are those of one
    device. If a batch has fewer pairs than there are replicas, those without any add a pair of
    zeros to it: drop incomplete batches.

    Args:
        kind: `"softmax"` or `"sigmoid"`.
        positives: `"pairs"`: an image belongs to its own text alone. `"labels"`: images and texts
            of the same label belong together, as where texts name a class; the targets of the
            softmax are then shared evenly among them (UniCL, https://arxiv.org/abs/2204.03610).
        **kwargs: As for `keras.losses.Loss`.

    Call arguments:
        y_true: Integer labels of shape `(B,)`, below 2^24; ignored for `positives="pairs"`.
        y_pred: Float tensor of shape `(B, 2 * P + 2)`, the output of
            `keras_vit.layers.PairFeatures`.

    Raises:
        ValueError: If `kind` or `positives` is unknown, or `y_pred` has another shape.
    """

    gathers_rows = True  # `DistributedTraining` computes it outside of what XLA compiles

    def __init__(
        self,
        kind: str = "softmax",
        positives: str = "pairs",
        name: str = "contrastive_loss",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        check_choice("kind", kind, ("softmax", "sigmoid"))
        check_choice("positives", positives, ("pairs", "labels"))
        self.kind, self.positives = kind, positives

    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        if len(y_pred.shape) != 2 or y_pred.shape[1] < 4 or y_pred.shape[1] % 2:
            raise ValueError(
                "`y_pred` must be the output of keras_vit.layers.PairFeatures, of shape "
                f"(B, 2 * P + 2). Received: shape {tuple(y_pred.shape)}."
            )
        y_pred = ops.cast(y_pred, "float32")
        width = y_pred.shape[1] // 2 - 1
        scale, bias = y_pred[:, -2:-1], y_pred[:, -1:]  # (b, 1), the same in all rows
        pairs = y_pred[:, :-2]
        every, first = gather_rows(pairs)  # (B, 2 * P)
        are_pairs = self._positives(y_true, pairs, every, first)  # (b, B)
        of_images = scale * pairs[:, :width] @ ops.transpose(every[:, width:]) + bias
        loss = self._loss(of_images, are_pairs)
        if self.kind == "sigmoid":  # all pairs of images and texts are in it
            return loss
        of_texts = scale * pairs[:, width:] @ ops.transpose(every[:, :width])
        return (loss + self._loss(of_texts, are_pairs)) / 2

    def _positives(self, y_true: Any, pairs: Any, every: Any, first: Any) -> keras.KerasTensor:
        """Which texts belong to the own images, of shape `(b, B)`."""
        if self.positives == "labels":
            own = ops.cast(ops.reshape(y_true, (-1,)), "int32")
            all_labels, _ = gather_rows(own)
        else:
            own = first + ops.arange(ops.shape(pairs)[0], dtype="int32")
            all_labels = ops.arange(ops.shape(every)[0], dtype="int32")
        return ops.cast(ops.equal(own[:, None], all_labels[None]), "float32")

    def _loss(self, logits: Any, are_pairs: Any) -> keras.KerasTensor:
        """Losses of the rows of logits."""
        if self.kind == "sigmoid":
            return ops.sum(ops.softplus((1 - 2 * are_pairs) * logits), axis=1)
        targets = are_pairs / ops.sum(are_pairs, axis=1, keepdims=True)
        return -ops.sum(targets * ops.log_softmax(logits, axis=1), axis=1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind, "positives": self.positives}
