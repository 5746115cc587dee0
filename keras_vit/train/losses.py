"""The loss of the official pre-training."""

from __future__ import annotations

import keras


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Cross-entropy of every class for itself, summed over classes, averaged over images.

    The loss of the official pre-training on ImageNet and ImageNet-21k. Keras's
    `BinaryCrossentropy` is its mean over classes: a 21,843rd part of it.

    Args:
        label_smoothing: `s` makes labels of 1 to `1 - s / 2` and of 0 to `s / 2`, as in Keras. The
            official ImageNet run had 1 - 1e-4 and 1e-4, which is 2e-4 here.
        **kwargs: As for `keras.losses.Loss`.

    Call arguments:
        y_true: Float labels of shape `(B, K)`.
        y_pred: Logits of shape `(B, K)`.
    """

    def __init__(self, label_smoothing=0.0, name="sigmoid_crossentropy", **kwargs):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        logits = keras.ops.cast(y_pred, "float32")
        labels = keras.ops.cast(y_true, "float32")
        labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        # -y log p - (1 - y) log(1 - p), without exp of large numbers
        loss = keras.ops.softplus(logits) - labels * logits
        return keras.ops.sum(loss, axis=-1)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
