"""Export of several adapters and heads on one backbone to one SavedModel."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.export.freeze import stack_equal
from keras_vit.export.inference import Inference, check_labels, prepare
from keras_vit.export.runners import load_saved_model
from keras_vit.export.saved_model import ServingModule
from keras_vit.export.verify import (
    ExportReport,
    Images,
    check,
    compare,
    expected_outputs,
    verification_images,
)
from keras_vit.files import list_names, local_or_remote, next_version, write_atomically
from keras_vit.models.lora import lora_layers
from keras_vit.runtime.private_names import flatten_layers

_MIN_SHARED = 0.5  # of the bytes of a model
_PIXELS = "_pixels"


def export_adapters(
    models: Mapping[str, keras.Model],
    path: str | os.PathLike[str],
    labels: Mapping[str, Sequence[str]] | None = None,
    version: int | None = None,
    top_k: int = 5,
    images: Images | None = None,
    tolerance: float | None = None,
    max_pixels: int = MAX_PIXELS,
) -> dict[str, ExportReport]:
    """Exports models that share a backbone as one SavedModel, and checks each of them.

    Weights with the same values are in the file once: the frozen backbone of models with low-rank
    updates (`add_lora`) or with other heads (`fit_probe`). Updates are not merged.

    A model called `pets` has the signature `pets`, from `image_bytes` (encoded images of any size),
    and `pets_pixels`, from float32 `pixels` in [0, 255] of its image size. Both return what
    those of `export_saved_model` return. `serving_default` is the signature of the first model.

    Args:
        models: Functional models in float32 by name, with logits as output.
        path: Directory of the versions, or a remote address, as for `export_saved_model`.
        labels: Class names of each model; by default its own, or class indices.
        version: Version number; `None` takes the next.
        top_k: Number of classes in `classes` and `scores`.
        images: Pixels or images for the check, as for `export_saved_model`.
        tolerance: Largest difference allowed, relative to the largest value of an output.
        max_pixels: Height times width above which an encoded image is refused.

    Returns:
        An `ExportReport` for each name, of the comparison with that model, its updates merged. The
        size is that of the whole version.

    Raises:
        FileExistsError: If the version exists.
        ValueError: If a model does not share most of its weights, cannot be exported, or names are
            wrong.
        ExportMismatchError: If the outputs of a signature differ from its model's. No file is left
            then.

    Example:

    >>> adapted = {"pets": pets, "birds": birds}  # doctest: +SKIP
    >>> keras_vit.export.export_adapters(adapted, "serving/animals")  # doctest: +SKIP
    """
    check_positive("top_k", top_k)
    labels = {} if labels is None else labels
    _check_names(models, labels)
    inferences = {name: _prepare(model) for name, model in models.items()}
    chosen = {
        name: check_labels(labels.get(name), inference.classes, models[name])
        for name, inference in inferences.items()
    }
    saved, reads = _share(inferences)
    base = local_or_remote(path)
    number = str(version if version is not None else next_version(list_names(base)))
    destination: pathlib.Path | str = f"{base}/{number}" if isinstance(base, str) else base / number
    reports = {}
    with write_atomically(destination) as unfinished:
        root, signatures = tf.Module(), {}
        root.weights = saved  # an attribute, so that they are saved
        for name, inference in inferences.items():
            module = ServingModule(
                inference, chosen[name], top_k, max_pixels=max_pixels, read=reads[name]
            )
            module_signatures = module.signatures()
            signatures[name] = module_signatures["serving_default"]
            signatures[f"{name}{_PIXELS}"] = module_signatures["pixels"]
            signatures.setdefault("serving_default", module_signatures["serving_default"])
        tf.saved_model.save(root, os.fspath(unfinished), signatures)
        for name, model in models.items():
            reference = prepare(model)
            pixels = verification_images(images, reference)
            runner = load_saved_model(unfinished, f"{name}{_PIXELS}")
            expected = expected_outputs(reference, pixels)
            report = compare(unfinished, "saved_model", "float32", runner, expected, pixels)
            inferences[name].check_unchanged()
            check(report, images is not None, tolerance)
            reports[name] = dataclasses.replace(report, path=destination)
    return reports


def _share(
    inferences: Mapping[str, Inference],
) -> tuple[list[tf.Variable], dict[str, Callable[[], list[tf.Tensor]]]]:
    """Stores equal variables once; returns them, and a function that reads each model's."""
    pool: dict[str, tf.Variable] = {}
    users: dict[str, set[str]] = {}
    found: dict[str, list[str]] = {}
    for name, inference in inferences.items():
        found[name] = []
        for variable in inference.model.variables:
            value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value))
            key = f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
            if key not in pool:
                pool[key] = tf.Variable(value, trainable=False, name=variable.name)
            found[name].append(key)
            users.setdefault(key, set()).add(name)
    apart = []
    for name, keys in found.items():
        sizes = {key: int(np.prod(pool[key].shape)) * pool[key].dtype.size for key in keys}
        common = sum(size for key, size in sizes.items() if len(users[key]) > 1)
        if common < _MIN_SHARED * sum(sizes.values()):
            apart.append(f"{name} ({common / sum(sizes.values()):.0%})")
    if apart:
        raise ValueError(
            "Models for one SavedModel must share a backbone: the same weights, to the bit. Shares "
            f"of the bytes that another model has too are too small: {', '.join(apart)}. Export "
            "these with `export_saved_model`, or train them with `add_lora` from one checkpoint."
        )
    saved: list[tf.Variable] = []
    stacks: dict[frozenset[str], tuple[list[str], Callable[[], list[tf.Tensor]]]] = {}
    for group in dict.fromkeys(map(frozenset, users.values())):
        keys = [key for key in pool if users[key] == group]
        variables, read = stack_equal([pool[key] for key in keys])
        saved += variables
        stacks[group] = keys, read

    def read_own(name: str) -> list[tf.Tensor]:
        values: dict[str, tf.Tensor] = {}
        for group, (keys, read) in stacks.items():
            if name in group:
                values.update(zip(keys, read(), strict=True))
        return [values[key] for key in found[name]]

    return saved, {name: partial(read_own, name) for name in found}


def _prepare(model: keras.Model) -> Inference:
    """Prepares a model with its updates as they are."""
    if not lora_layers(model):
        return prepare(model)
    policies = {layer.dtype_policy.name for layer in flatten_layers(model)}
    activation = getattr(model.layers[-1], "activation", keras.activations.linear)
    if policies != {"float32"} or activation is not keras.activations.linear:
        raise ValueError(
            f"Low-rank updates are exported unmerged from models in float32 with logits. "
            f"{model.name!r} has {', '.join(sorted(policies))} and ends with "
            f"{activation.__name__}. Export `keras_vit.models.merge_lora(model)` on its own."
        )
    return prepare(model, merge=False)


def _check_names(models: Mapping[str, keras.Model], labels: Mapping[str, Sequence[str]]) -> None:
    wrong = [name for name in models if not name.isidentifier() or name == "serving_default"]
    clashes = [name for name in models if f"{name}{_PIXELS}" in models]
    unknown = sorted(set(labels) - set(models))
    if wrong or clashes or unknown or len(models) < 2:
        raise ValueError(
            "`models` must be two models or more by names of signatures, such as 'pets', and "
            f"`labels` must have the same names. Received: {', '.join(models) or 'none'}"
            f"{f'; labels of {unknown}' if unknown else ''}."
        )
