"""Masks of everything in an image: a grid of points, filters of their masks, and a COCO file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive
from keras_vit.data.image_files import read_pixels
from keras_vit.installation import needing
from keras_vit.segmentation.evaluation import draw_classes
from keras_vit.segmentation.promptable import PromptableSegmenter

_NEAR = 20  # pixels from the edge of a crop, at which objects are cut off
_COLOURS = 254  # of `draw_classes`


class FoundMasks(NamedTuple):
    """Masks that are found in an image, the best first.

    Args:
        masks: Boolean array of shape `(n, h, w)`.
        scores: float32 array of shape `(n,)`: the IoU that the model expects, about in [0, 1].
        boxes: float32 array of shape `(n, 4)`: the first and last column and row of every mask, as
            left, top, right and bottom.
    """

    masks: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray


def find_all_masks(
    segmenter: PromptableSegmenter,
    image: Any,
    points_per_side: int = 32,
    points_per_batch: int = 64,
    threshold: float = 0.88,
    stability_threshold: float = 0.95,
    stability_offset: float = 1.0,
    mask_threshold: float = 0.0,
    overlap_threshold: float = 0.7,
    crop_layers: int = 0,
    crop_overlap: float = 512 / 1500,
) -> FoundMasks:
    """Finds everything in an image, as the mask-generation pipeline of transformers.

    Every point of a grid asks for three masks, and those that pass the filters stay: appendix B of
    https://arxiv.org/abs/2304.02643. The image is encoded once, and each of its crops once.

    Args:
        segmenter: A model of `load_promptable`.
        image: Pixels of shape `(h, w, 3)` in [0, 255], or the path of an image file.
        points_per_side: Points along each side of the image, and of each crop.
        points_per_batch: Points that the decoder takes at a time.
        threshold: Masks of this score and less are left out.
        stability_threshold: Masks of this stability and less are left out: the IoU of the mask at
            thresholds higher and lower by the offset.
        stability_offset: See there, in logits.
        mask_threshold: Logits above it are inside of a mask.
        overlap_threshold: Of masks whose boxes have a larger IoU, the one of the best score stays.
        crop_layers: Number of times that the grid is also laid over crops of the image: 4 of the
            first layer, 16 of the second. Masks that a crop cuts off are left out.
        crop_overlap: Share of the shorter side by which crops of the first layer overlap.

    Returns:
        A `FoundMasks`.

    Raises:
        OSError: If a file is no image.
        ValueError: If the image or a number of points is none.

    Example:

    >>> found = keras_vit.segmentation.find_all_masks(segmenter, "street.jpg")  # doctest: +SKIP
    """
    check_positive("points_per_side", points_per_side)
    check_positive("points_per_batch", points_per_batch)
    pixels, _ = read_pixels(image, 0)
    size = pixels.shape[:2]
    side = ((np.arange(points_per_side) + 0.5) / points_per_side).astype("float32")
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 1, 2)  # (P * P, 1, 2), x and y
    packed, scores, boxes = [], [np.zeros(0, "float32")], [np.zeros((0, 4), "float32")]
    for left, top, right, bottom in _crops(size, crop_layers, crop_overlap):
        crop = pixels[top:bottom, left:right]
        points, embedded = grid * crop.shape[1::-1], segmenter.embed([crop])
        for start in range(0, len(points), points_per_batch):
            outputs = segmenter.predict(embedded, points=points[start : start + points_per_batch])
            of_all = (np.concatenate(outputs[name]) for name in ("masks", "scores"))
            for logits, score in zip(*of_all, strict=True):
                if score <= threshold > 0:
                    continue
                (x,) = segmenter.resize_logits(logits[None], crop.shape[:2])
                sure, unsure = (
                    (x > mask_threshold + y).sum() for y in (stability_offset, -stability_offset)
                )
                if stability_threshold > 0 and sure / max(unsure, 1) <= stability_threshold:
                    continue
                mask = np.zeros(size, bool)
                mask[top:bottom, left:right] = x > mask_threshold
                box = box_of(mask)
                if not _is_cut_off(box, (left, top, right, bottom), size):
                    packed.append(np.packbits(mask, axis=-1))
                    scores.append(score[None])
                    boxes.append(box[None])
    score, box = np.concatenate(scores), np.concatenate(boxes)
    order = tf.image.non_max_suppression(
        box[:, [1, 0, 3, 2]], score, max(len(box), 1), overlap_threshold
    ).numpy()
    masks = [np.unpackbits(packed[index], axis=-1, count=size[1]) for index in order]
    return FoundMasks(np.reshape(masks, (-1, *size)).astype(bool), score[order], box[order])


def _crops(
    size: tuple[int, int], layers: int, overlap: float
) -> Iterator[tuple[int, int, int, int]]:
    """Left, top, right and bottom of the image, and of the crops of each layer."""
    height, width = size
    yield 0, 0, width, height
    for count in (2**layer for layer in range(1, layers + 1)):
        shared = int(overlap * min(size) * (2 / count))
        across, down = (math.ceil((shared * (count - 1) + x) / count) for x in (width, height))
        for i, j in itertools.product(range(count), repeat=2):
            left, top = i * (across - shared), j * (down - shared)
            yield left, top, min(left + across, width), min(top + down, height)


def box_of(mask: np.ndarray) -> np.ndarray:
    """Left, top, right and bottom of a mask, float32 of shape `(4,)`; 0 of an empty one."""
    if not mask.any():
        return np.zeros(4, "float32")
    ends = [np.flatnonzero(mask.any(axis))[[0, -1]] for axis in (0, 1)]  # of columns, of rows
    return np.stack(ends, axis=-1).reshape(-1).astype("float32")


def _is_cut_off(box: np.ndarray, crop: tuple[int, int, int, int], size: tuple[int, int]) -> bool:
    """Whether a box ends near the edge of a crop, and not near that of the image."""
    near_crop = np.abs(box - np.array(crop)) <= _NEAR
    near_image = np.abs(box - np.array((0, 0, *size[::-1]))) <= _NEAR
    return bool((near_crop & ~near_image).any())


def draw_masks(image: np.ndarray, found: FoundMasks) -> np.ndarray:
    """Draws masks in colours over an image, the smallest above, with their scores; needs Pillow.

    Args:
        image: Integers of shape `(h, w, 3)` in [0, 255].
        found: Masks of the image.

    Returns:
        uint8 array of shape `(h, w, 3)`.
    """
    with needing("detection", "Drawing masks needs Pillow"):
        from PIL import Image, ImageDraw
    numbers = np.full(image.shape[:2], 255)
    for index in np.argsort(-found.masks.sum((1, 2))):
        numbers[found.masks[index]] = index % _COLOURS
    picture = Image.fromarray(draw_classes(image, numbers))
    draw = ImageDraw.Draw(picture)
    for score, (left, top, right, bottom) in zip(found.scores, found.boxes, strict=True):
        where = ((left + right) / 2, (top + bottom) / 2)
        draw.text(where, f"{score:.2f}", "white", anchor="mm", stroke_width=1, stroke_fill="black")
    return np.asarray(picture)


def to_coco(names: Sequence[str], found: Sequence[FoundMasks]) -> dict[str, Any]:
    """Masks of images in the layout of COCO, with run-length encoding; needs pycocotools.

    Args:
        names: File names of the images.
        found: Masks of every image.

    Returns:
        A dict of `images`, `annotations` and `categories`, for `json.dump`. All masks are of one
        category, `object`. Their `predicted_iou` is the score, as in SA-1B.
    """
    with needing("detection", "The masks of COCO need pycocotools"):
        from pycocotools import mask as coco
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index, (name, each) in enumerate(zip(names, found, strict=True), 1):
        height, width = each.masks.shape[1:]
        images.append({"id": index, "file_name": name, "height": height, "width": width})
        for mask, score in zip(each.masks, each.scores, strict=True):
            runs = coco.encode(np.asfortranarray(mask.astype("uint8")))
            annotations.append({
                "id": len(annotations) + 1, "image_id": index, "category_id": 1, "iscrowd": 0,
                "bbox": coco.toBbox(runs).tolist(), "area": int(coco.area(runs)),
                "predicted_iou": float(score),
                "segmentation": {**runs, "counts": runs["counts"].decode()},
            })  # fmt: skip
    categories = [{"id": 1, "name": "object"}]
    return {"images": images, "annotations": annotations, "categories": categories}
