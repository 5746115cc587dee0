"""Few-shot linear evaluation of frozen features, in closed form.

A ridge regression maps the features of a few labelled images per class to targets of -1 and 1. It
has a closed form: there is no training, and the result depends only on the features. The paper's
5-shot numbers (Section 4.1 and Figure 5 of https://arxiv.org/abs/2010.11929) use this method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.errors import needing_tensorflow
from keras_vit.models.feature_extraction import features_of, head_input_stage
from keras_vit.progress import Progress

_REGULARIZATION = 2.0**10  # of big_vision today
_BIAS = 100.0  # a large constant feature, so that the bias is hardly regularised
_STDDEV_FLOOR = 1e-5
_BATCH = 16


def few_shot_scores(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    classes: int,
    regularizations: Sequence[float] = (_REGULARIZATION,),
    class_vectors: np.ndarray | None = None,
) -> np.ndarray:
    """Computes class scores of test images by ridge regression on labelled images.

    Features are standardised with the mean and the population standard deviation of the labelled
    images. All regularisation strengths share one eigendecomposition, in float64, of the smaller
    Gram matrix.

    With vectors of the classes, such as those of their names, the regularisation pulls the weights
    toward these vectors in place of zero: the strength weighs names against labelled images. The
    level and size of the names' scores are fitted to the targets first, by least squares.

    Args:
        features: Features of the labelled images, array of shape `(n, D)`.
        labels: Classes of the labelled images, integers of shape `(n,)` in [0, classes).
        test_features: Features of the test images, array of shape `(M, D)`.
        classes: Number of classes `K`.
        regularizations: Strengths `lambda` of the L2 regularisation, positive.
        class_vectors: Vectors of the classes, array of shape `(K, D)`, whose products with the
            features are scores, such as those of `keras_vit.image_text.class_vectors` for features
            of unit length.

    Returns:
        float64 array of shape `(R, M, K)`, `R` the number of strengths. The predicted class has
        the highest score along the last axis.

    Raises:
        ValueError: If shapes do not fit, labels are out of range, features or vectors are not
            finite, or a strength is not positive.
    """
    features, labels, test_features = _check(features, labels, test_features, classes)
    strengths = np.asarray(regularizations, "float64")
    if strengths.ndim != 1 or not len(strengths) or not (strengths > 0).all():
        raise ValueError(f"`regularizations` must be positive. Received: {regularizations!r}.")
    mean, stddev = features.mean(axis=0), features.std(axis=0) + _STDDEV_FLOOR
    x, test = _with_bias((features - mean) / stddev), _with_bias((test_features - mean) / stddev)
    targets = 2.0 * np.eye(classes)[labels] - 1.0  # (n, K)
    prior: Any = 0.0  # scores of the test images, where the strength is infinite
    if class_vectors is not None:
        fitted, prior = _prior_scores(features, test_features, class_vectors, targets)
        targets = targets - fitted
    if len(x) < x.shape[1]:
        values, vectors = np.linalg.eigh(x @ x.T)
        left, right = test @ (x.T @ vectors), vectors.T @ targets
    else:
        values, vectors = np.linalg.eigh(x.T @ x)
        left, right = test @ vectors, vectors.T @ (x.T @ targets)
    values = np.maximum(values, 0)  # negative values are rounding errors
    return np.stack([(left / (values + strength)) @ right + prior for strength in strengths])


def pick_shots(labels: np.ndarray, shots: int, seed: int | None = None) -> np.ndarray:
    """Picks a few images of each class.

    Args:
        labels: Integers of shape `(N,)`.
        shots: Images per class.
        seed: Seed of a random choice, as in big_vision; `None` takes the first images of each
            class, as the official evaluation of 2020.

    Returns:
        Indices of the images, integers of shape `(shots * classes,)`, class by class.

    Raises:
        ValueError: If `shots` is not positive, or classes have fewer images; it lists them all.
    """
    labels = np.asarray(labels)
    if shots < 1:
        raise ValueError(f"`shots` must be positive. Received: {shots}.")
    images_by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    few = [f"{labels[p[0]]} ({len(p)})" for p in images_by_class if len(p) < shots]
    if few:
        raise ValueError(
            f"{shots} shots need as many images of each class. Classes with fewer, and how many "
            f"they have: {', '.join(few)}."
        )
    if seed is not None:
        random = np.random.default_rng(seed)
        images_by_class = [random.permutation(p) for p in images_by_class]
    return np.concatenate([p[:shots] for p in images_by_class])


def few_shot_accuracy(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    shots: Sequence[int] = (1, 5, 10, 25),
    regularizations: Sequence[float] = (_REGULARIZATION,),
    seed: int | None = None,
) -> dict[int, np.ndarray]:
    """Computes the few-shot accuracy of features, for each number of shots.

    Args:
        features: Features of the images to pick shots from, array of shape `(N, D)`.
        labels: Classes of these images, integers of shape `(N,)`.
        test_features: Features of the test images, array of shape `(M, D)`.
        test_labels: Classes of the test images, integers of shape `(M,)`.
        shots: Numbers of images per class.
        regularizations: As for `few_shot_scores`.
        seed: As for `pick_shots`.

    Returns:
        Dictionary from the number of shots to accuracies in [0, 1], a float64 array of shape
        `(R,)` with one value per regularisation strength.

    Raises:
        ValueError: As `few_shot_scores` and `pick_shots`, or if a class of `test_labels` is not in
            `labels`.
    """
    names, labels = np.unique(np.asarray(labels), return_inverse=True)
    unknown = np.setdiff1d(test_labels, names)
    if len(unknown):
        raise ValueError(
            "Every class of `test_labels` must be in `labels`. Missing: "
            f"{', '.join(map(str, unknown))}."
        )
    expected = np.searchsorted(names, test_labels)
    accuracies = {}
    for count in shots:
        picked = pick_shots(labels, count, seed)
        scores = few_shot_scores(
            np.asarray(features)[picked], labels[picked], test_features, len(names), regularizations
        )
        accuracies[count] = (scores.argmax(axis=-1) == expected).mean(axis=-1)
    return accuracies


def evaluate_few_shot(
    model: keras.Model,
    train: Any,
    test: Any,
    shots: Sequence[int] = (1, 5, 10, 25),
    regularizations: Sequence[float] = (_REGULARIZATION,),
    seed: int | None = None,
    stage: str | None = None,
    verbose: bool | int = True,
) -> dict[int, np.ndarray]:
    """Computes the few-shot accuracy of a frozen model's features.

    The official protocol resizes images to 256 x 256, without keeping the aspect ratio, and takes
    the central crop of 224 x 224, for training and test alike, without augmentation.

    Args:
        model: A model of this package, or a functional model that contains one.
        train: Labelled images: an `ImageSet`, which is transformed as for evaluation; a pair of
            arrays `(images, labels)`; or an iterable of batches of such pairs, such as a
            `tf.data.Dataset`. The model computes each image once.
        test: Labelled test images, as for `train`.
        shots: Numbers of images per class.
        regularizations: As for `few_shot_scores`.
        seed: As for `pick_shots`.
        stage: Name of the layer whose output is the features; `None` takes the input of the head.
        verbose: Whether to print, now and then, how many images are computed.

    Returns:
        As for `few_shot_accuracy`.

    Raises:
        ValueError: As for `few_shot_accuracy`, or if the model has no such layer.

    Example:
        accuracies = keras_vit.evaluate.evaluate_few_shot(model, train, test, shots=(5,))
    """
    stage = stage or head_input_stage(model)
    part = features_of(model, stage)
    features, labels = _features_and_labels(part, stage, train, model, verbose)
    test_features, test_labels = _features_and_labels(part, stage, test, model, verbose)
    return few_shot_accuracy(
        features, labels, test_features, test_labels, shots, regularizations, seed
    )


def _prior_scores(
    features: np.ndarray, test_features: np.ndarray, class_vectors: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores `a s + b` of both kinds of images, `s` their products with the vectors.

    A ridge regression of what is left of the targets is one toward these scores: both are affine.
    """
    vectors = np.asarray(class_vectors, "float64")
    expected = (targets.shape[1], features.shape[1])
    if vectors.shape != expected or not np.isfinite(vectors).all():
        raise ValueError(
            f"`class_vectors` must be finite, of shape (classes, D) = {expected}. Received: shape "
            f"{vectors.shape}."
        )
    scores = features @ vectors.T  # (n, K)
    centered = scores - scores.mean()
    a = max(0.0, float((centered * targets).sum() / max((centered**2).sum(), 1e-30)))
    b = float(targets.mean() - a * scores.mean())
    return a * scores + b, a * (test_features @ vectors.T) + b


