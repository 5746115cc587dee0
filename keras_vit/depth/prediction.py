"""Depth of images of any size, as transformers prepares and resizes it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.image_files import read_pixels
from keras_vit.data.pillow import resample
from keras_vit.models.graph import single_input
from keras_vit.networks.network_file import stated_size
from keras_vit.resize import resize_matrix
from keras_vit.runtime.model import Model

# Without `preprocessor_config.json`.
_ANYTHING = {"size": 518, "keep_aspect_ratio": True, "ensure_multiple_of": 14}


def predict_depth(
    model: keras.Model, images: Sequence[np.ndarray | str | os.PathLike[str]]
) -> Iterator[np.ndarray]:
    """Predicts the depth of every pixel of images, at their own sizes.

    Images are resized as the image processor of the network asks for: of Depth Anything with their
    proportions, one side 518 pixels and the other a multiple of 14, by Pillow's bicubic filter. A
    model of one size resizes to that size. Depth is resized back by PyTorch's bicubic
    interpolation.

    Args:
        model: A network of `from_pretrained`, with its preprocessing, or one that was fine-tuned.
        images: uint8 arrays of shape `(h, w, 3)`, or paths of image files.

    Yields:
        float32 arrays of shape `(h, w)`. Relative depth is an inverse one: the nearest pixels have
        the largest values, and 0 is far away; its unit differs from image to image. Metric depth is
        in metres.

    Raises:
        OSError: If a file is no image. The message names it.
        ValueError: If an array is no image, or smaller than a patch, or the model has no
            preprocessing.
    """
    facts = getattr(model, "published", None)
    if "predicted_depth" not in getattr(model, "output_names", ()) or facts is None:
        raise ValueError(
            f"{model.name!r} is no network for depth. Load one by `keras_vit.from_pretrained`."
        )
    if not facts["transformer"]["fields"]["include_preprocessing"]:
        raise ValueError(
            f"{model.name!r} leaves normalisation to its data. Load it with "
            "include_preprocessing=True."
        )
    for index, image in enumerate(images):
        pixels, where = read_pixels(image, index)
        size = model.inputs[0].shape[1:3]
        if None in size:
            size = network_size(facts, pixels.shape[:2])
        if min(size) < 1:
            raise ValueError(f"{where} has {pixels.shape[:2]} pixels, less than one patch.")
        how = facts["transformer"]["fields"]["preprocessing"]
        x = resample(tf.constant(pixels), size, (0, 0), size, how["interpolation"]).numpy()
        step = facts["processor"].get("do_pad") and facts["processor"].get("size_divisor")
        if step:  # around the image, with the mean colour
            pads = [(-side % step // 2, (-side % step + 1) // 2) for side in size]
            x = (np.pad(x - how["mean"], [*pads, (0, 0)]) + how["mean"]).astype("float32")
        depth = keras.ops.convert_to_numpy(model.predict_on_batch(x[None])["predicted_depth"])[0]
        sides = zip(depth.shape, pixels.shape, strict=False)  # height and width
        rows, columns = (resize_matrix(*each, "bicubic_plain").astype("float32") for each in sides)
        yield rows @ depth @ columns.T


def network_size(facts: Mapping[str, Any], size: tuple[int, int]) -> tuple[int, int]:
    """Pixels along (height, width) that a network computes an image of a size at, unpadded.

    Args:
        facts: `model.published`.
        size: Height and width of the image.
    """
    is_anything = facts["config"]["architectures"][0] == "DepthAnythingForDepthEstimation"
    processor = facts["processor"] or (_ANYTHING if is_anything else {})
    scales = [each / own for each, own in zip(stated_size(processor), size, strict=True)]
    if processor.get("keep_aspect_ratio"):  # the scale that changes the image less
        scales = [min(reversed(scales), key=lambda scale: abs(1 - scale))] * 2
    step = processor.get("ensure_multiple_of", 1)
    height, width = (round(s * own / step) * step for s, own in zip(scales, size, strict=True))
    return (height, width) if processor.get("do_resize", True) else size


def paint_depth(depth: np.ndarray) -> np.ndarray:
    """A picture of depth, blue where values are small and yellow where they are large.

    Args:
        depth: Float array of shape `(h, w)`.

    Returns:
        uint8 array of shape `(h, w, 3)`.
    """
    colours = np.array(
        ((13, 8, 135), (126, 3, 168), (204, 71, 120), (248, 149, 64), (240, 249, 33)), "float64"
    )
    share = _to_share(depth) * (len(colours) - 1)
    parts = [np.interp(share, range(len(colours)), channel) for channel in colours.T]
    return np.stack(parts, axis=-1).round().astype("uint8")


def encode_depth(depth: np.ndarray, facts: Mapping[str, Any]) -> np.ndarray:
    """16-bit values of depth for a PNG, from float depth of shape `(h, w)`.

    Relative depth is stretched from the smallest value, 0, to the largest, 65,535. Metric depth is
    in millimetres, or in 1/256 metres, as KITTI's, of networks for more than 65 metres.
    """
    if facts["config"].get("depth_estimation_type") != "metric":
        return (_to_share(depth) * 65535).round().astype("uint16")
    unit = 1000 if facts["config"]["max_depth"] <= 65 else 256
    return np.clip(depth * unit, 0, 65535).round().astype("uint16")


def _to_share(depth: np.ndarray) -> np.ndarray:
    low, high = float(depth.min()), float(depth.max())
    return (depth.astype("float64") - low) / ((high - low) or 1.0)


def with_depth_alone(model: Model) -> Model:
    """A model to depth of shape `(B, H, W)` as a tensor, with the same weights, for `fit`."""
    alone = Model(single_input(model), model.output["predicted_depth"], name=model.name)
    alone.published = model.published
    return alone
