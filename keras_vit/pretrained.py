"""`from_pretrained`: models by their checkpoint alone."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
from collections.abc import Collection, Sequence
from typing import Any, cast

import keras

from keras_vit.config import ViTConfig
from keras_vit.create import build_from
from keras_vit.errors import CheckpointError
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import find_tag, find_weights, hub_advice
from keras_vit.models.heads import shape_of
from keras_vit.runtime.model import Model
from keras_vit.variants import VARIANTS, chosen_fields, configure, find_variant, split_shape
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.inspection import FileInfo, inspect_checkpoint
from keras_vit.weights.load import check_supported
from keras_vit.weights.sidecar import architecture_of

# Networks of transformers that are a Vision Transformer under a head of their own: class, and the
# function that builds it, on a higher level.
NETWORKS = {
    "DepthAnythingForDepthEstimation": "depth.networks:load_depth_anything",
    "DPTForDepthEstimation": "depth.networks:load_dpt",
    "DPTForSemanticSegmentation": "segmentation.networks:load_dpt_segmenter",
    "BeitForSemanticSegmentation": "segmentation.networks:load_beit_segmenter",
    "VitPoseForPoseEstimation": "pose.networks:load_vitpose",
    "YolosForObjectDetection": "detection.networks:load_yolos",
    "RfDetrForObjectDetection": "detection.rf_detr:load_rf_detr",
    "RfDetrForInstanceSegmentation": "detection.rf_detr:load_rf_detr",
    "EomtForUniversalSegmentation": "segmentation.eomt:load_eomt",
    "EomtDinov3ForUniversalSegmentation": "segmentation.eomt:load_eomt",
}
# Classes whose input is more than images, and what loads them.
LOADERS = {
    "OwlViTForObjectDetection": "keras_vit.detection.load_open_vocabulary",
    "Owlv2ForObjectDetection": "keras_vit.detection.load_open_vocabulary",
    "SamModel": "keras_vit.segmentation.load_promptable",
}
# A variant of each family, whose sizes are replaced by those of a file.
_BASES = {
    "vit": "vit_b16",
    "hybrid": "r50_vit_b16",
    "bit": "bit_r50x1",
    "naflex": "siglip2_naflex_b16",
}


def from_pretrained(
    weights: str | os.PathLike[str],
    variant: str | None = None,
    include_top: bool | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = None,
    classes: int | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    name: str | None = None,
    prefix: str | None = None,
    **options: Any,
) -> Model:
    """Creates the model that a checkpoint was made for.

    The architecture is found from names and shapes in the file, and from the `config.json` that
    timm and transformers publish with it. It need not be one of `list_variants`.

    Args:
        weights: An address (`https://`, `gs://`, `hf://owner/name`), the path of a checkpoint
            (`.npz`, `.safetensors`), or `"VARIANT/TAG"` of `list_weights`.
        variant: Name of the architecture, if the checkpoint does not tell it.
        include_top: Whether the model ends in a head. `None` follows the checkpoint: without a
            head there, the model returns features of shape `(B, D)`, pooled as its project does,
            and with `classes` it has a head that starts at zero. `False` returns all tokens of
            shape `(B, T, D)`, or with `pooling` features of shape `(B, D)`, as in `create_model`.
        input_tensor: As in `create_model`.
        input_shape: Height and width in pixels, and channels; `None` takes those of
            `input_tensor`, or else the checkpoint's, and `(None, None, channels)` makes a model for
            images of any size. The size of a checkpoint is the one at which its preprocessing feeds
            images (`preprocessor_config.json`, or `input_size` of timm), in whole patches; without
            it, the size that its positions are for. `load_report` says which.
        pooling: As in `create_model`.
        classes: Outputs of the head; `None` takes the checkpoint's. With another number, the layer
            of classes or joints of a network for dense prediction starts from random weights.
        classifier_activation: As in `create_model`, and so are the rest.
        include_preprocessing: Whether the model takes pixels in [0, 255].
        name: Name of the model.
        prefix: As in `load_weights`.
        **options: Fields of the configuration, which override the checkpoint.

    Returns:
        A `keras_vit.Model`, whose `load_report` lists the outcome for every array. Networks for
        dense prediction, such as Depth Anything, return a dict with the names of transformers.

    Raises:
        ValueError: If the file is damaged (`CheckpointError`), or its architecture cannot be found;
            the message says what to pass.
        DownloadError: If it cannot be fetched.

    Example:

    >>> model = keras_vit.from_pretrained("hf://google/vit-base-patch16-224")  # doctest: +SKIP
    """
    card = _find_card(weights)
    path = _find_file(weights, card)
    if variant is None and include_top is not False and architecture_of(path) in NETWORKS:
        others = {"input_tensor": input_tensor, "pooling": pooling,
                  "classifier_activation": classifier_activation, "prefix": prefix}  # fmt: skip
        chosen = [key for key, value in others.items() if value is not None]
        if chosen:
            raise ValueError(
                f"{path} is a {architecture_of(path)}, which has a head of its own. Received: "
                f"{', '.join(chosen)}. Leave them out."
            )
        options |= {"input_shape": input_shape, "include_preprocessing": include_preprocessing}
        return _load_network(path, os.fspath(weights), name=name, classes=classes, **options)
    with open_checkpoint(path, prefix) as checkpoint:
        return build_pretrained(
            checkpoint,
            card,
            variant=variant,
            include_top=include_top,
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            include_preprocessing=include_preprocessing,
            name=name,
            **options,
        )


def pretrained_of_size(
    weights: str | os.PathLike[str], image_size: tuple[int, int] | None = None
) -> Model:
    """As `from_pretrained`, for images of (height, width) pixels and the checkpoint's channels."""
    card = _find_card(weights)
    path = _find_file(weights, card)
    if architecture_of(path) in NETWORKS:
        shape = None if image_size is None else (*image_size, 3)
        return _load_network(path, os.fspath(weights), input_shape=shape)
    with open_checkpoint(path) as checkpoint:
        return build_pretrained(checkpoint, card, input_shape=shape_for(checkpoint, image_size))


