"""An exported file as a model for evaluation: its input, its classes and its predictions."""

from __future__ import annotations

import os
import types
from typing import Any

import numpy as np

from keras_vit.calibration import Calibration
from keras_vit.config import Preprocessing
from keras_vit.export.formats import FORMATS, find_format, newest_version
from keras_vit.reading import parse_json, refusing

_TASKS = {"sigmoid": "multi_label", "linear": "regression"}  # by the activation of an export


class ExportedModel:
    """An exported file with what prediction and evaluation read of a `keras.Model`.

    Its class names, the size of its images and their preprocessing are those of the model card that
    the export wrote into the file (`serving.model_card`). `config` has the names of the fields of a
    model's configuration.

    Args:
        path: A SavedModel version or the directory of its versions, of which the newest is taken; a
            LiteRT file; an ONNX file; or the .xml file of OpenVINO.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If the package that runs the format is not installed.
        ValueError: If it is no export of this package, or does not give classes of images.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path, self.name = newest_version(path), os.fspath(path)
        form = find_format(self.path)
        with refusing(self.path, f"cannot be run as {form}", "Export the model again."):
            self._run = FORMATS[form].load(self.path)
        text = getattr(self._run, "card", None)
        if text is None:
            raise ValueError(
                f"{self.name} has no model card, so the range of its pixels and its classes are "
                "not known. Pass a file that `keras-vit export` wrote."
            )
        problem = "has a model card that is damaged, or not its own"
        with refusing(self.name, problem, "Export the model again.", ValueError):
            card = parse_json(text)
            preprocessing = Preprocessing(**card["preprocessing"])
            shape = tuple(map(int, card["input_shape"]))
            activation, labels = str(card["activation"]), list(map(str, card["labels"]))
            outputs = self._run(np.zeros((1, *shape), "float32"))
            own, golden = card.get("output"), dict(card["golden"])
            fitted = card.get("calibration")
            calibration = None if fitted is None else Calibration(**fitted)
        self._output = next(x for x in (own, "logits", "probabilities", *outputs) if x in outputs)
        self.output_shape = (None, *outputs[self._output].shape[1:])
        classes = self.output_shape[-1]
        if len(self.output_shape) != 2 or len(labels) not in (0, classes):
            raise ValueError(
                "An output of shape (B, K) with K labels or none is expected. Received: "
                f"{self.name} with {self._output!r} of shape {self.output_shape}, and "
                f"{len(labels)} labels."
            )
        scores = golden.get("probabilities")
        is_activated = scores is not None and golden.get(self._output) == scores
        self.calibration = None if is_activated else calibration  # of the logits
        self.class_names = tuple(labels or map(str, range(classes)))
        self.task = _TASKS.get(activation, "single_label")
        self.config = types.SimpleNamespace(
            input_shape=shape,
            preprocessing=preprocessing,
            include_preprocessing=True,
            classes=None if self._output == "features" else classes,
            classifier_activation=activation if is_activated else None,
        )

    def predict_on_batch(self, pixels: Any) -> np.ndarray:
        """Outputs of shape `(B, K)` for pixels of shape `(B, H, W, C)` in [0, 255]."""
        return self._run(np.asarray(pixels, "float32"))[self._output]
