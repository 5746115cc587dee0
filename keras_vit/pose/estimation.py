"""Keypoints of people in photographs: a crop of every box, its heatmaps, and their maxima.

Positions are those of centres of pixels, from 0, so that the first and the last position of a
heatmap are those of its crop ("unbiased data processing", https://arxiv.org/abs/1911.07524). As
`VitPoseImageProcessor` of transformers; golden numbers: scripts/golden/make_poses.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.errors import raise_problems
from keras_vit.runtime.model import find_preprocessing

COCO_FLIP_PAIRS = tuple((left, left + 1) for left in range(1, 17, 2))
"""Pairs of the 17 joints of COCO that change places in a mirrored picture: eyes, ears, ..."""
_PADDING = np.float32(1.25)  # sides of a crop over those of its box
_UNIT = np.float32(200)  # pixels, of sides while they are rounded to float32, as theirs are
_SIGMA, _RADIUS = 0.8, 5  # of the blur before maxima are refined: a kernel of 11 positions
_RANGE = (0.001, 50.0)  # of values whose logarithm is taken


class Poses(NamedTuple):
    """Poses of the people in one image.

    Args:
        keypoints: float32 array of shape `(n, joints, 2)`: x and y in pixels of the image.
        scores: float32 array of shape `(n, joints)`: maxima of the heatmaps, about 1 if certain. A
            joint with a score of 0 or less was not found, whatever its keypoint.
    """

    keypoints: np.ndarray
    scores: np.ndarray


def estimate_poses(
    model: keras.Model,
    images: Iterable[Any],
    boxes: Sequence[Any],
    flip_pairs: Sequence[tuple[int, int]] | None = None,
) -> list[Poses]:
    """Finds the joints of people in boxes.

    Args:
        model: A model to `heatmaps` of shape `(B, joints, rows, columns)`, for images of one size
            with pixels in [0, 255].
        images: For every image an array of shape `(h, w, C)` with values in [0, 255], or the path
            of a file, which is turned as its EXIF says.
        boxes: For every image an array of shape `(n, 4)`: left, top, right and bottom of every
            person in pixels, as a detector gives them. `n` may be 0.
        flip_pairs: Pairs of joints that change places in a mirrored picture, such as
            `COCO_FLIP_PAIRS`: heatmaps are then the mean with those of the mirrored crop.

    Returns:
        `Poses` for every image.

    Raises:
        ValueError: If the model has no heatmaps, or an image or a box does not fit; a box must have
            an area, and lie in its image at least in part. One error lists all.
        OSError: If a file is no image.

    Example:

    >>> model = keras_vit.from_pretrained("hf://usyd-community/vitpose-base")  # doctest: +SKIP
    >>> boxes = [[[40, 20, 200, 400]]]
    >>> poses = keras_vit.pose.estimate_poses(model, ["a.jpg"], boxes)  # doctest: +SKIP
    """
    from keras_vit.data.image_files import read_pixels  # which imports TensorFlow

    size, channels = _input_of(model)
    crops, regions, problems = [], [], []
    images = [images] if isinstance(images, str | os.PathLike) else list(images)
    if len(images) != len(boxes):
        raise ValueError(
            f"`boxes` must have an entry for each of the {len(images)} images. Received: "
            f"{len(boxes)}. Pass an empty list for an image without people."
        )
    for index, (image, given) in enumerate(zip(images, boxes, strict=True)):
        (image, name), rows = read_pixels(image, index, channels), np.array(given, "float64")
        regions.append(rows if rows.size else rows.reshape(0, 4))
        found = _box_problems(image, regions[-1])
        problems += [f"{name}, {problem}" for problem in found]
        crops.append(image if found else crop_boxes(image, regions[-1], size))
    raise_problems("`boxes`", problems, "problems")
    pixels = np.concatenate([np.zeros((0, *size, channels), "float32"), *crops])
    heatmaps = _predict(model, pixels)
    if flip_pairs is not None:
        order = np.arange(heatmaps.shape[1])
        for pair in flip_pairs:
            order[list(pair)] = pair[::-1]
        mirrored = _predict(model, pixels[:, :, ::-1])
        heatmaps = (heatmaps + mirrored[:, order, :, ::-1]) / 2
    positions, scores = decode_heatmaps(heatmaps)
    centers, extents = _regions(np.concatenate([np.zeros((0, 4)), *regions]), size)
    shares = positions / (np.array(heatmaps.shape[:1:-1]) - 1) - 0.5  # of columns and rows
    keypoints = (centers[:, None] + shares * extents[:, None]).astype("float32")
    ends = np.cumsum([len(rows) for rows in regions])[:-1]
    parts = (np.split(x, ends) for x in (keypoints, scores))
    return [Poses(*each) for each in zip(*parts, strict=True)]


def crop_boxes(image: np.ndarray, boxes: Any, size: tuple[int, int]) -> np.ndarray:
    """Cuts boxes out of an image, widened to the proportions of `size` and by a quarter.

    Args:
        image: Array of shape `(h, w, C)`. Integers give crops of whole numbers.
        boxes: Left, top, right and bottom in pixels, `(n, 4)`.
        size: Height and width of a crop.

    Returns:
        float32 array of shape `(n, *size, C)`, 0 outside of the image.
    """
    crops = np.zeros((len(boxes), *size, image.shape[-1]), "float32")
    for crop, center, extent in zip(crops, *_regions(boxes, size), strict=True):
        # In float32 as theirs, or some values are rounded to the next integer.
        scale = (np.array(size[::-1]) - 1) / extent
        shift = (scale * (extent / 2 - center)).astype("float32")
        across, down = ((np.arange(count) - shift[axis]) / np.float64(np.float32(scale[axis]))
                        for axis, count in enumerate(size[::-1]))  # fmt: skip
        x = _sample(_sample(image, down).swapaxes(0, 1), across).swapaxes(0, 1)
        crop[:] = np.floor(x + 0.5) if image.dtype.kind in "iu" else x
    return crops


def keypoints_in_heatmaps(keypoints: Any, boxes: Any, size: tuple[int, int]) -> np.ndarray:
    """Positions in the heatmaps of boxes, for `heatmap_targets`.

    Args:
        keypoints: x and y in pixels of the image, `(n, joints, 2)`.
        boxes: As for `crop_boxes`.
        size: Rows and columns of a heatmap, in the proportions of the crop.

    Returns:
        float32 array of shape `(n, joints, 2)`: x and y from the centre of the first position.
    """
    centers, extents = _regions(boxes, size)
    shares = (np.asarray(keypoints) - centers[:, None]) / extents[:, None] + 0.5
    return np.asarray(shares * (np.array(size[::-1]) - 1), "float32")


def decode_heatmaps(heatmaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the maximum of every heatmap, between positions too.

    A step of Newton's method on the logarithm of the blurred map, as a Gaussian would have it
    (DARK, https://arxiv.org/abs/1910.06278). A maximum of 0 or less is not refined where the map
    is lower than 0.001 around it.

    Args:
        heatmaps: Array of shape `(n, joints, rows, columns)`.

    Returns:
        x and y of shape `(n, joints, 2)`, and values of shape `(n, joints)`.
    """
    rows, columns = heatmaps.shape[2:]
    flat = heatmaps.reshape(*heatmaps.shape[:2], rows * columns)
    y, x = (axis.reshape(-1) for axis in np.divmod(flat.argmax(-1), columns))
    maps = np.log(np.clip(_blur(heatmaps), *_RANGE)).reshape(-1, rows, columns)
    maps = np.pad(maps, ((0, 0), (1, 1), (1, 1)), "edge")
    number = np.arange(len(maps))
    near = {(i, j): maps[number, y + 1 + i, x + 1 + j] for i in (-1, 0, 1) for j in (-1, 0, 1)}
    middle, left, right, above, below = (
        near[place] for place in ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))
    )
    gradient = 0.5 * np.stack([right - left, below - above], -1)[..., None]
    xx, yy = right - 2 * middle + left, below - 2 * middle + above
    xy = 0.5 * (near[1, 1] - right - below + middle + middle - left - above + near[-1, -1])
    hessian = np.stack([xx, xy, xy, yy], -1).reshape(-1, 2, 2)
    step = np.linalg.solve(hessian + np.finfo("float32").eps * np.eye(2), gradient)[..., 0]
    positions = np.stack([x, y], -1) - step
    return positions.reshape(*heatmaps.shape[:2], 2), flat.max(-1)