def _find_file(weights: str | os.PathLike[str], card: Card | None) -> pathlib.Path:
    """The local file of a model that images alone are the input of."""
    path = find_weights(weights, card)
    name = architecture_of(path)
    if name in LOADERS:
        raise ValueError(
            f"{path} is a {name}, which takes more than images: texts, points or boxes. Call "
            f"{LOADERS[name]}(folder), or on the command line `keras-vit detect FOLDER IMAGES "
            "--classes names.txt` (OWL-ViT, OWLv2) or `keras-vit segment masks` (SAM)."
        )
    return path


def find_class(
    weights: str | os.PathLike[str], classes: Collection[str], beside: Sequence[str] = ()
) -> pathlib.Path:
    """The local file of a checkpoint of one of a few classes of transformers.

    Args:
        weights: Its folder, its file or an address.
        classes: Names of the classes.
        beside: Names of further files of an address, as for `fetch`.

    Raises:
        CheckpointError: If it is of another class; the message says what loads it.
    """
    path = find_weights(weights, beside=beside)
    name = architecture_of(path)
    if name not in classes:
        raise CheckpointError(
            f"{path} is no {' or '.join(classes)}. Received: a "
            f"{name or 'checkpoint without a class in config.json'}. Call "
            f"{LOADERS.get(name, 'keras_vit.from_pretrained')}."
        )
    return path


def _load_network(path: pathlib.Path, address: str, **options: Any) -> Model:
    """Loads one of `NETWORKS`; their modules are imported where a file needs them."""
    module = importlib.import_module("keras_vit.networks.network_file")
    model: Model = module.load_network(NETWORKS[architecture_of(path)], path, address, **options)
    return model


def shape_for(
    checkpoint: Checkpoint, image_size: tuple[int, int] | None
) -> tuple[int, int, int] | None:
    """The `input_shape` of a size with the channels of a file; `None` without a size."""
    return None if image_size is None else (*image_size, checkpoint.sizes.get("channels", 3))


