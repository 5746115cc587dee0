"""Published checkpoints: tables of the families that `hub/catalog.py` makes cards of."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_vit.config import Preprocessing


class Publisher(NamedTuple):
    """A project that publishes checkpoints.

    Args:
        layout: Layout of its files.
        address: Address of a file, with `{}` for its name.
        page: Address of the page with the facts, likewise.
        prefix: What our tags of its files begin with.
        measured: Who measured the top-1, if nothing else is said.
    """

    layout: str
    address: str
    page: str
    prefix: str = ""
    measured: str | None = None


TIMM = Publisher(
    "timm",
    "hf://timm/{}",
    "https://github.com/huggingface/pytorch-image-models",
    "timm_",
    "timm's results-imagenet.csv",
)
HUB = Publisher("transformers", "hf://{}", "https://huggingface.co/{}", "hf_")
BIG_VISION = Publisher(
    "big_vision", "gs://big_vision/{}.npz", "https://github.com/google-research/big_vision"
)
# Fields of plain ViTs in which these copies differ from Google's.
HUB_EXACT: dict[str, Any] = {"gelu": "exact", "norm_epsilon": 1e-12}
# Who measured models of Google in PyTorch, where their GELU and resizing are others.
TIMM_AS_EXACT = "timm's results-imagenet.csv (exact GELU, bicubic, centre crop)"


class Origin(NamedTuple):
    """What the files of one origin share.

    Args:
        publisher: Who publishes them.
        paper: Address of the paper.
        options: As in `Card`, and so are the others. A file of timm has the GELU of its name.
        preprocessing: As in `Card`; `None` takes timm's for the name.
        classes: Outputs of the head, or those of each variant.
    """

    publisher: Publisher
    paper: str
    options: Mapping[str, Any] = MappingProxyType({})
    preprocessing: Preprocessing | None = None
    classes: int | Mapping[str, int] | None = None
    licence: str = "Apache-2.0"
    note: str | None = None
    flexible: bool = False
    measured: str | None = None


class File(NamedTuple):
    """One file: variant, name in the publisher's addresses, image size and facts of `Card`."""

    variant: str
    name: str
    image_size: int = 224
    top1: float | None = None
    mebibytes: float | None = None
    measured: str | None = None


Files = tuple[tuple[Any, ...], ...]


class Published(NamedTuple):
    """Files with one tag, as tuples of the fields of `File`.

    Args:
        origin: What they share.
        tag: Their tag, without the publisher's prefix and the image size.
        files: The files.
    """

    origin: Origin
    tag: str
    files: Files


def each(name: str, models: Mapping[str, str], sizes: Mapping[str, tuple[int, ...]]) -> Files:
    """Lists files whose names differ in model and image size alone.

    Args:
        name: Name of a file, with `{}` for the model and for the size.
        models: What stands for the model, by variant.
        sizes: Image sizes, by variant.
    """
    return tuple(
        (variant, name.format(models[variant], size), size)
        for variant, stated in sizes.items()
        for size in stated
    )


def of_size(name: str, models: Mapping[str, str], size: int = 224) -> Files:
    """Lists files of one image size, whose names differ in the model alone: see `each`."""
    return tuple((variant, name.format(model), size) for variant, model in models.items())


def with_top1(
    name: str, models: Mapping[str, str], top1: Mapping[str, tuple[float | None, ...]]
) -> Files:
    """Lists files of 224 and 384 pixels, as `each`, by their top-1; `None` if one is missing."""
    return tuple(
        (variant, name.format(models[variant], size), size, accuracy)
        for variant, accuracies in top1.items()
        for size, accuracy in zip((224, 384), accuracies, strict=False)
        if accuracy
    )
