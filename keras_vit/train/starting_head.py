"""The head that fine-tuning starts from: a probe on features of some training images."""

from __future__ import annotations

import functools
import tempfile
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit.distribution.cluster import find_cluster
from keras_vit.evaluate.feature_store import store_features
from keras_vit.evaluate.linear_fits import STRENGTHS, fit_labels, fit_numbers
from keras_vit.evaluate.probes import check_finite, cross_validate, fit_head
from keras_vit.runtime.model import Model
from keras_vit.train.probe import pooled

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

STARTING_IMAGES = 1_000  # that a head starts from
_READ = 4  # images a class of records at least, of which nine of ten classes have two or more
NEEDED = (
    "a model with one head, and images of at least two classes with two images each, one label "
    "that two images have and two lack, or two images with numbers"
)
_INSTEAD = 'the recipe of `plan_training(..., initial_head="zeros")`'


class StartingImages:
    """The images that a head starts from, and their features at each size, computed once.

    Args:
        images: As for `start_head`.
        seed: As for `start_head`.
    """

    def __init__(self, images: ImageSet, seed: int = 0):
        self._given = images, seed
        self._rows: dict[tuple[int, ...], dict[int, np.ndarray]] = {}

    @functools.cached_property
    def images(self) -> ImageSet:
        """The images that the sample is drawn from, with known labels."""
        images, seed = self._given
        if images.labels is not None:
            return images
        count = max(STARTING_IMAGES, _READ * images.num_classes)
        return images.in_memory(count, seed)  # they are read one after the other

    @functools.cached_property
    def sample(self) -> ImageSet:
        """About 1,000 of the images, or all of those that no head can start from."""
        if not can_start(self.images):
            return self.images
        return self.images.subset(np.sort(_draw(self.images, self._given[1])))

    def features(
        self, model: Model, positions: np.ndarray | None = None, verbose: bool | int = True
    ) -> np.ndarray:
        """Features `(n, F)` of the sample, or of its images at some positions.

        Args:
            model: A model whose weights, but those of its head, are the same in every call.
            positions: The positions; `None` is all.
            verbose: As for `store_features`.
        """
        wanted = range(self.sample.num_images) if positions is None else positions.tolist()
        rows = self._rows.setdefault(tuple(model.input_shape[1:3]), {})
        missing = np.array([each for each in wanted if each not in rows], dtype=int)
        if len(missing):
            part = self.sample.subset(missing)
            with tempfile.TemporaryDirectory() as folder:
                x = pooled(store_features(model, part, folder, verbose=verbose))
            check_finite(x)
            rows.update(zip(missing, x, strict=True))
        return np.stack([rows[each] for each in wanted])

    def release(self) -> None:
        """Lets go of images that were read into memory, and of features."""
        for kept in ("images", "sample"):
            self.__dict__.pop(kept, None)
        self._rows.clear()


def start_head(
    model: Model, images: ImageSet | StartingImages, seed: int = 0, verbose: bool | int = True
) -> None:
    """Gives a model with a new head that of a probe on its training images.

    About 1,000 images are drawn: of every class equally many, and two at least; of several labels
    some that have and some that lack each, and any others. Classes take multinomial logistic
    regression, several labels a logistic regression each, numbers ridge regression.
    Cross-validation chooses the strength of the penalty.

    A class with fewer than two images has a kernel of zeros and the smallest bias. A label that
    fewer than two images have, or fewer than two lack, has a kernel of zeros, and its share decides
    the bias.

    Args:
        model: A model with one head, which is changed.
        images: Images. Of those that are read one after the other, about 1,000 are read. Those of
            `StartingImages` keep their features.
        seed: Seed of the choice of images and of the cross-validation.
        verbose: As for `fit_probe`.

    Raises:
        ValueError: If the model has two heads, the images are too few, or this is one of several
            workers.
    """
    cluster = find_cluster()
    if cluster is not None and len(cluster.addresses) > 1:
        raise ValueError(
            f"Several workers would fit heads that differ in rounding. Take {_INSTEAD}, or a model "
            "that one process fine-tuned or probed."
        )
    head = model.layers[-1]
    if not isinstance(head, keras.layers.Dense):
        raise ValueError(
            "One dense head can start from a probe. Received: a model that ends in "
            f"{head.name!r}. Take {_INSTEAD}."
        )
    start = images if isinstance(images, StartingImages) else StartingImages(images, seed)
    images, sample = start.images, start.sample
    if not can_start(images):
        raise ValueError(
            f"A head from a probe needs {NEEDED}. Received: {images.name}, "
            f"task={images.task!r}. Take {_INSTEAD}."
        )
    x = start.features(model, verbose=verbose)
    fit = {"single_label": _fit_classes, "multi_label": _fit_labels}.get(images.task, _fit_numbers)
    head.set_weights(list(fit(x, images, sample, seed, verbose)))


