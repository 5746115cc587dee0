"""Classification by the nearest of stored features."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive
from keras_vit.layers.layer import Layer, Tensor

_NO_VOTES = 1e-6  # share of the votes of a class without any, so that its logit is finite


@keras.saving.register_keras_serializable("keras_vit")
class NearestNeighbors(Layer):
    """Classifies features by their nearest neighbours among stored ones.

    The weighted vote of https://arxiv.org/abs/1805.01978, as DINO and DINOv2 use it: neighbours by
    cosine similarity `s`, each with the weight `exp(s / temperature)`.

    Args:
        classes: Number of classes `K`.
        num_examples: Number of stored features.
        num_neighbors: Neighbours that vote.
        temperature: Temperature of the weights.

    Call arguments:
        x: Float tensor of shape `(B, D)`.

    Returns:
        Float32 logits of shape `(B, K)`, whose softmax is the share of the votes.
    """

    def __init__(
        self,
        classes: int,
        num_examples: int,
        num_neighbors: int = 20,
        temperature: float = 0.07,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("classes", classes)
        check_positive("num_examples", num_examples)
        check_positive("num_neighbors", num_neighbors)
        if num_neighbors > num_examples:
            raise ValueError(
                f"{num_examples} examples have no {num_neighbors} nearest. Received: "
                f"num_neighbors={num_neighbors}. Pass at most {num_examples}."
            )
        self.classes = classes
        self.num_examples = num_examples
        self.num_neighbors = num_neighbors
        self.temperature = temperature

    def build(self, shape: Shape) -> None:
        count = self.num_examples
        self.examples = self.add_weight((count, shape[-1]), trainable=False, name="examples")
        self.labels = self.add_weight((count,), "zeros", "int32", trainable=False, name="labels")

    def call(self, x: Tensor) -> Tensor:
        x = ops.normalize(ops.cast(x, "float32"), axis=-1)
        examples = ops.normalize(ops.cast(self.examples, "float32"), axis=-1)
        similarity = ops.matmul(x, ops.transpose(examples))  # (B, N)
        nearest, positions = ops.top_k(similarity, self.num_neighbors)  # (B, k)
        votes = ops.exp((nearest - 1.0) / self.temperature)
        classes = ops.one_hot(ops.take(self.labels, positions), self.classes, dtype="float32")
        votes = ops.sum(votes[..., None] * classes, axis=1)  # (B, K)
        share = votes / ops.sum(votes, axis=-1, keepdims=True)
        return ops.log(share + _NO_VOTES)
