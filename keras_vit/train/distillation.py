"""Distillation through a token: a student learns from labels and from a teacher."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.trainers.model import Model


@keras.saving.register_keras_serializable("keras_vit")
class DistillationLoss(keras.losses.Loss):
    """How far a student's logits are from what the teacher says.

    https://arxiv.org/abs/2012.12877, Section 4. Hard: cross-entropy with the class that the teacher
    finds most likely (Eq. 3). Soft: `T^2` times the Kullback-Leibler divergence of the student's
    distribution from the teacher's, both at temperature `T` (Eq. 2). DeiT's code divides the soft
    loss by the number of classes as well.

    Args:
        kind: `"hard"` or `"soft"`.
        temperature: `T`, of the soft loss.

    Call arguments:
        y_true: Not looked at: the teacher's word counts.
        y_pred: Float tensor of shape `(B, 2, K)`, the logits of the student and of the teacher:
            the output `distillation` of `keras_vit.train.distillation_model`.

    Raises:
        ValueError: If `kind` is unknown or `temperature` not positive.
    """

    def __init__(self, kind="hard", temperature=1.0, name="distillation_loss", **kwargs):
        super().__init__(name=name, **kwargs)
        check_choice("kind", kind, ("hard", "soft"))
        if not temperature > 0:
            raise ValueError(f"`temperature` must be positive. Received: {temperature!r}.")
        self.kind = kind
        self.temperature = temperature

    def call(self, y_true, y_pred):
        student, teacher = y_pred[:, 0], ops.stop_gradient(y_pred[:, 1])
        if self.kind == "hard":
            return keras.losses.sparse_categorical_crossentropy(
                ops.argmax(teacher, axis=-1), student, from_logits=True
            )
        student = ops.log_softmax(student / self.temperature)
        teacher = ops.log_softmax(teacher / self.temperature)
        divergence = ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)
        return self.temperature**2 * divergence

    def get_config(self):
        return {**super().get_config(), "kind": self.kind, "temperature": self.temperature}


def distillation_model(student: Model, teacher: keras.Model) -> Model:
    """A model to train a student with: its two heads, one of them beside the teacher's logits.

    The teacher sees the images that the student sees, augmented alike, in inference mode, and its
    weights stay. The layers are those of `student`, which is the model to keep afterwards: it
    answers with the mean of its heads.

    Args:
        student: A Vision Transformer of this package made with `distillation_token=True`.
        teacher: Any model from the same images to logits of the same classes. Its `trainable`
            becomes False.

    Returns:
        A functional `keras_vit.Model` with the outputs `head`, logits of shape `(B, K)` for a
        classification loss, and `distillation`, of shape `(B, 2, K)` for `DistillationLoss`.

    Raises:
        ValueError: If the student has no distillation token, or the teacher takes other images,
            knows other classes or ends in probabilities.

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
            f"Received: {student.name!r} with the last layers {', '.join(list(_last(student)))}."
        )
    head, second = student.get_layer("head").output, student.get_layer("head_distillation").output
    _check_teacher(teacher, student.input_shape, head.shape)
    logits = Teacher(teacher, dtype="float32", name="teacher")(student.inputs[0])
    both = Stack(dtype="float32", name="distillation")([second, logits])
    return Model(student.inputs[0], {"head": head, "distillation": both}, name="distillation")


@keras.saving.register_keras_serializable("keras_vit")
class Teacher(keras.layers.Layer):
    """A model that does not learn, without its dropout even in training.

    A layer of its own, since a functional model puts its own `training` over that of the call.
    """

    def __init__(self, model, **kwargs):
        super().__init__(**kwargs)
        self.model = model
        self.model.trainable = False

    def call(self, images):
        return ops.cast(self.model(images, training=False), "float32")

    def get_config(self):
        return {**super().get_config(), "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config):
        model = keras.saving.deserialize_keras_object(config.pop("model"))
        return cls(model, **config)


@keras.saving.register_keras_serializable("keras_vit")
class Stack(keras.layers.Layer):
    """Tensors of one shape `(B, K)`, as one of shape `(B, n, K)`."""

    def call(self, tensors):
        return ops.stack(tensors, axis=1)


def _last(model: keras.Model) -> list[str]:
    return [layer.name for layer in model.layers[-3:]]


def _check_teacher(teacher: keras.Model, images: tuple, logits: tuple) -> None:
    if tuple(teacher.input_shape[1:]) != tuple(images[1:]):
        raise ValueError(
            f"The teacher must take the student's images of shape {tuple(images)}. Received: a "
            f"teacher for {tuple(teacher.input_shape)}. Put `keras.layers.Resizing` before it."
        )
    if tuple(teacher.output_shape) != tuple(logits):
        raise ValueError(
            f"The teacher must know the student's {logits[-1]} classes. Received: outputs of shape "
            f"{tuple(teacher.output_shape)}."
        )
    activation = getattr(teacher.layers[-1], "activation", None)
    if activation in (keras.activations.softmax, keras.activations.sigmoid):
        raise ValueError(
            "The teacher must give logits. Received: a model whose last layer is "
            f"{activation.__name__}. Make it with `classifier_activation=None`."
        )
