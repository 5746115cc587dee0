"""Pictures of poses: joints as points, and the lines between them."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.installation import needing
from keras_vit.pose.targets import check_points

# Pairs of joints that COCO draws a line between, from 0.
COCO_EDGES = (
    (15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8),
    (7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6),
)  # fmt: skip
"""Pairs of the 17 joints of COCO that a line joins, for `draw_poses`."""


def find_edges(model: keras.Model) -> tuple[tuple[int, int], ...]:
    """Finds the lines between joints, as `config.json` of a checkpoint has them.

    Args:
        model: A model of `from_pretrained`, or loaded from the `.keras` file of one. Its
            `class_names` are those of the joints.

    Returns:
        Pairs of joints; without any in the checkpoint, those of COCO if there are 17 joints.
    """
    found = (getattr(model, "published", None) or {}).get("config", {}).get("edges")
    if not found and model.output["heatmaps"].shape[1] == 17:
        return COCO_EDGES
    return tuple((first, second) for first, second in found or ())


def draw_poses(
    image: np.ndarray,
    keypoints: Any,
    scores: Any,
    edges: Sequence[tuple[int, int]] = COCO_EDGES,
    threshold: float = 0.3,
) -> np.ndarray:
    """Draws the poses of people into an image.

    Args:
        image: Pixels of shape `(h, w, C)` in [0, 255], `C` 1 or 3.
        keypoints: x and y in pixels, `(n, joints, 2)`.
        scores: Scores of shape `(n, joints)`.
        edges: Pairs of joints with a line between them, see `find_edges`.
        threshold: The lowest score of a joint that is drawn.

    Returns:
        uint8 array of shape `(h, w, 3)`.

    Raises:
        ValueError: If shapes do not fit, or an edge is of no joint.
        ImportError: Without Pillow.
    """
    with needing("detection", "Drawing poses needs Pillow"):
        from PIL import Image, ImageDraw
    points, scores = check_points(keypoints, scores, "scores")
    joints = points.shape[1]
    if any(not 0 <= joint < joints for edge in edges for joint in edge):
        raise ValueError(
            f"`edges` must be pairs of joints from 0 to {joints - 1}. Received: {tuple(edges)}. "
            "Pass edges=find_edges(model)."
        )
    drawn = Image.fromarray(np.rint(np.broadcast_to(image, (*image.shape[:2], 3))).astype("uint8"))
    draw, radius = ImageDraw.Draw(drawn), max(1.0, min(image.shape[:2]) / 150)
    for person, sure in zip(points, scores >= threshold, strict=True):
        for number, edge in enumerate(edges):
            if sure[list(edge)].all():
                ends = [tuple(person[joint]) for joint in edge]
                draw.line(ends, _color(number, len(edges)), width=round(radius))
        for joint in np.flatnonzero(sure).tolist():
            bounds = [*(person[joint] - radius), *(person[joint] + radius)]
            draw.ellipse(bounds, _color(joint, joints))
    return np.asarray(drawn)


def _color(number: int, count: int) -> tuple[int, ...]:
    """A colour of the circle of hues."""
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number / count, 1, 1))
