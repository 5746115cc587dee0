"""Classifiers from the names of classes."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.checks import check_choice
from keras_vit.errors import printable
from keras_vit.image_text.towers import Towers, unit_rows
from keras_vit.layers.float32 import Float32Policy, float32_dense
from keras_vit.runtime.model import Model
from keras_vit.texts.tokenizer import check_texts

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
    names = check_names(class_names)
    sentences = sentences_of(templates)
    rows = [towers.encode_texts(sentences(name)).mean(axis=0) for name in names]
    return unit_rows(np.stack(rows))


def check_names(class_names: Sequence[str]) -> list[str]:
    """The names of classes; a ValueError if there are none, two are equal, or one is no text."""
    names = check_texts(class_names, "class_names")
    if isinstance(class_names, str) or not names:
        raise ValueError(f"`class_names` must be one or more names. Received: {class_names!r}.")
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"Two classes have the same name. Received: {printable(twice[:5])}.")
    return names


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
    check_choice("activation", activation, ("auto", "softmax", "sigmoid", None))
    class_names = check_names(class_names)
    activation = towers.activation if activation == "auto" else activation
    if activation == "softmax" and len(class_names) == 1:
        raise ValueError(
            f"The softmax of one class is always 1. Received: class_names={list(class_names)!r}. "
            'Add what else images may show, or pass activation="sigmoid" or None.'
        )
    vectors = class_vectors(towers, class_names, templates)
    image, x = towers.image, towers.image.outputs[0]  # (B, P)
    if getattr(image.config, "classes", None) is not None:  # it ends in a projection, called "head"
        projection = image.get_layer("head")
        renamed = float32_dense(vectors.shape[1], "projection", use_bias=projection.use_bias)
        x = renamed(projection.input)  # (B, P)
        renamed.set_weights(projection.get_weights())
    x = keras.layers.UnitNormalization(dtype=Float32Policy(), name="unit_length")(x)
    options = {"activation": activation, "use_bias": towers.bias is not None}
    head = float32_dense(len(vectors), "head", **options)
    model = Model(image.inputs[0], head(x), name="zero_shot_classifier")  # (B, K)
    bias = [] if towers.bias is None else [np.full(len(vectors), towers.bias, "float32")]
    head.set_weights([np.float32(towers.scale) * vectors.T, *bias])
    model.class_names = class_names
    return model


def sentences_of(templates: Templates | None) -> Callable[[str], list[str]]:
    """The function from a name to its sentences."""
    if callable(templates):
        return lambda name: check_texts(templates(name), "templates")
    chosen = check_texts(TEMPLATES if templates is None else templates, "templates")
    if isinstance(templates, str) or not chosen or not all("{}" in each for each in chosen):
        raise ValueError(
            f"`templates` must be sentences with {{}} for the name. Received: {templates!r:.200}."
        )
    return lambda name: [each.replace("{}", name) for each in chosen]
