"""Size, channels and value range of the images that a model takes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from keras_vit.checks import pair
from keras_vit.config import Preprocessing
from keras_vit.runtime.model import find_preprocessing

if TYPE_CHECKING:
    import keras

    from keras_vit.config import ResNetConfig, ViTConfig


@dataclasses.dataclass(frozen=True)
class InputTransform:
    """Input transform of a model: size, channels and value range of its images.

    Args:
        image_size: Pixels along (height, width).
        preprocessing: Normalisation, interpolation and crop ratio of the model.
        normalize: Whether to normalise the batches; otherwise values stay in [0, 255].
        channels: 1, 3 or 4 (with opacity).
        classes: Number of classes of the model, or `None` if it has no head.
    """

    image_size: tuple[int, int]
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    normalize: bool = False
    channels: int = 3
    classes: int | None = None


def transform_of(
    model: keras.Model | ViTConfig | ResNetConfig | InputTransform,
    image_size: int | tuple[int, int] | None = None,
) -> InputTransform:
    """Finds the input transform of a model.

    Args:
        model: A model of this package or its configuration, another Keras model that takes pixels
            in [0, 255], or an `InputTransform`, which is returned unchanged.
        image_size: Pixels along (height, width), for a model that takes images of any size.

    Returns:
        An `InputTransform`.

    Raises:
        ValueError: If the size is unknown, or the model takes another size.
    """
    if isinstance(model, InputTransform):
        return model
    config = getattr(model, "config", model)
    if getattr(config, "max_num_patches", None) is not None:
        raise ValueError(
            "A model of images of any aspect ratio (max_num_patches) takes patches, not batches of "
            "images of one size. Map a data set with `keras_vit.data.fit_patches(image, model)`."
        )
    if hasattr(config, "preprocessing"):
        *size, channels = config.input_shape
        preprocessing, includes = config.preprocessing, config.include_preprocessing
        classes = config.classes
    else:  # a model built on one of this package, or from elsewhere
        *size, channels = cast("keras.Model", model).inputs[0].shape[1:]
        preprocessing, includes = find_preprocessing(cast("keras.Model", model))
        classes = None
    if image_size is not None:
        wanted = pair("image_size", image_size)
        if None not in size and tuple(size) != wanted:
            raise ValueError(
                f"The model takes images of {tuple(size)} pixels. Received: image_size={wanted}. "
                "Build it for that size: `create_model(..., input_shape=(height, width, 3))`."
            )
        size = list(wanted)
    if None in size:
        raise ValueError(
            "The model takes images of any size. Pass `image_size`, or load it for one size: "
            "input_shape=(height, width, 3)."
        )
    preprocessing = preprocessing or Preprocessing()
    return InputTransform(tuple(size), preprocessing, includes is False, channels, classes)