def _input_of(model: keras.Model) -> tuple[tuple[int, int], int]:
    """Height and width of the images of a model, and their channels."""
    shape, outputs, normalizes = model.input_shape[1:], model.output, find_preprocessing(model)[1]
    if None in shape or not normalizes or "heatmaps" not in getattr(outputs, "keys", tuple)():
        raise ValueError(
            "The model must take images of one size with pixels in [0, 255], and have an output "
            f"`heatmaps`. Received: {model.name!r} with images of {shape}, include_preprocessing="
            f"{bool(normalizes)} and outputs {outputs}. Load a ViTPose with "
            "keras_vit.from_pretrained, and leave its input_shape and preprocessing."
        )
    return shape[:2], shape[2]


def _predict(model: keras.Model, pixels: np.ndarray) -> np.ndarray:
    """Heatmaps, also of no crops."""
    if not len(pixels):
        return np.zeros((0, *model.output["heatmaps"].shape[1:]), "float32")
    return np.asarray(model.predict(pixels, verbose=0)["heatmaps"])


def _box_problems(pixels: np.ndarray, boxes: np.ndarray) -> list[str]:
    (height, width), problems = pixels.shape[:2], []
    if boxes.shape[1:] != (4,):
        return [f"boxes of shape {boxes.shape}: expected (n, 4)"]
    for index, (left, top, right, bottom) in enumerate(boxes.tolist()):
        box = f"box {index}: {(left, top, right, bottom)}"
        if not (-np.inf < left < right < np.inf and -np.inf < top < bottom < np.inf):
            problems.append(f"{box} has no finite area. Boxes are (left, top, right, bottom)")
        elif not (left < width and top < height and right > 0 and bottom > 0):
            problems.append(f"{box} lies outside the image of {width} x {height} pixels")
    return problems


