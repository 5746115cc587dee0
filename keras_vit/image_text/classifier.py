"""Classifiers from the names of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.errors import printable
from keras_vit.image_text.towers import Towers, unit_rows
from keras_vit.layers.float32 import Float32Policy
from keras_vit.runtime.model import Model

Templates = Sequence[str] | Callable[[str], Sequence[str]]
TEMPLATES = (
    "a photo of a {}.",
    "a photo of the {}.",
    "a close-up photo of a {}.",
    "a photo of a small {}.",
    "a photo of a large {}.",
    "a blurry photo of a {}.",
    "a dark photo of a {}.",
    "a drawing of a {}.",
)
"""Sentences with `{}` for the name of a class."""
_ACTIVATIONS = ("auto", "softmax", "sigmoid", None)


def class_vectors(
    towers: Towers, class_names: Sequence[str], templates: Templates | None = None
) -> np.ndarray:
    """Computes a vector for each class, from its name in several sentences.

    The features of the sentences are normalised, averaged and normalised again, Section 3.1.4 of
    https://arxiv.org/abs/2103.00020. A class is computed by itself: its vector does not depend on
    the other names.

    Args:
        towers: Towers of `load_towers`.
        class_names: Names of the classes.
        templates: Sentences with `{}` for the name, or a function from a name to its sentences;
            `None` takes `keras_vit.image_text.TEMPLATES`.

    Returns:
        float32 array of shape `(classes, P)` with rows of length 1.

    Raises:
        ValueError: If there are no names, two are equal, or a template has no `{}`.
    """
    if isinstance(class_names, str) or not len(class_names):
        raise ValueError(f"`class_names` must be one or more names. Received: {class_names!r}.")
    twice = sorted({name for name in class_names if list(class_names).count(name) > 1})
    if twice:
        raise ValueError(f"Two classes have the same name. Received: {printable(twice[:5])}.")
    sentences = sentences_of(templates)
    rows = [towers.encode_texts(sentences(name)).mean(axis=0) for name in class_names]
    return unit_rows(np.stack(rows))


def zero_shot_classifier(
    towers: Towers,
    class_names: Sequence[str],
    templates: Templates | None = None,
    activation: str | None = "auto",
) -> Model:
    """Builds a classifier of images from the names of classes, without images of them.

    The model is the image tower, a projection to unit length and a dense layer `head`, whose kernel
    holds the vectors of the classes times the scale, and whose bias is that of the towers. Its
    logits are those of both towers. It needs no text tower, so that it is saved, exported and
    trained further as any model. The layers of the image tower are shared with `towers.image`, so
    that training changes both.

    Args:
        towers: Towers of `load_towers`.
        class_names: Names of the classes, as a caption would call them.
        templates: As in `class_vectors`.
        activation: `"auto"` gives the probabilities of the towers: `"softmax"` in CLIP, which sum
            to 1, and `"sigmoid"` in SigLIP, one of its own for each class, all of which may be
            small. `None` gives logits, for training further.

    Returns:
        A functional `keras_vit.Model` from images to probabilities of shape `(B, classes)`, with
        `class_names`.

    Raises:
        ValueError: As in `class_vectors`; or if `activation` is unknown, or a softmax of one class,
            which is always 1.

    Example:

    >>> towers = keras_vit.image_text.load_towers("clip-vit-base-patch32")  # doctest: +SKIP
    >>> model = keras_vit.image_text.zero_shot_classifier(towers, ["cat", "dog"])  # doctest: +SKIP
    >>> model.predict(images)  # doctest: +SKIP
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"`activation` must be one of {', '.join(map(repr, _ACTIVATIONS))}. Received: "
            f"{activation!r}."
        )
    activation = towers.activation if activation == "auto" else activation
    if activation == "softmax" and len(class_names) == 1:
        raise ValueError(
            f"The softmax of one class is always 1. Received: class_names={list(class_names)!r}. "
            'Add what else images may show, or pass activation="sigmoid" or None.'
        )
    vectors = class_vectors(towers, class_names, templates)
    image, projection = towers.image, projection_of(towers.image)
    x = image.outputs[0] if projection is None else projection.input  # (B, D)
    scores = class_scores(x, towers, vectors, activation)
    model = Model(image.inputs[0], scores, name="zero_shot_classifier")
    model.class_names = class_names
    return model


def projection_of(image: keras.Model) -> keras.layers.Layer | None:
    """The last layer of an image tower, which projects to the space of images and texts."""
    has_projection = getattr(image.config, "classes", None) is not None
    return image.get_layer("head") if has_projection else None


def class_scores(
    x: keras.KerasTensor, towers: Towers, vectors: np.ndarray, activation: str | None = None
) -> keras.KerasTensor:
    """Scores `(..., K)` of vectors `(..., D)`, which the image tower has not projected yet."""
    projection = projection_of(towers.image)
    if projection is not None:  # the name is that of the last layer
        renamed = keras.layers.Dense(
            vectors.shape[1],
            use_bias=projection.use_bias,
            dtype=Float32Policy(),
            name="projection",
        )
        x = renamed(x)  # (..., P)
        renamed.set_weights(projection.get_weights())
    x = keras.layers.UnitNormalization(dtype=Float32Policy(), name="unit_length")(x)
    head = keras.layers.Dense(
        len(vectors),
        activation=activation,
        use_bias=towers.bias is not None,
        dtype=Float32Policy(),
        name="head",
    )
    x = head(x)  # (..., K)
    bias = [] if towers.bias is None else [np.full(len(vectors), towers.bias, "float32")]
    head.set_weights([np.float32(towers.scale) * vectors.T, *bias])
    return x


def sentences_of(templates: Templates | None) -> Callable[[str], list[str]]:
    """The function from a name to its sentences."""
    if callable(templates):
        return lambda name: list(templates(name))
    chosen = TEMPLATES if templates is None else tuple(templates)
    if isinstance(templates, str) or not chosen or not all("{}" in each for each in chosen):
        raise ValueError(
            f"`templates` must be sentences with {{}} for the name. Received: {templates!r:.200}."
        )
    return lambda name: [each.replace("{}", name) for each in chosen]
