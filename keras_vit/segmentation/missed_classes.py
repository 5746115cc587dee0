"""Classes that a training run never finds: named after every epoch, with advice at the end."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.cli.output import complain, say
from keras_vit.segmentation.masks import MaskSet


class WatchClasses(keras.callbacks.Callback):
    """Names the classes of which no pixel was found: IoU 0.

    It reads the confusion matrix of the model's `MeanIoU`: of the validation masks if there are
    any, otherwise of the training masks. A class without pixels there is not counted.

    Args:
        training: The training images with their masks.
        advice: What to do, for classes that have pixels in the training masks.
        quiet: Whether only the end of training prints.
    """

    def __init__(self, training: MaskSet, advice: str, quiet: bool = False):
        super().__init__()
        self.training = training
        self.advice = advice
        self.quiet = quiet
        self._missed: set[int] | None = None  # in every epoch so far

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        confusion = keras.ops.convert_to_numpy(_mean_iou(self.model).total_cm)
        is_missed = (confusion.sum(1) > 0) & (np.diag(confusion) == 0)
        missed = set(np.flatnonzero(is_missed).tolist())
        names = [self.training.class_names[label] for label in sorted(missed)]
        if names and not self.quiet:
            say(f"  IoU 0: {', '.join(names)}")
        self._missed = missed if self._missed is None else self._missed & missed

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        if not self._missed:
            return
        counts = self.training.pixel_counts()
        names = self.training.class_names
        rare = {names[label]: counts[label] / counts.sum() for label in sorted(self._missed)}
        untaught = [name for name, share in rare.items() if not share]
        others = [f"{name} ({share:.2%})" for name, share in rare.items() if share]
        if others:
            complain(
                "No pixel of these classes was found in any epoch, their IoU is 0: "
                f"{', '.join(others)}; in brackets their share of the training masks. "
                f"{self.advice}",
                "warning",
            )
        if untaught:
            complain(
                f"No training mask has a pixel of these classes: {', '.join(untaught)}. Check "
                "--classes, --first-value and the masks, or add images.",
                "warning",
            )


def _mean_iou(model: keras.Model) -> keras.metrics.MeanIoU:
    """The metric among those of a compiled model."""
    compiled = [getattr(metric, "metrics", [metric]) for metric in model.metrics]
    return next(x for each in compiled for x in each if isinstance(x, keras.metrics.MeanIoU))
