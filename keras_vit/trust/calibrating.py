"""Calibration of a trained classifier on held-out images: a temperature, or Platt's scaling."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import keras
import numpy as np

from keras_vit.calibration import ACTIVATIONS
from keras_vit.calibration import Calibration as Calibration
from keras_vit.evaluate.targets import LabelPredictions, predict_targets
from keras_vit.installation import needing
from keras_vit.models.feature_extraction import features_of
from keras_vit.models.graph import check_head
from keras_vit.models.heads import activate, class_logits
from keras_vit.progress import Progress
from keras_vit.runtime.model import Model

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

FEWEST = 50  # images for a temperature: `benchmarks/trust.py` shows what fewer would do
FEWEST_OF_LABEL = 10  # images with a label, and without it
_FEWEST_WRONG = 3  # mistakes: without one, the best temperature is 0
_LIMITS = (1e-4, 1e4)  # of the inverse of a temperature


class TooFewImagesError(ValueError):
    """Held-out images are too few for what was asked."""


def calibrate(
    model: Model, images: ImageSet, batch_size: int = 64, *, verbose: bool | int = True
) -> Model:
    """Makes the probabilities of a trained classifier right as often as they say.

    Of one class for each image, logits are divided by a temperature
    (https://arxiv.org/abs/1706.04599), which does not change the order of classes. Of several
    labels, each has a scale and an offset (Platt's scaling), fitted to targets that are a little
    less than 1 and more than 0, as Platt's. Both minimise the negative log-likelihood of the
    images, which the model was not trained on. A calibration is right for images like these: from
    another camera, a model is often overconfident again.

    Args:
        model: A classifier of this package.
        images: Held-out images, with one class each or several labels.
        batch_size: Images per step. One batch is in memory, and all logits.
        verbose: Whether to print, now and then, how many images are predicted.

    Returns:
        The same model, with `model.calibration`. Its own outputs do not change: the probabilities
        of exports, reports and commands do. `.keras` files keep the calibration; training drops it.

    Raises:
        TooFewImagesError: If there are too few images or mistakes for a temperature, or too few
            images with or without every label. It is a `ValueError`.
        ValueError: If the images have regression targets, or other classes than the model.

    Example:

    >>> model = keras_vit.trust.calibrate(model, validation)  # doctest: +SKIP
    >>> model.calibration.temperature  # doctest: +SKIP
    1.62
    """
    if images.task not in ACTIVATIONS:
        raise ValueError(
            f"Probabilities are calibrated, and {images.name} has task={images.task!r}. A "
            "regression has none."
        )
    if not isinstance(model, Model):
        raise TypeError(
            f"A calibration is kept by models of this package. Received: {type(model).__name__}. "
            "Wrap it: keras_vit.Model(model.input, model.output)."
        )
    check_head(model, "A calibration")
    _, logits, labels = predict_logits(model, images, batch_size, verbose, None)
    model.calibration = fit_calibration(logits, labels, images.task)
    model.abstention = None  # of other probabilities
    return model


def predict_logits(
    model: keras.Model, images: ImageSet, batch_size: int, verbose: bool | int, stage: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, logits and labels of images.

    Args:
        model: A classifier.
        images: Images of its classes.
        batch_size: Images per step.
        verbose: Whether to print, now and then, how many images are predicted.
        stage: Layer whose outputs are the features; `None` for none.
    """
    from keras_vit.data.batches import eval_batches
    from keras_vit.data.image_set import check_same_classes

    if getattr(model, "class_names", None) is not None:
        check_same_classes(model.class_names, images, images.task)
    head, found = model.layers[-1].name, []
    network = model if stage is None else features_of(model, [stage, head])
    batches = eval_batches(images, model, min(batch_size, images.num_images), one_hot=False)
    with Progress(f"logits of {images.name}", images.num_images, "images", verbose) as bar:
        for x, y in batches:
            outputs = network.predict_on_batch(x)
            features, outputs = (y, outputs) if stage is None else (outputs[stage], outputs[head])
            logits = class_logits(model, outputs).astype("float32")
            found.append((np.asarray(features), logits, np.asarray(y)))
            bar.update(bar.done + len(logits))
    features, logits, labels = (np.concatenate(each) for each in zip(*found, strict=True))
    return features.reshape(len(labels), -1), logits, labels


def fit_thresholds(
    model: Model, images: ImageSet, metric: str = "f1", precision: float | None = None
) -> Model:
    """Chooses from which probability each of several labels is predicted, on held-out images.

    Args:
        model: A classifier of this package with several labels, calibrated or not.
        images: Held-out images with several labels.
        metric: As for `keras_vit.evaluate.calibrate_thresholds`.
        precision: As for `keras_vit.evaluate.calibrate_thresholds`.

    Returns:
        The same model; `model.calibration.thresholds` holds them, and exports of it have the output
        `prediction_set`. A label that none or all of the images have keeps 0.5.

    Raises:
        ValueError: If images do not have several labels, or other labels than the model.
    """
    if images.task != "multi_label":
        raise ValueError(
            f"Thresholds are of several labels. Received: {images.name} with task={images.task!r}. "
            "Of one class for each image, `fit_abstention` gives the possible classes."
        )
    found = cast("LabelPredictions", predict_targets(model, images))
    thresholds, count = found.best_thresholds(metric, precision), images.num_classes
    fitted = model.calibration or Calibration("sigmoid", (1.0,) * count, (0.0,) * count)
    model.calibration = dataclasses.replace(fitted, thresholds=tuple(thresholds))
    return model


def fit_calibration(
    logits: np.ndarray, labels: np.ndarray, task: str = "single_label"
) -> Calibration:
    """Fits a calibration to logits of shape `(n, K)` of held-out images.

    Args:
        logits: Logits; of one class for each image, only their differences count.
        labels: Integers of shape `(n,)`, or 0 and 1 of shape `(n, K)`.
        task: `"single_label"` or `"multi_label"`.

    Returns:
        A `Calibration`. Labels with too few images, or whose scores rank images no better than
        chance, keep the scale 1 and the offset 0.

    Raises:
        TooFewImagesError: As for `calibrate`.
        ValueError: If logits are not finite.
    """
    count = len(labels)
    if not np.isfinite(logits).all():
        raise ValueError("Logits must be finite. Received: NaN or infinity among them.")
    if task == "single_label":
        wrong = int((logits.argmax(axis=1) != labels).sum())
        if count < FEWEST or wrong < _FEWEST_WRONG:
            raise TooFewImagesError(
                f"A temperature needs {FEWEST} held-out images or more, of which {_FEWEST_WRONG} "
                f"or more are classified wrongly. Received: {count} images, {wrong} wrong."
            )
        fitted = Calibration("softmax", _fit_temperature(logits, labels), (), count)
    else:
        if np.minimum(labels.sum(axis=0), (1 - labels).sum(axis=0)).max() < FEWEST_OF_LABEL:
            raise TooFewImagesError(
                f"A calibration needs {FEWEST_OF_LABEL} held-out images with a label, and as many "
                f"without it. Received: {count} images, too few for every label."
            )
        fitted = Calibration("sigmoid", *_fit_labels(logits, labels), count)
    pair = (logits, fitted.apply(logits))
    losses = [float(log_losses(each, labels, task).mean()) for each in pair]
    return dataclasses.replace(fitted, log_loss=(losses[0], losses[1]))


def log_losses(logits: np.ndarray, labels: np.ndarray, task: str) -> np.ndarray:
    """Negative log-likelihood of every image, in nats; of several labels, their mean."""
    logits = logits.astype("float64")
    if task == "multi_label":
        return np.logaddexp(0, np.where(labels > 0, -logits, logits)).mean(axis=1)
    highest = logits.max(axis=1)
    total = np.log(np.exp(logits - highest[:, None]).sum(axis=1)) + highest
    return total - logits[np.arange(len(labels)), labels]


def _fit_temperature(logits: np.ndarray, labels: np.ndarray) -> tuple[float]:
    """The scale with the smallest loss, which is convex: where its slope is 0, by halving."""
    z, (low, high) = logits.astype("float64"), np.log(_LIMITS)
    of_label = z[np.arange(len(z)), labels].mean()
    while high - low > 1e-7:
        middle = (low + high) / 2
        mean = (activate(np.exp(middle) * z, "single_label") * z).sum(axis=1).mean()
        low, high = (middle, high) if mean < of_label else (low, middle)
    return (float(np.exp(middle)),)


def _fit_labels(
    logits: np.ndarray, labels: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A scale and an offset for each label, by logistic regressions on one number, the logit."""
    with needing("probe", "The calibration of several labels needs scikit-learn"):
        from sklearn.linear_model import LogisticRegression

    scales, offsets = np.ones(labels.shape[1]), np.zeros(labels.shape[1])
    for k, (z, has) in enumerate(zip(logits.T, labels.T > 0, strict=True)):
        shown, others = int(has.sum()), int((~has).sum())
        if min(shown, others) < FEWEST_OF_LABEL:
            continue
        targets = np.where(has, (shown + 1) / (shown + 2), 1 / (others + 2))
        fit = LogisticRegression(C=1e9, tol=1e-9, max_iter=1000)  # a target is two weighted images
        fit.fit(np.tile(z, 2)[:, None], np.repeat((1, 0), len(z)), np.r_[targets, 1 - targets])
        if fit.coef_[0, 0] > 0:
            scales[k], offsets[k] = fit.coef_[0, 0], fit.intercept_[0]
    return tuple(scales.tolist()), tuple(offsets.tolist())
