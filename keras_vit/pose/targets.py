"""Targets for fine-tuning: a Gaussian in the heatmap of every joint."""

from __future__ import annotations

from typing import Any

import numpy as np


def heatmap_targets(
    keypoints: Any, visible: Any, size: tuple[int, int], sigma: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Makes the targets and weights of crops, for a mean squared error.

    The mean square is about 0.005, and its gradients as small as the epsilon of Adam: weigh it up.

    Args:
        keypoints: x and y in positions of the heatmap, `(n, joints, 2)`: see
            `keypoints_in_heatmaps`.
        visible: Numbers of shape `(n, joints)`: 0 leaves a joint out, as in COCO. Joints farther
            than three `sigma` from the heatmap are left out too.
        size: Rows and columns of a heatmap, a quarter of the crop's sides.
        sigma: Standard deviation in positions; the paper's is 2.

    Returns:
        float32 targets of shape `(n, joints, rows, columns)` with maxima of 1, and float32 weights
        of shape `(n, joints, 1)`.

    Raises:
        ValueError: If shapes do not fit.

    Example:

    >>> targets, weights = heatmap_targets(points, visible, (64, 48))  # doctest: +SKIP
    >>> model.compile(
    ...     "adam", {"heatmaps": "mse"}, loss_weights={"heatmaps": 1000}
    ... )  # doctest: +SKIP
    >>> model.fit(
    ...     crops, {"heatmaps": targets}, sample_weight={"heatmaps": weights}
    ... )  # doctest: +SKIP
    """
    points, visible = check_points(keypoints, visible, "visible")
    reach, last = 3 * sigma, np.array(size[::-1]) - 1
    is_near = ((points >= -reach) & (points <= last + reach)).all(-1)
    weights = ((visible > 0) & is_near).astype("float32")[..., None]  # (n, joints, 1)
    points = np.where(weights, points, 0)  # others may be NaN
    across, down = (
        np.exp(-((np.arange(count) - points[..., axis, None]) ** 2) / (2 * sigma**2))
        for axis, count in enumerate(size[::-1])
    )
    targets = weights[..., None] * down[..., :, None] * across[..., None, :]
    return targets.astype("float32"), weights


def check_points(keypoints: Any, numbers: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Keypoints and a number for each as arrays; `ValueError` if their shapes do not fit."""
    points, numbers = np.asarray(keypoints, "float64"), np.asarray(numbers)
    if points.ndim != 3 or points.shape[2] != 2 or numbers.shape != points.shape[:2]:
        raise ValueError(
            f"`keypoints` must have the shape (n, joints, 2), and `{name}` (n, joints). Received: "
            f"{points.shape} and {numbers.shape}."
        )
    return points, numbers