def build_pretrained(
    checkpoint: Checkpoint,
    card: Card | None = None,
    *,
    variant: str | None = None,
    include_top: bool | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = None,
    classes: int | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    name: str | None = None,
    **options: Any,
) -> Model:
    """Creates the model of an open checkpoint: see `from_pretrained`."""
    if classes is not None and classes < 1:
        raise ValueError(
            f"`classes` must be 1 or more. Received: {classes}. Pass include_top=False for a model "
            "that returns features."
        )
    info = inspect_checkpoint(checkpoint)
    stated = {} if card is None else card.options
    input_shape = input_shape or shape_of(input_tensor)
    known = {*options, *stated} | ({"pooling"} if pooling is not None else set())
    if input_shape is not None and split_shape(input_shape)[0] is not None:
        known |= {"image_size"}
    check_supported(checkpoint, known)
    sizes: dict[str, Any] = {}
    pooled: set[str] = set()
    if card is not None:
        variant = card.variant
    elif variant is None:
        variant, sizes = _find_architecture(info, options)
    if include_top is None:
        include_top = classes is not None or info.classes is not None
        if not include_top and pooling is None:
            pooling = {"pooling": "gap", **info.options, **stated}["pooling"]
            pooled = {"pooling"}  # by the file
    any_size = (
        isinstance(input_shape, (tuple, list))
        and input_shape[:2] == (None, None)
        and "stages" not in info.sizes
    )
    shape = input_shape
    if input_shape is None or any_size:
        file_shape = _input_shape(info, bool(sizes))
        if file_shape is not None and input_shape is not None:
            file_shape = (*file_shape[:2], input_shape[2])
        shape = file_shape or input_shape
    found = (sizes.keys() | pooled) - options.keys()
    options = {**sizes, **options}
    config = configure(
        variant,
        include_top=include_top,
        input_shape=shape,
        pooling=pooling,
        classes=info.classes or 1000 if classes is None else classes,
        classifier_activation=classifier_activation,
        include_preprocessing=include_preprocessing,
        **options,
    )
    if any_size and isinstance(config, ViTConfig):
        config = dataclasses.replace(config, any_size=True)
    chosen = chosen_fields(variant, include_top, input_shape, pooling, options)
    name = name or find_variant(variant)
    return build_from(checkpoint, config, chosen, card, name, input_tensor, found)


def _find_card(weights: str | os.PathLike[str]) -> Card | None:
    """Finds the card of `"vit_b16/augreg_in21k"`; `None` for a path or an address."""
    text = os.fspath(weights)
    variant, _, tag = text.rpartition("/")
    if not variant or not tag.isidentifier() or "://" in text or os.path.exists(text):
        return None
    if variant.count("/") > 1 or variant.startswith((".", "/", "~")):  # no "B/16" or "vit_b16"
        return None
    try:
        find_variant(variant)
    except ValueError as error:
        raise ValueError(
            f"There is no file or folder {text!r} here, and no architecture {variant!r} with "
            f"published weights. Check the path, or see `list_weights()`.{hub_advice(text)}"
        ) from error
    return find_tag(variant, tag)


def _find_architecture(info: FileInfo, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Finds the variant, and the fields in which the file differs from it."""
    sizes = {key: value for key, value in info.sizes.items() if key != "channels"}
    if not sizes:
        raise ValueError(
            f"{info.path} ({info.layout} layout) lacks arrays that tell its architecture. Name it: "
            "create_model(variant, weights=...) lists what else does not fit."
        )
    heads = options.get("num_heads", info.options.get("num_heads"))
    if "width" in sizes and heads is None:
        shown = ", ".join(f"{key}={value}" for key, value in sizes.items())
        likely = ""
        if info.variant is not None:
            config = cast(ViTConfig, VARIANTS[info.variant])
            likely = (
                f" A {info.variant}, of the same sizes, has num_heads={config.block.num_heads}."
            )
        raise ValueError(
            f"{info.path} ({shown}) does not tell the number of attention heads.{likely} Pass "
            "num_heads (--num-heads) or the architecture as `variant` (--variant), or fetch the "
            "config.json of its repository to the same folder."
        )
    naflex = "max_num_patches" in info.options
    if info.variant is not None and not naflex:
        return info.variant, {}
    if "width" in sizes:
        sizes["num_heads"] = heads
    if "stem" in sizes:
        sizes["stem"] = dataclasses.replace(sizes["stem"], **info.options.get("stem", {}))
    kinds = {"bit": "stages" in sizes, "hybrid": "stem" in sizes, "naflex": naflex, "vit": True}
    return _BASES[next(kind for kind, is_it in kinds.items() if is_it)], sizes


def _input_shape(info: FileInfo, is_other: bool) -> tuple[int, int, int] | None:
    """Pixels and channels of the file, if they differ from those of its variant."""
    channels = info.sizes.get("channels", 3)
    if channels == 3 and not is_other:
        return None
    if info.image_size is None:
        stated = info.stated_size or (None if info.input_size is None else info.input_size.value)
        if stated is not None or "stages" in info.sizes:
            return (*(stated or (224, 224)), channels)
        raise ValueError(
            f"{info.path} does not tell what size of images its positions are for. Pass "
            f"input_shape=(height, width, {channels})."
        )
    return (*info.image_size, channels)
