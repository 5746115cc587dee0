"""Finds the model that a user names on the command line.

Every command takes a model in the same forms, see `MODEL_FORMS`.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import pathlib
from typing import Literal, NamedTuple, cast

import keras

from keras_vit.cli.output import complain
from keras_vit.cli.run_settings import CHECKPOINT_ENDINGS, CHECKPOINT_FORMS, MODEL_FORMS
from keras_vit.create import create_model
from keras_vit.errors import listed
from keras_vit.export.exported_model import ExportedModel
from keras_vit.export.formats import find_format, newest_version
from keras_vit.hub.addresses import is_address
from keras_vit.hub.catalog import fetch_weights, hub_advice, list_weights
from keras_vit.models.graph import final_operation
from keras_vit.models.resizing import resize_model
from keras_vit.pretrained import pretrained_of_size
from keras_vit.reading import read_text
from keras_vit.train.keras_files import load_keras_file
from keras_vit.train.run_folder import CONFIG, find_saved_model, read_config
from keras_vit.train.runs import load_run
from keras_vit.variants import find_config, find_variant, list_variants

_SHOWN = 3


class ModelSource(NamedTuple):
    """The source of a model.

    Args:
        kind: `"keras"` (a `.keras` file), `"checkpoint"` (a path or an address), `"published"`
            (`VARIANT/TAG`), `"variant"` (an architecture with random weights) or `"exported"` (a
            file or folder of one of the `FORMATS`).
        path: The `.keras` file, of a run folder the best one; `None` for all other kinds.
    """

    kind: Literal["keras", "checkpoint", "published", "variant", "exported"]
    path: pathlib.Path | None = None


def resolve_model(name: str) -> ModelSource:
    """Finds out in which of the `MODEL_FORMS` a model is named. Downloads nothing.

    Raises:
        FileNotFoundError: If a run folder has no model yet.
        ValueError: If nothing has this name. The message lists the forms and similar names.
    """
    path = pathlib.Path(name)
    if is_address(name):
        return ModelSource("keras" if name.endswith(".keras") else "checkpoint")
    if path.is_dir():
        saved = find_saved_model(path)
        if saved is not None:
            return ModelSource("keras", saved)
    if path.is_file() and path.suffix == ".keras":
        return ModelSource("keras", path)
    if path.exists():
        return ModelSource("exported" if _is_exported(path) else "checkpoint")
    variant, _, tag = name.rpartition("/")
    if tag.isidentifier() and _is_variant(variant):
        return ModelSource("published")
    if _is_variant(name):
        return ModelSource("variant")
    raise ValueError(
        f"There is no model or checkpoint {name!r}. {_similar(name)}Pass {MODEL_FORMS}; "
        f"`keras-vit weights list` shows published weights.{hub_advice(name)}"
    )


def open_model(
    name: str, image_size: tuple[int, int] | None = None, networks: bool = False
) -> keras.Model:
    """Loads or builds the model that a user names in one of the `MODEL_FORMS`.

    Random weights are the same every time, so that an export can be verified against them. The
    image size of a checkpoint, and where it comes from, is printed to standard error.

    Args:
        name: The name.
        image_size: Pixels along (height, width); `None` takes those of the model, of a checkpoint
            see `from_pretrained`.
        networks: Whether published networks for dense prediction are taken too.

    Raises:
        FileNotFoundError: If a run folder has no model yet.
        ValueError: If nothing has this name, the file is damaged, the model is such a network, or
            it cannot have that size; Keras may refuse a file.
        DownloadError: If an address or published weights cannot be fetched.
    """
    model = _open_any(name, image_size)
    facts = getattr(model, "published", None)
    if facts is not None and not networks:
        raise ValueError(
            f"{name} is a network for dense prediction ({facts['config']['architectures'][0]}), "
            "which this command does not take. `keras-vit depth`, `detect`, `segment predict`, "
            "`segment evaluate`, `export` and `verify` do."
        )
    return model


def _open_any(name: str, image_size: tuple[int, int] | None) -> keras.Model:
    source = resolve_model(name)
    if source.kind == "exported":
        raise ValueError(
            f"{name} is an exported file, which `keras-vit evaluate` and `predict` run. Here the "
            "model is needed that it was made from."
        )
    if source.kind == "keras":
        if pathlib.Path(name).is_dir() and (pathlib.Path(name) / CONFIG).exists():
            complain(load_run(name))
        return _resized(load_keras_file(source.path or fetch_weights(name)), name, image_size)
    if source.kind == "variant":
        complain(f"{name}: random weights.{hub_advice(name)}")
        keras.utils.set_random_seed(0)
        shape = None if image_size is None else (*image_size, find_config(name).channels)
        return create_model(name, input_shape=shape)
    model = pretrained_of_size(name, image_size)
    if model.load_report.size is not None:
        complain(f"{name}: {model.load_report.size}.")
    return model


def open_predictor(name: str, image_size: tuple[int, int] | None = None) -> keras.Model:
    """As `open_model`, for prediction alone: also an exported file, as an `ExportedModel`.

    Raises:
        ValueError: As for `open_model`, or if an exported file takes images of another size.
    """
    if resolve_model(name).kind != "exported":
        return open_model(name, image_size)
    model = ExportedModel(name)
    if image_size not in (None, model.config.input_shape[:2]):
        size = " x ".join(map(str, model.config.input_shape[:2]))
        raise ValueError(f"{name} takes images of {size} pixels. Leave --image-size out.")
    return cast("keras.Model", model)  # which has what prediction and evaluation read


def _is_exported(path: pathlib.Path) -> bool:
    if path.suffix not in CHECKPOINT_ENDINGS:  # whose first bytes may be any
        with contextlib.suppress(ValueError):
            return bool(find_format(newest_version(path)))
    return False


def _resized(model: keras.Model, name: str, image_size: tuple[int, int] | None) -> keras.Model:
    """A model of the same weights for images of another size, if it can be had."""
    if image_size is None or model.inputs[0].shape[1:3] == image_size:
        return model
    try:
        return resize_model(model, image_size)
    except ValueError as error:
        size = " x ".join(map(str, image_size))
        text = f"{name} cannot take images of {size} pixels"
        if not gives_class_maps(model):
            raise ValueError(f"{text}. {error}") from error
        own = " x ".join(map(str, model.input_shape[1:3]))
        raise ValueError(
            f"{text}: the decoder of a segmentation model is built for the maps of one size, here "
            f"of {own} pixels. Leave --image-size out: images of any size are resized to the "
            "model, or covered by windows with --mode slide. For another size, train one: "
            "`keras-vit segment train --image-size PIXELS`."
        ) from error


def gives_class_maps(model: keras.Model) -> bool:
    """Whether a model is a segmenter: other maps, such as a depth, are no classes of pixels."""
    shape = model.output_shape
    is_map = isinstance(shape, tuple) and len(shape) == 4 and shape[1:3] == model.input_shape[1:3]
    return is_map and final_operation(model).name == "logits"


def find_checkpoint(name: str, rehash: bool = False, download: bool = True) -> pathlib.Path:
    """Finds the file of a checkpoint, and downloads it if necessary.

    Args:
        name: One of the `CHECKPOINT_FORMS`.
        rehash: Whether to hash a file again that is unchanged in the cache.
        download: Whether to connect to a server; otherwise the cache alone is used.

    Raises:
        ValueError: If nothing has this name, or it is not a checkpoint.
        DownloadError: If it cannot be fetched, or is not the published file.
    """
    kind = resolve_model(name).kind
    if kind == "checkpoint":
        return fetch_weights(name, rehash=rehash, download=download)
    if kind == "published":
        variant, _, tag = name.rpartition("/")
        return fetch_weights(tag, variant, rehash, download)
    if kind in ("keras", "exported"):
        raise ValueError(
            f"{name!r} is a saved model, not a checkpoint. Pass {CHECKPOINT_FORMS}; "
            "`keras-vit inspect` describes a model, `keras-vit weights convert` writes a "
            "checkpoint."
        )
    raise ValueError(
        f"{name!r} is an architecture, not a checkpoint. {_similar(name)}Pass {CHECKPOINT_FORMS}; "
        f"see `keras-vit weights list`.{hub_advice(name)}"
    )


def class_names_of(name: str, labels: str | None, model: keras.Model) -> list[str]:
    """Class names of a model: from a text file, from its run, its own, or numbers.

    Args:
        name: As for `open_model`.
        labels: A text file with one class per line, or `None`.
        model: The model.

    Raises:
        ValueError: If the number of names is not that of the outputs.
    """
    is_exported = isinstance(model, ExportedModel)
    shape = model.output_shape if is_exported else model.outputs[0].shape
    path, classes = resolve_model(name).path, shape[-1]
    if labels is not None:
        names = read_text(labels).splitlines()
        if any("\0" in name for name in names):
            raise ValueError(f"{labels} holds NUL characters. Save it as text in UTF-8.")
    else:
        names = (read_config(path.parent) if path else {}).get("class_names", [])
        names = names or getattr(model, "class_names", None) or list(map(str, range(classes)))
    if len(names) != classes:
        raise ValueError(
            f"The model has {classes} classes, and {labels or path} names {len(names)}. Pass the "
            "class names of the model with --labels, one per line."
        )
    return list(names)


def names_in_data(name: str, labels: str | None, model: keras.Model, data: str) -> list[str]:
    """As `class_names_of`; numbers for a checkpoint where the folders of images are called so."""
    names = class_names_of(name, labels, model)
    if labels is None and resolve_model(name).kind == "checkpoint" and os.path.isdir(data):
        numbers = list(map(str, range(len(names))))
        folders = {entry.name for entry in os.scandir(data) if entry.is_dir()}
        return numbers if folders and folders <= set(numbers) else names
    return names


def task_of(name: str, model: keras.Model | None = None) -> str:
    """The task of a model: that of its run or its exported file, or `"single_label"`."""
    if isinstance(model, ExportedModel):
        return model.task
    path = resolve_model(name).path
    return (read_config(path.parent) if path else {}).get("task", "single_label")


def _is_variant(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(find_variant(name))
    return False


def _similar(name: str) -> str:
    """A sentence with names that are similar to a wrong one, or nothing."""
    cards = list_weights()
    named = sorted(card.name for card in cards if name in (card.variant, card.tag))
    if not named:
        parent = pathlib.Path(name).parent  # of what may be a missing file
        entries = os.listdir(parent)[:1000] if parent.is_dir() else []
        paths = (os.fspath(parent / entry) for entry in entries)
        candidates = [*list_variants(), *(card.name for card in cards), *paths]
        named = difflib.get_close_matches(name, candidates, n=_SHOWN)
    return f"Similar names: {listed(named, _SHOWN)}. " if named else ""
