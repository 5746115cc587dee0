"""Probes: a classifier on cached features of a frozen model, as one model to export."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import time
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.errors import needing_tensorflow
from keras_vit.evaluate.attentive import batched
from keras_vit.evaluate.counting import count_parameters, count_stages
from keras_vit.evaluate.feature_store import Features, store_features
from keras_vit.evaluate.probes import check_possible, cross_validate, find_probe, fit_head
from keras_vit.intervals import wilson_interval
from keras_vit.layers.float32 import Float32Policy
from keras_vit.models.feature_extraction import features_of, head_input_stage, token_stage
from keras_vit.models.graph import single_input
from keras_vit.models.lora import merge_lora
from keras_vit.progress import Progress, duration_text
from keras_vit.runtime.model import Model
from keras_vit.train.new_head import adapt_model

if TYPE_CHECKING:  # reading images needs TensorFlow
    from collections.abc import Iterator, Sequence

    from keras_vit.data.image_set import ImageSet

_TIMED = 8  # images of the batch that a plan times


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeResult:
    """A probe and how good it is. Made by `fit_probe`; `print(result)` describes it.

    Args:
        model: The frozen model with the probe as its head, from pixels to scores of classes.
        method: `"logistic"`, `"ridge"`, `"knn"` or `"attentive"`.
        setting: The setting that cross-validation chose.
        accuracies: Accuracy of the cross-validation by setting.
        right: Test images that are classified correctly; `None` without test images.
        tested: Number of test images.
        seconds: Seconds to compute missing features, and seconds to fit.
    """

    model: keras.Model
    method: str
    setting: float
    accuracies: dict[float, float]
    right: int | None
    tested: int
    seconds: tuple[float, float]

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test images, in [0, 1]."""
        return None if self.right is None else self.right / self.tested

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of the accuracy."""
        return None if self.right is None else wilson_interval(self.right, self.tested)

    def __str__(self) -> str:
        best = self.accuracies[self.setting]
        name = find_probe(self.method).name
        lines = [f"{self.method} probe, {name}={self.setting:g}: {best:.2%} in cross-validation"]
        if self.accuracy is not None and self.interval is not None:
            low, high = self.interval
            lines.append(
                f"{self.accuracy:.2%} of {self.tested:,} test images (95 % interval {low:.2%} to "
                f"{high:.2%})"
            )
        lines.append("{:.1f} s for features, {:.1f} s to fit".format(*self.seconds))
        return "\n".join(lines)


def fit_probe(
    model: keras.Model,
    train: ImageSet,
    test: ImageSet | None,
    folder: str | os.PathLike[str],
    method: str = "logistic",
    settings: Sequence[float] | None = None,
    *,
    stage: str | None = None,
    folds: int = 5,
    seed: int = 0,
    batch_size: int = 32,
    verbose: bool | int = True,
) -> ProbeResult:
    """Fits a classifier to the features of a frozen model, which are computed once.

    Args:
        model: A model of this package, or a functional model that contains one. Its head is
            replaced; low-rank updates are merged.
        train: Labelled images to fit to; two of each class at least.
        test: Images to measure the accuracy on, or `None`.
        folder: Where the features are kept, see `store_features`: in `train` and `test`.
        method: `"logistic"` (multinomial regression with an L2 penalty, as scikit-learn's),
            `"ridge"` (the closed form of few-shot evaluation), `"knn"` (weighted vote of the
            nearest neighbours) or `"attentive"` (a learned query attends to the tokens).
        settings: Values to choose from by cross-validation: of `C`, of the ridge's strength, of
            the number of neighbours, or of the learning rate.
        stage: Name of the layer whose output is the features; `None` is the input of the head, for
            `"attentive"` the tokens before pooling. Other probes average tokens and feature maps.
        folds: Parts of the cross-validation.
        seed: Seed of these parts.
        batch_size: Images per step.
        verbose: Whether to print, now and then, how many features are computed, which fit runs, and
            how long the rest will take.

    Returns:
        A `ProbeResult`. Its model is saved and exported like any other.

    Raises:
        ValueError: If images do not have one class each, classes differ or have fewer than two
            images, or `folder` holds features of another model or other images.

    Example:

    >>> result = keras_vit.train.fit_probe(model, train, test, "features")  # doctest: +SKIP
    >>> result.model.save("probe.keras")  # doctest: +SKIP
    """
    with needing_tensorflow("`fit_probe`"):
        from keras_vit.data.image_set import check_same_classes

    probe = find_probe(method)
    if train.task != "single_label":
        raise ValueError(
            f"A probe needs one class for each image. {train.name} has task={train.task!r}."
        )
    if test is not None:
        check_same_classes(train.class_names, test)
    check_possible(folds, train.num_images)
    model = merge_lora(model)
    is_ours = isinstance(getattr(model, "config", None), (ViTConfig, ResNetConfig))
    replaces_head = is_ours and stage is None and not probe.takes_tokens
    if probe.takes_tokens:
        stage = stage or token_stage(model)
    elif replaces_head:
        model = adapt_model(model, train.num_classes)
    start = time.perf_counter()
    folder = pathlib.Path(folder)
    options: dict[str, Any] = {"batch_size": batch_size, "verbose": verbose}
    kept = store_features(model, train, folder / "train", stage, **options)
    arrange = _as_tokens if probe.takes_tokens else pooled
    x, y, classes = arrange(kept), kept.labels, train.num_classes
    held_out = None
    if test is not None:
        held_out = store_features(model, test, folder / "test", stage, **options)
    middle = time.perf_counter()
    accuracies = cross_validate(method, x, y, classes, settings, folds, seed, verbose)
    setting = max(accuracies, key=lambda value: accuracies[value])
    with Progress(f"{method} probe of all images", 1, "fits", verbose) as progress:
        progress.step(f"{probe.name}={setting:g}")
        head = fit_head(method, x, y, classes, setting)
    end = time.perf_counter()
    right = None
    if held_out is not None:
        scores = batched(head, arrange(held_out))
        right = int((scores.argmax(axis=-1) == held_out.labels).sum())
    return ProbeResult(
        model=_join(model, head, kept.stage, replaces_head),
        method=method,
        setting=setting,
        accuracies=accuracies,
        right=right,
        tested=0 if held_out is None else len(held_out.labels),
        seconds=(middle - start, end - middle),
    )


def describe_probe(
    model: keras.Model,
    train: ImageSet,
    test: ImageSet | None,
    method: str = "logistic",
    folds: int = 5,
    batch_size: int = 32,
) -> Iterator[tuple[str, str]]:
    """What `fit_probe` will do with its default settings, as pairs of a name and a text.

    The time is that of one batch of blank images on this machine, of every image that is there;
    features that are in the folder already take none.
    """
    probe = find_probe(method)
    tested = 0 if test is None else test.num_images
    counts = f"{train.num_images:,} to fit to, {tested:,} to test on"
    yield "images", f"{counts}, {train.num_classes} classes"
    stage = token_stage(model) if probe.takes_tokens else head_input_stage(model)
    network = features_of(model, stage)
    shape = network.output[stage].shape[1:]
    total = train.num_images + tested
    mebibytes = total * 4 * math.prod(shape) / 2**20
    size = " x ".join(map(str, shape))
    yield "features", f"{size} of each image, {mebibytes:,.1f} MiB on the disk, kept"
    count = len(probe.settings)
    fits = f"{count} values of {probe.name} on {folds} folds, one on all images"
    yield "fits", f"{folds * count + 1}: {fits}"
    with contextlib.suppress(ValueError):  # layers of another library are not counted
        stage_bytes = max(4 * (x.inputs + x.activations) for x in count_stages(model))
        memory = 4 * count_parameters(model) + batch_size * stage_bytes + 3 * mebibytes * 2**20
        yield "memory", f"about {memory / 2**30:.1f} GiB"
    if None in network.inputs[0].shape[1:]:  # images of any size
        return
    images = np.zeros((min(batch_size, total, _TIMED), *network.inputs[0].shape[1:]), "float32")
    text = duration_text(seconds_of_image(network, images) * total)
    yield "time", f"about {text} for the features here, from {len(images)} blank images"


def seconds_of_image(model: keras.Model, images: np.ndarray) -> float:
    """Time of the prediction of an image, in a batch of them."""
    for _ in range(2):  # the first one compiles
        start = time.perf_counter()
        model.predict_on_batch(images)
    return (time.perf_counter() - start) / len(images)


def pooled(features: Features) -> np.ndarray:
    """Features of shape `(B, D)`: the mean over tokens, or rows and columns."""
    x = np.asarray(features.values, "float32")
    return x.reshape(len(x), -1, x.shape[-1]).mean(axis=1)


def _as_tokens(features: Features) -> np.ndarray:
    """Tokens of shape `(B, T, D)`; positions of feature maps are tokens."""
    x = np.asarray(features.values, "float32")
    if x.ndim < 3:
        raise ValueError(
            f"An attentive probe needs tokens, and the outputs of {features.stage!r} are vectors. "
            'Pass the `stage` of a layer before pooling, such as "block_0".'
        )
    return x.reshape(len(x), -1, x.shape[-1])


def _join(model: keras.Model, head: keras.Layer, stage: str, replaces_head: bool) -> Model:
    """A model of the frozen layers and the head, which may replace that of a model of our own."""
    last = model.layers[-1]
    if replaces_head and isinstance(head, keras.layers.Dense) and last.name == "head":
        values = head.get_weights()
        if [w.shape for w in values] == [tuple(w.shape) for w in last.weights]:
            last.set_weights(values)
            return model
    x = features_of(model, stage).output[stage]
    if isinstance(head, keras.Sequential):  # an attentive probe
        if len(x.shape) == 4:
            x = keras.layers.Reshape((-1, x.shape[-1]), name="probe_tokens")(x)
        pooling, head = head.layers
        x = pooling(x)
    if len(x.shape) > 2:
        pooling = {3: keras.layers.GlobalAveragePooling1D, 4: keras.layers.GlobalAveragePooling2D}
        x = pooling[len(x.shape)]("channels_last", dtype=Float32Policy(), name="probe_pooling")(x)
    return Model(single_input(model), head(x), name=f"{model.name}_probe")
