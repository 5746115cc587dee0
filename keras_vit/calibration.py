"""How the logits of a trained classifier become probabilities that are right as often as they say.

`keras_vit.trust.calibrate` fits it; `keras_vit.Model` holds it, `.keras` files and exports keep it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_vit.checks import check_choice

ACTIVATIONS = {"single_label": "softmax", "multi_label": "sigmoid"}  # by task


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Calibrated logits are `scale * logits + offset`; probabilities follow from them.

    Args:
        activation: `"softmax"`: one scale for all classes, the inverse of the temperature
            (https://arxiv.org/abs/1706.04599); `"sigmoid"`: a scale and an offset for each label,
            as Platt's.
        scale: The one scale, or one for each label.
        offset: Offsets of the labels; none with a temperature.
        num_images: Held-out images that it was fitted on.
        thresholds: Probability from which each label is predicted, see `trust.fit_thresholds`;
            empty for none.
        log_loss: Mean negative log-likelihood of these images before and after, in nats.

    Raises:
        ValueError: If the values are not finite, a scale is not positive, or their numbers differ.
    """

    activation: str
    scale: tuple[float, ...]
    offset: tuple[float, ...] = ()
    num_images: int = 0
    log_loss: tuple[float, float] = (float("nan"), float("nan"))
    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, tuple(ACTIVATIONS.values()))
        for name in ("scale", "offset", "log_loss", "thresholds"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        count = 1 if self.activation == "softmax" else len(self.offset)
        if len(self.scale) != count or not all(0 < x < float("inf") for x in self.scale):
            raise ValueError(
                "A calibration has one scale with softmax, and a scale and an offset for each "
                f"label with sigmoid; scales are above 0. Received: {self.scale}, {self.offset}."
            )

    @property
    def temperature(self) -> float | None:
        """What logits are divided by, or `None` with several labels."""
        return 1 / self.scale[0] if self.activation == "softmax" else None

    def apply(self, logits: Any) -> Any:
        """Calibrates logits of shape `(B, K)`, an array or a tensor."""
        logits = logits * np.asarray(self.scale, "float32")
        return logits + np.asarray(self.offset, "float32") if self.offset else logits

    def __str__(self) -> str:
        how = f"{len(self.scale)} labels are scaled"
        if self.activation == "softmax":
            how = f"logits are divided by {1 / self.scale[0]:.3g}"
        losses = "negative log-likelihood {:.3f}, now {:.3f}".format(*self.log_loss)
        return f"{how}, from {self.num_images:,} held-out images ({losses})"
