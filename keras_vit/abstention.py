"""What a classifier says of a picture besides its class: which classes are possible, how typical.

`keras_vit.trust.fit_abstention` fits it; `keras_vit.Model` holds it, and `.keras` files and exports
keep it.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np
from keras import ops

OUTPUTS = ("accepted", "typicality", "prediction_set")


@dataclasses.dataclass(frozen=True, eq=False)
class Abstention:
    """Thresholds of prediction sets and of typical pictures.

    Args:
        coverage: Share of images like the held-out ones whose set has the true class.
        least_probable: Probability from which a class is in the set.
        least_typical: Typicality below which a picture is not accepted.
        gaussian: Matrix that makes the features of held-out images, of length 1, uncorrelated, and
            below it their mean after it: float16 of shape `(D + 1, D)`.
        num_images: Held-out images.
        set_size: Mean number of classes in their sets.
        false_alarms: Share of images like these that are not accepted.
    """

    coverage: float
    least_probable: float
    least_typical: float
    gaussian: np.ndarray
    num_images: int
    set_size: float
    false_alarms: float

    def outputs(self, probabilities: Any, features: Any) -> dict[str, Any]:
        """The outputs `accepted`, `typicality` and `prediction_set`, in float32 and as booleans.

        Args:
            probabilities: Tensor of shape `(B, K)`.
            features: Input of the head, tensor of shape `(B, D)`.
        """
        typicality = typicality_of(features, self.gaussian)
        return {
            "accepted": typicality >= self.least_typical,
            "typicality": typicality,
            "prediction_set": self.prediction_set(probabilities),
        }

    def prediction_set(self, probabilities: Any) -> Any:
        """Whether each class is possible, booleans of shape `(B, K)`; the most probable one is."""
        highest = ops.max(probabilities, axis=-1, keepdims=True)
        return probabilities >= ops.minimum(highest, self.least_probable)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values for JSON; the Gaussian as text."""
        data = base64.b64encode(self.gaussian.astype("<f2").tobytes()).decode()
        return {**self.thresholds(), "gaussian": data}

    def thresholds(self) -> dict[str, Any]:
        """The fields without the Gaussian."""
        fields = (field.name for field in dataclasses.fields(self) if field.name != "gaussian")
        return {name: getattr(self, name) for name in fields}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Abstention:
        """From what `to_dict` returned."""
        values = np.frombuffer(base64.b64decode(fields["gaussian"]), "<f2")
        width = int(len(values) ** 0.5)
        return cls(**{**fields, "gaussian": values.reshape(width + 1, width)})

    def __str__(self) -> str:
        return (
            f"sets hold the true class of {self.coverage:.0%} of images like these "
            f"{self.num_images:,} ({self.set_size:.2f} classes on average), and "
            f"{self.false_alarms:.0%} of such images are not accepted"
        )


def typicality_of(features: Any, gaussian: Any) -> Any:
    """Less the mean square of features after `gaussian`, of shape `(B,)`: near 0 if typical."""
    features = ops.cast(features, "float32")
    features = features / ops.sqrt(ops.sum(ops.square(features), -1, keepdims=True) + 1e-12)
    gaussian = np.asarray(gaussian, "float32")
    return -ops.mean(ops.square(ops.matmul(features, gaussian[:-1]) - gaussian[-1]), axis=-1)