def can_start(images: ImageSet) -> bool:
    """Whether `start_head` can fit a head to these images, as far as their labels are known."""
    if images.labels is None or images.num_images < 2:
        return images.num_images > 1
    return len(_find_outputs(images)) > (images.task == "single_label")


def _find_outputs(images: ImageSet) -> np.ndarray:
    """Outputs to fit: classes of two images or more, labels that two have and two lack, numbers."""
    labels = np.asarray(images.labels)
    if images.task == "regression":
        return np.arange(images.num_classes)
    if images.task == "single_label":
        return np.flatnonzero(np.bincount(labels, minlength=images.num_classes) > 1)
    counts = labels.sum(axis=0, dtype="float64")
    return np.flatnonzero(np.minimum(counts, len(labels) - counts) > 1)


def _draw(images: ImageSet, seed: int) -> np.ndarray:
    """Positions of the images of the probe."""
    labels, outputs = np.asarray(images.labels), _find_outputs(images)
    order = np.random.default_rng(seed).permutation(images.num_images)
    if images.task == "regression":
        return order[:STARTING_IMAGES]
    if images.task == "single_label":
        most = max(2, STARTING_IMAGES // images.num_classes)
        return np.concatenate([order[labels[order] == label][:most] for label in outputs])
    most, has = max(2, STARTING_IMAGES // (2 * images.num_classes)), labels[order] > 0
    own = [order[has[:, k] == value][:most] for k in outputs for value in (True, False)]
    first = dict.fromkeys(np.concatenate(own).tolist())
    drawn = list(dict.fromkeys([*first, *order.tolist()]))
    return np.array(drawn[: max(STARTING_IMAGES, len(first))])


def _fit_classes(
    x: np.ndarray, images: ImageSet, sample: ImageSet, seed: int, verbose: bool | int
) -> tuple[np.ndarray, np.ndarray]:
    outputs = _find_outputs(sample)
    y, classes = np.searchsorted(outputs, np.asarray(sample.labels)), len(outputs)
    folds = min(5, len(x))
    found = cross_validate("logistic", x, y, classes, STRENGTHS, folds, seed, verbose)
    setting = max(found, key=lambda value: found[value])
    kernel = np.zeros((x.shape[1], images.num_classes))
    kernel[:, outputs], values = fit_head("logistic", x, y, classes, setting).get_weights()
    bias = np.full(images.num_classes, values.min())
    bias[outputs] = values
    return kernel, bias


def _fit_labels(
    x: np.ndarray, images: ImageSet, sample: ImageSet, seed: int, verbose: bool | int
) -> tuple[np.ndarray, np.ndarray]:
    outputs, y = _find_outputs(sample), np.asarray(sample.labels)
    kernel = np.zeros((x.shape[1], images.num_classes))
    bias = _log_odds(np.asarray(images.labels))
    fitted = fit_labels(x, y[:, outputs], seed, verbose)
    # Rare labels are more frequent in the sample.
    kernel[:, outputs], bias[outputs] = fitted[0], fitted[1] + (bias - _log_odds(y))[outputs]
    return kernel, bias


def _log_odds(labels: np.ndarray) -> np.ndarray:
    """Of the share of images that have each label, as if half an image more had and lacked it."""
    counts = labels.sum(axis=0, dtype="float64")
    return np.log((counts + 0.5) / (len(labels) - counts + 0.5))


def _fit_numbers(
    x: np.ndarray, images: ImageSet, sample: ImageSet, seed: int, verbose: bool | int
) -> tuple[np.ndarray, np.ndarray]:
    kernel, bias = fit_numbers(x, np.asarray(sample.labels), seed, verbose)
    return (kernel, bias) if kernel.any() else (kernel, np.zeros_like(bias))  # predicts the mean