def _check(
    features: np.ndarray, labels: np.ndarray, test_features: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features, test_features = np.asarray(features, "float64"), np.asarray(test_features, "float64")
    labels = np.asarray(labels)
    if (
        features.ndim != 2
        or labels.shape != features.shape[:1]
        or test_features.ndim != 2
        or test_features.shape[1] != features.shape[1]
        or not len(features)
    ):
        raise ValueError(
            "Few-shot evaluation takes features of shape (n, D), labels (n,) and test features "
            f"(M, D). Received: {features.shape}, {labels.shape}, {test_features.shape}."
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"`labels` must be integers in 0 to {classes - 1}. Received: {labels.dtype} from "
            f"{labels.min()} to {labels.max()}."
        )
    for name, values in (("features", features), ("test_features", test_features)):
        if not np.isfinite(values).all():
            raise ValueError(f"`{name}` must be finite. Received: NaN or infinity among them.")
    return features, labels, test_features


def _with_bias(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.full((len(x), 1), _BIAS)], axis=1)


def _features_and_labels(
    part: keras.Model, stage: str, data: Any, model: keras.Model, verbose: bool | int
) -> tuple[np.ndarray, np.ndarray]:
    features, labels = [], []
    total = len(data[0]) if isinstance(data, tuple) else getattr(data, "num_images", None)
    task = f"features of {getattr(data, 'name', 'images')}"
    with Progress(task, total, "images", verbose) as progress:
        for images, classes in _batches(data, model):
            x = np.asarray(part.predict_on_batch(images)[stage], "float32")
            features.append(x.reshape(len(x), -1, x.shape[-1]).mean(axis=1))
            labels.append(np.asarray(classes))
            progress.update(progress.done + len(x))
    if not features:
        raise ValueError("There must be at least one batch of images and labels. Received: none.")
    return np.concatenate(features), np.concatenate(labels)


def _batches(data: Any, model: keras.Model) -> Iterable[tuple[Any, Any]]:
    """Batches of arrays or of an `ImageSet`, whose classes need not be those of the head."""
    if isinstance(data, tuple):
        starts = range(0, len(data[0]), _BATCH)
        return ((data[0][i : i + _BATCH], data[1][i : i + _BATCH]) for i in starts)
    if not hasattr(data, "num_classes"):  # batches already
        return data
    with needing_tensorflow("An `ImageSet`"):
        from keras_vit.data.batches import eval_batches
        from keras_vit.data.input_transform import transform_of

    transform = dataclasses.replace(transform_of(model), classes=None)
    return eval_batches(data, transform, _BATCH, one_hot=False)
