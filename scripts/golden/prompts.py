"""Prompts of tests/golden/promptable.json, as arguments of `PromptableSegmenter.predict`."""

from __future__ import annotations

from typing import Any

import numpy as np

_POINTS = {"points": [[[10.0, 20.0], [50.0, 33.5]], [[70.0, 1.0], [4.0, 79.0]]]}
_CLICKS = {**_POINTS, "labels": [[1, 0], [1, 1]]}
_BOXES = {"boxes": [[5.0, 8.0, 40.0, 66.0], [20.0, 20.0, 79.0, 70.0]]}
# `masks`: whether those of a formula are the step before.
PROMPTS: dict[str, dict[str, Any]] = {
    "points": _CLICKS,
    "points without labels": _POINTS,
    "padded points": {**_POINTS, "labels": [[1, -10], [0, -1]]},
    "box": _BOXES,
    "points and box": {**_CLICKS, **_BOXES},
    "points and mask": {**_CLICKS, "masks": True},
    "mask": {"masks": True},
    "one mask": {**_CLICKS, "num_masks": 1},
}
# Arrays whose gradients are compared.
TRAINED = (
    "mask_decoder.iou_token.weight",
    "mask_decoder.mask_tokens.weight",
    "mask_decoder.transformer.layers.0.self_attn.q_proj.weight",
    "mask_decoder.upscale_conv2.weight",
    "prompt_encoder.no_mask_embed.weight",
    "prompt_encoder.point_embed.2.weight",
)
PHOTOGRAPH: dict[str, Any] = {"points": [[60.0, 30.0], [100.5, 70.0]], "labels": [1, 0]}


def photograph_of(size: tuple[int, int] = (90, 131)) -> np.ndarray:
    """A smooth uint8 image of shape `(*size, 3)`."""
    rows, columns = np.mgrid[: size[0], : size[1]].astype("float64")
    waves = [np.sin(rows / (5 + n)) * np.cos(columns / (9 - n)) for n in range(3)]
    return (127.5 + 127 * np.stack(waves, axis=-1)).astype("uint8")
