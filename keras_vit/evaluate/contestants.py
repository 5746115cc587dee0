"""Models by name for comparisons: ours, and those of keras.applications."""

from __future__ import annotations

import difflib

import keras

from keras_vit.create import create_model

_APPLICATIONS = "keras.applications."


def build_contestant(
    name: str, image_size: int | tuple[int, int] | None = None, classes: int = 1000
) -> keras.Model:
    """A model with random weights, by its name, for comparisons of speed, size and training.

    Args:
        name: A name that `create_model` knows, such as `"vit_b16"`, or a model of
            `keras.applications` such as `"keras.applications.EfficientNetB7"`: the architecture
            of Noisy Student, of which the ViT paper compares the largest, and others.
        image_size: Pixels along (height, width), or one number for both; `None` takes the size
            that the model is made for.
        classes: Outputs of the head.

    Returns:
        A Keras model from images of shape `(B, H, W, 3)` to `(B, classes)`. Those of
        keras.applications end in probabilities, ours in logits.

    Raises:
        ValueError: If there is no such model.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    shape = None if sides is None else (*sides, 3)
    if not name.startswith(_APPLICATIONS):
        return create_model(name, input_shape=shape, classes=classes)
    title = name.removeprefix(_APPLICATIONS)
    titles = [x for x in dir(keras.applications) if x[0].isupper()]
    if title not in titles:
        nearest = difflib.get_close_matches(title, titles, n=3)
        advice = f"Did you mean {', '.join(nearest)}? " if nearest else ""
        raise ValueError(f"keras.applications has no {title!r}. {advice}All: {', '.join(titles)}.")
    return getattr(keras.applications, title)(weights=None, input_shape=shape, classes=classes)
