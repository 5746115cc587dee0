"""Distillation through a token: a student learns from labels and from a teacher model."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.models.graph import check_head, final_activation
from keras_vit.runtime.model import Model, find_preprocessing


def distillation_model(student: Model, teacher: keras.Model) -> Model:
    """Builds the training model of a student with a distillation token, and its teacher.

    Student and teacher see the same augmented images. The teacher runs in inference mode, and its
    weights do not change. The model shares its layers with `student`: train this one, then use
    `student`, which returns the mean of its two heads.

    Args:
        student: A Vision Transformer of this package made with `distillation_token=True`.
        teacher: A model from the same images to logits of the same classes. Its `trainable`
            becomes False.

    Returns:
        A functional `keras_vit.Model` with the outputs `head`, logits of shape `(B, K)` for a
        classification loss, and `distillation`, of shape `(B, 2, K)` for `DistillationLoss`.

    Raises:
        ValueError: If the student has no distillation token, or the teacher has another input
            shape, other pixels, another number of classes or returns probabilities.

    Example:
        model = keras_vit.train.distillation_model(student, teacher)
        model.compile(
            optimizer="adam",
            loss={
                "head": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "distillation": keras_vit.train.DistillationLoss("hard"),
            },
            loss_weights={"head": 0.5, "distillation": 0.5},
            metrics={"head": ["accuracy"]},
        )
        model.fit(dataset.map(lambda x, y: (x, {"head": y, "distillation": y})))
    """
    names = {layer.name for layer in student.layers}
    if not {"head", "head_distillation"} <= names:
        raise ValueError(
            "The student needs two heads: make it with `distillation_token=True` and `classes`. "
            f"Received: {student.name!r} with the last layers "
            f"{', '.join(layer.name for layer in student.layers[-3:])}."
        )
    _check_teacher(teacher, student)
    head, second = student.get_layer("head").output, student.get_layer("head_distillation").output
    logits = Teacher(teacher, dtype="float32", name="teacher")(student.inputs[0])
    both = Stack(dtype="float32", name="distillation")([second, logits])
    return Model(student.inputs[0], {"head": head, "distillation": both}, name="distillation")


@keras.saving.register_keras_serializable("keras_vit")
class Teacher(keras.layers.Layer):
    """Frozen model that always runs in inference mode.

    The layer is needed because a functional model overrides the `training` argument of the layers
    called in it.
    """

    def __init__(self, model: keras.Model, **kwargs: Any):
        super().__init__(**kwargs)
        self.model = model
        self.model.trainable = False

    def call(self, images: keras.KerasTensor) -> keras.KerasTensor:
        return ops.cast(self.model(images, training=False), "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Teacher:
        model = keras.saving.deserialize_keras_object(config.pop("model"))
        return cls(model, **config)


@keras.saving.register_keras_serializable("keras_vit")
class Stack(keras.layers.Layer):
    """Stacks tensors of shape `(B, K)` to one tensor of shape `(B, n, K)`."""

    def call(self, tensors: list[keras.KerasTensor]) -> keras.KerasTensor:
        return ops.stack(tensors, axis=1)


def _check_teacher(teacher: keras.Model, student: keras.Model) -> None:
    image_shape, logits_shape = student.input_shape, student.get_layer("head").output.shape
    if tuple(teacher.input_shape[1:]) != tuple(image_shape[1:]):
        raise ValueError(
            f"The teacher must take the student's images of shape {tuple(image_shape)}. Received: "
            f"a teacher for {tuple(teacher.input_shape)}. Put `keras.layers.Resizing` before it."
        )
    if tuple(teacher.output_shape) != tuple(logits_shape):
        raise ValueError(
            f"The teacher must have the student's {logits_shape[-1]} classes. Received: outputs of "
            f"shape {tuple(teacher.output_shape)}."
        )
    check_head(teacher, "Distillation")
    activation = final_activation(teacher)
    if activation in ("softmax", "sigmoid"):
        raise ValueError(
            "The teacher must return logits. Received: a model that ends in "
            f"{activation}. Make it with `classifier_activation=None`."
        )
    (one, one_in), (other, other_in) = map(find_preprocessing, (student, teacher))
    if one is None or other is None or (one_in and other_in):
        return
    if one_in != other_in or (one.mean, one.std) != (other.mean, other.std):
        raise ValueError(
            "The teacher takes other pixels than the student. Received: a student with "
            f"include_preprocessing={one_in}, mean={one.mean}, std={one.std}, and a teacher with "
            f"include_preprocessing={other_in}, mean={other.mean}, std={other.std}. Make both with "
            "include_preprocessing=True."
        )
