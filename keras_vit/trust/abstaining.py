"""Prediction sets with a coverage, and rejection of pictures unlike the training data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_vit.abstention import Abstention as Abstention
from keras_vit.abstention import typicality_of
from keras_vit.errors import listed
from keras_vit.models.feature_extraction import head_input_stage
from keras_vit.models.heads import activate
from keras_vit.runtime.model import Model
from keras_vit.trust.calibrating import TooFewImagesError, predict_logits

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_MARGIN = 1e-4  # of the limit: an image that sets it stays in where files round otherwise
_PARTS = 5  # of the images, for the typicality of images that the Gaussian has not seen
_SHRUNK = 0.1  # share of equal variances in the covariance


def fit_abstention(
    model: Model,
    images: ImageSet,
    coverage: float = 0.9,
    false_alarms: float = 0.05,
    batch_size: int = 64,
    *,
    verbose: bool | int = True,
) -> Model:
    """Lets a classifier say which classes are possible, and that a picture is unlike the others.

    **Prediction sets** are those of split conformal prediction (https://arxiv.org/abs/2107.07511):
    of images that are exchangeable with the held-out ones, the set has the true class for a share
    `coverage` of them or more, whatever the model, on average over the choice of held-out images.
    It is no promise for one class, one image, or images of another camera. The classes in a set
    are those from a probability on: of all such rules the one with the smallest sets on average.
    **Typicality** is less the mean square of an image's features, of length 1, after a matrix that
    makes those of the held-out images uncorrelated, each of variance 1. Images below the limit that
    a share `false_alarms` of the held-out images falls below are not accepted.

    Args:
        model: A classifier of this package with one class for each image, calibrated or not:
            `calibrate` it first. The input of its head must be known.
        images: Held-out images, which neither trained the model nor chose anything.
        coverage: Share of images whose set has the true class, in (0, 1).
        false_alarms: Share of images like these that are not accepted, in (0, 1).
        batch_size: Images per step. One batch is in memory, all probabilities and features.
        verbose: Whether to print, now and then, how many images are predicted.

    Returns:
        The same model, with `model.abstention`. Exports of it have the outputs `accepted`,
        `typicality` and `prediction_set`; `.keras` files keep it, and training drops it.

    Raises:
        TooFewImagesError: If there are too few images for the coverage or the false alarms (the
            message says how many it takes), or none of a class. It is a `ValueError`.
        ValueError: If images do not have one class each, or other classes than the model.
    """
    for name, share in (("coverage", coverage), ("false_alarms", false_alarms)):
        if not 0 < share < 1:
            raise ValueError(f"`{name}` must be in (0, 1). Received: {share!r}.")
    features, probabilities, labels = predict_features(
        model, images, max(coverage, 1 - false_alarms), batch_size, verbose
    )
    missing = [name for k, name in enumerate(images.class_names) if not (labels == k).any()]
    if missing:
        raise TooFewImagesError(
            f"{images.name} has no images of {listed(missing)}, so nothing is known of their sets."
        )
    least, size = fit_sets(probabilities, labels, coverage)
    limits = (least, *fit_typicality(features, false_alarms))
    model.abstention = Abstention(coverage, *limits, len(labels), size, false_alarms)
    return model


def predict_features(
    model: keras.Model, images: ImageSet, share: float | None, batch_size: int, verbose: bool | int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input of the head, probabilities and labels of images with one class each.

    Raises:
        TooFewImagesError: If a limit that a `share` of the images is below takes more images.
        ValueError: As for `fit_abstention`.
    """
    if images.task != "single_label":
        raise ValueError(
            f"Prediction sets are of one class for each image. Received: {images.name} with "
            f"task={images.task!r}. Of several labels, choose thresholds: `fit_thresholds`."
        )
    needed = 1 if share is None else images_needed(share)
    if images.num_images < needed:
        raise TooFewImagesError(
            f"A limit for {share:.4g} of the images takes {needed} held-out images or more. "
            f"Received: {images.num_images}."
        )
    stage = head_input_stage(model)
    features, logits, labels = predict_logits(model, images, batch_size, verbose, stage)
    calibration = getattr(model, "calibration", None)
    logits = logits if calibration is None else calibration.apply(logits)
    return features, activate(logits, "single_label").astype("float32"), labels


def fit_sets(probabilities: np.ndarray, labels: np.ndarray, coverage: float) -> tuple[float, float]:
    """The probability from which a class is in the set, and the mean number of classes in it."""
    count = len(labels)
    of_label = np.sort(probabilities[np.arange(count), labels])[::-1]
    least = float(of_label[math.ceil((count + 1) * coverage - 1e-9) - 1]) - _MARGIN
    return least, float(np.maximum((probabilities >= least).sum(axis=1), 1).mean())


def images_needed(coverage: float) -> int:
    """The fewest images, at least two, of which one can be the limit of such a coverage."""
    return max(2, math.ceil(coverage / (1 - coverage) - 1e-9))


def fit_typicality(features: np.ndarray, false_alarms: float) -> tuple[float, np.ndarray]:
    """Fits a Gaussian, and the typicality that a share `false_alarms` of images falls below.

    Each fifth of the images, features of shape `(n, D)`, is compared with the others.

    Returns:
        `least_typical` and `gaussian` of an `Abstention`.
    """
    parts = np.random.default_rng(0).permutation(len(features)) % _PARTS
    typicality = np.empty(len(features))
    for part in range(_PARTS):
        fitted, rest = _fit_gaussian(features[parts != part]), features[parts == part]
        typicality[parts == part] = ops.convert_to_numpy(typicality_of(rest, fitted))
    below = math.floor(false_alarms * (len(features) + 1) + 1e-9)
    return float(np.sort(typicality)[below - 1]), _fit_gaussian(features)


def _fit_gaussian(features: np.ndarray) -> np.ndarray:
    """`gaussian` of an `Abstention`; the covariance is moved towards one of equal variances."""
    x = features / np.sqrt(np.square(features).sum(axis=1, keepdims=True) + 1e-12)
    mean, width = x.mean(axis=0), x.shape[1]
    covariance = (1 - _SHRUNK) * np.cov(x.T, bias=True)
    covariance += (_SHRUNK * np.square(x - mean).sum() / x.size + 1e-8) * np.eye(width)
    root = np.linalg.cholesky(np.linalg.inv(covariance)).astype("float16")
    return np.concatenate([root, (mean @ root)[None]]).astype("float16")