def _regions(boxes: Any, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Centres and extents, x and y, of crops with the proportions of `size`."""
    boxes = np.asarray(boxes, "float64").reshape(-1, 4)
    sides, unit = boxes[:, 2:] - boxes[:, :2], np.array(size[::-1]) / size[0]
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    extents = (unit * (sides / unit).max(-1, keepdims=True) / _UNIT).astype("float32")
    return centers.astype("float32"), extents * _PADDING * _UNIT


def _sample(pixels: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Values between those of the first axis, linearly; 0 outside."""
    last = len(pixels) - 1
    before = np.clip(np.floor(positions), 0, last).astype(int)
    share = (positions - before)[:, None, None]
    mixed = pixels[before] * (1 - share) + pixels[np.minimum(before + 1, last)] * share
    return np.asarray(mixed * ((positions >= 0) & (positions <= last))[:, None, None])


def _blur(maps: np.ndarray) -> np.ndarray:
    """A Gaussian blur of the last two axes, mirrored at the edges."""
    weights = np.exp(-0.5 * (np.arange(-_RADIUS, _RADIUS + 1) / _SIGMA) ** 2)
    for axis in (2, 3):
        pads = [(_RADIUS, _RADIUS) if each == axis else (0, 0) for each in range(4)]
        padded = np.pad(maps, pads, "symmetric")
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(weights), axis)
        maps = (windows @ (weights / weights.sum())).astype(maps.dtype)
    return maps
