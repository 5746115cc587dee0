"""Boxes of objects in images of any size, by the detectors of this package and of keras-hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.image_files import read_pixels
from keras_vit.data.input_transform import transform_of
from keras_vit.data.pillow import resample
from keras_vit.data.transforms import in_range, resize
from keras_vit.detection.owl_images import displayed_size, owl_pixels
from keras_vit.installation import needing
from keras_vit.models.heads import activate
from keras_vit.models.real_time import RealTimeDetector
from keras_vit.models.set_prediction import DetectionTransformer, to_corners
from keras_vit.models.text_detector import TextDetector
from keras_vit.runtime.model import find_preprocessing

_EDGES = {"shortest_edge", "longest_edge"}
_DIVISOR = 16  # of the sides to which `YolosImageProcessor` of transformers resizes
_COLOURS = ("red", "lime", "deepskyblue", "orange", "magenta", "yellow", "cyan", "white")


class FoundBoxes(NamedTuple):
    """Boxes that a detector finds in an image.

    Args:
        scores: float32 array of shape `(n,)`: probabilities of the classes.
        labels: int64 array of shape `(n,)`: the classes.
        boxes: float32 array of shape `(n, 4)`: left, top, right and bottom in pixels of the image.
    """

    scores: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray


def predict_boxes(
    model: keras.Model, images: Any, threshold: float | None = None, batch_size: int = 8
) -> list[FoundBoxes]:
    """Finds boxes of objects in images of any size.

    A model for images of any size (`from_pretrained` without `input_shape`) gets them in the size
    that `preprocessor_config.json` of its checkpoint says, another model in its own size; both with
    the pixels of Pillow's bilinear resizing. Images for RF-DETR and for a `TextDetector` are
    resized as transformers does for them, those for a detector of keras-hub as in `box_batches`.

    Args:
        model: A `DetectionTransformer`, such as YOLOS or RF-DETR, a `TextDetector`, or a detector
            of keras-hub for boxes in the format `"xyxy"`, as of `build_detector`.
        images: Arrays of shape `(h, w, C)` with values in [0, 255], or paths of image files, which
            are turned as their EXIF says.
        threshold: Boxes of this score and less are left out; `None` takes 0.5, or 0.1 of a
            `TextDetector`, as in transformers.
        batch_size: Images of one size that the model computes at a time.

    Returns:
        The boxes of every image, in the order of the predictions.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the model is none, leaves normalisation to its data, asks for another
            preprocessing or gives boxes in another format, or an image is not an array of this
            shape or too narrow for one patch; the message names it.
    """
    if threshold is None:
        threshold = 0.1 if isinstance(model, TextDetector) else 0.5
    if hasattr(model, "decode_predictions"):  # of keras-hub
        return list(_predict_retina(model, images, threshold, batch_size))
    if not isinstance(model, DetectionTransformer | TextDetector):
        raise ValueError(
            "`predict_boxes` takes a DetectionTransformer, such as YOLOS, a TextDetector, or a "
            f"detector of keras-hub, such as RetinaNet. Received: {model!r}."
        )
    boxes = "boxes" if isinstance(model, TextDetector) else "pred_boxes"
    return [
        decode_boxes(type(model), outputs["logits"], outputs[boxes], size, threshold)
        for outputs, size in predict_sets(model, images, batch_size)
    ]


def _predict_retina(
    model: keras.Model, images: Any, threshold: float, batch_size: int
) -> Iterator[FoundBoxes]:
    """The boxes of every image, by a detector of keras-hub."""
    if model.bounding_box_format != "xyxy":
        raise ValueError(
            f"The detector gives boxes as {model.bounding_box_format!r}, and 'xyxy' is needed. "
            "Build it with bounding_box_format='xyxy'."
        )
    transform = transform_of(model)
    for batch in _read_batches(images, batch_size, transform.channels):
        tensors = (tf.convert_to_tensor(image) for image, _ in batch)
        resized = [resize(image, transform.image_size, "bilinear") for image in tensors]
        pixels = in_range(transform, tf.stack(resized))
        # Not `predict`: that of keras-hub 0.32 decodes batches of one known size alone.
        outputs = model.decode_predictions(model(pixels, training=False), pixels)
        outputs = {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}
        for index, (image, _) in enumerate(batch):
            chosen = outputs["confidence"][index] > threshold  # -1 where there is no box
            scores, labels = (outputs[name][index, chosen] for name in ("confidence", "labels"))
            scale = np.divide(image.shape[:2], transform.image_size)[[1, 0, 1, 0]]
            boxes = (outputs["boxes"][index, chosen] * scale).astype("float32")
            yield FoundBoxes(scores, labels.astype("int64"), boxes)


def _read_batches(
    images: Any, batch_size: int, channels: int
) -> Iterator[list[tuple[np.ndarray, str]]]:
    """Pixels of images, and what messages call them."""
    images = [images] if isinstance(images, str | os.PathLike) else images
    for start in range(0, len(images), batch_size):
        part = enumerate(images[start : start + batch_size], start)
        yield [read_pixels(image, index, channels) for index, image in part]


def predict_sets(
    model: keras.Model, images: Any, batch_size: int
) -> Iterator[tuple[dict[str, np.ndarray], tuple[int, int]]]:
    """The outputs of a model for each image, and the size of the image: see `predict_boxes`."""
    if not find_preprocessing(model)[1]:
        raise ValueError(
            f"{model.name!r} leaves normalisation to its data. Load it with "
            "include_preprocessing=True."
        )
    for batch in _read_batches(images, batch_size, model.inputs[0].shape[-1]):
        part = [_pixels_of(model, *each) for each in batch]
        outputs: dict[int, dict[str, np.ndarray]] = {}
        for shape in {pixels.shape for pixels, _ in part}:
            same = [index for index, (pixels, _) in enumerate(part) if pixels.shape == shape]
            results = model.predict_on_batch(np.stack([part[index][0] for index in same]))
            outputs |= {x: {k: v[row] for k, v in results.items()} for row, x in enumerate(same)}
        for index, (_, size) in enumerate(part):
            yield outputs[index], size


def decode_boxes(
    kind: type[keras.Model],
    logits: np.ndarray,
    boxes: np.ndarray,
    size: Sequence[int],
    threshold: float,
) -> FoundBoxes:
    """Makes boxes in pixels of the outputs for one image, as transformers does.

    Args:
        kind: The class of the model. Of a `RealTimeDetector` a box may be found as several classes:
            the `N` best of all pairs of box and class count, the best first.
        logits: Float array of shape `(N, K)`, of other `DetectionTransformer` models `(N, K + 1)`,
            whose last class is "no object".
        boxes: Float array of shape `(N, 4)`: centre, width and height, in [0, 1].
        size: Height and width in pixels of what boxes are shares of.
        threshold: Boxes of this score and less are left out.
    """
    if issubclass(kind, RealTimeDetector):
        scores, labels, queries = best_pairs(logits, threshold)
    else:
        is_text = issubclass(kind, TextDetector)
        shares = activate(logits, "multi_label" if is_text else "single_label")
        shares = shares if is_text else shares[:, :-1]
        queries = np.flatnonzero(shares.max(axis=-1) > threshold)
        scores = shares[queries].max(axis=-1)
        # Of texts by logits: sigmoids of two of them may be rounded to one value.
        labels = (logits if is_text else shares)[queries].argmax(axis=-1)
    corners = np.asarray(to_corners(boxes[queries])) * np.array([*size[::-1]] * 2, "float32")
    return FoundBoxes(scores, labels, corners)


def best_pairs(logits: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, classes and queries of the best pairs of both, as many as queries at most."""
    scores = activate(logits, "multi_label").reshape(-1)
    best = np.argsort(-scores, kind="stable")[: len(logits)]
    best = best[scores[best] > threshold]
    queries, labels = np.divmod(best, logits.shape[1])
    return scores[best], labels, queries


def _pixels_of(model: keras.Model, image: np.ndarray, name: str) -> tuple[np.ndarray, Any]:
    """The input of a model of one image, and the size of what boxes are shares of."""
    wanted = model.inputs[0].shape[1:3]
    if "boxes" in model.output:  # of OWL-ViT and OWLv2, whatever their queries
        return owl_pixels(image, model), displayed_size(image, model.published)
    processor = (model.published or {}).get("processor", {})
    size = resized_sides(image.shape[:2], processor) if None in wanted else tuple(wanted)
    if not all(size):
        raise ValueError(
            f"{name} of {image.shape[0]} x {image.shape[1]} pixels is too narrow: its shorter side "
            f"is less than a patch after resizing to {size[0]} x {size[1]}. Crop it."
        )
    if isinstance(model, RealTimeDetector):  # whose processor resizes floats, without antialiasing
        pixels = tf.image.resize(tf.cast(image, "float32"), size)
    else:
        pixels = resample(tf.convert_to_tensor(image), size, (0, 0), size, "bilinear")
    return pixels.numpy(), image.shape[:2]


def resized_sides(size: Sequence[int], processor: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width to which transformers resizes an image for YOLOS.

    Args:
        size: Height and width of the image.
        processor: Content of `preprocessor_config.json`.

    Returns:
        Multiples of 16 where it states the shorter and the longer side, 0 of very narrow images.

    Raises:
        ValueError: If it states something else than two sides, or another interpolation.
    """
    stated = processor.get("size") or 800
    if isinstance(stated, int):
        stated = {"shortest_edge": stated, "longest_edge": processor.get("max_size", 1333)}
    how = processor.get("do_resize", True), processor.get("resample", 2)
    if how != (True, 2) or stated.keys() not in ({"height", "width"}, _EDGES):
        raise ValueError(
            "preprocessor_config.json must say shortest_edge and longest_edge, or height and width,"
            f" and bilinear resizing (2). Received: size={stated}, do_resize={how[0]}, resample="
            f"{how[1]}. Load the model for one size: input_shape=(height, width, 3)."
        )
    if "height" in stated:
        return stated["height"], stated["width"]
    (height, width), side = size, stated["shortest_edge"]
    shorter, longer, limit = min(size), max(size), stated["longest_edge"]
    exact: float = side
    if longer / shorter * side > limit:
        exact = limit * shorter / longer
        side = round(exact)
    if width < height:
        height, width = int(exact * height / width), side
    elif height != side:
        height, width = side, int(exact * width / height)
    return height - height % _DIVISOR, width - width % _DIVISOR


def draw_boxes(image: np.ndarray, found: FoundBoxes, class_names: Sequence[str]) -> np.ndarray:
    """Draws boxes with their classes and scores over an image; needs Pillow.

    Args:
        image: Integers of shape `(h, w, 3)` in [0, 255].
        found: Boxes of the image.
        class_names: Names of the classes.

    Returns:
        uint8 array of shape `(h, w, 3)`.
    """
    with needing("detection", "Drawing boxes needs Pillow"):
        from PIL import Image, ImageDraw
    picture = Image.fromarray(image.astype("uint8"))
    draw = ImageDraw.Draw(picture)
    for score, label, box in zip(*found, strict=True):
        colour = _COLOURS[label % len(_COLOURS)]
        draw.rectangle(box.tolist(), outline=colour, width=2)
        text = f"{class_names[label]} {score:.0%}"
        corner = tuple(np.maximum(box[:2], 0).tolist())
        draw.rectangle(draw.textbbox(corner, text), fill=colour)
        draw.text(corner, text, fill="black")
    return np.asarray(picture)
