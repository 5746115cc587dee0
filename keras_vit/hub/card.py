"""The card of one published checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing

# Licences that ask for no more than to be named; what the others ask for is said when loading.
OPEN_LICENCES = ("apache-2.0", "mit", "bsd-3-clause", "cc-by-4.0")


@dataclasses.dataclass(frozen=True)
class Card:
    """One published checkpoint. Facts that its publisher does not state are `None`.

    Args:
        variant: Name of its architecture.
        tag: Its name among the checkpoints of that architecture. It ends in a number of pixels if
            the image size is not the architecture's own.
        address: `gs://...` or `hf://...`.
        layout: Layout of its arrays, such as `"official"`, `"timm"` or `"transformers"`.
        image_size: Pixels along (height, width) of its images.
        classes: Outputs of its head, or `None` without one.
        preprocessing: Preprocessing of its images for evaluation.
        options: Fields of the configuration in which it differs from the architecture.
        flexible: Whether it was trained with many patch sizes, and can be resized to any.
        paper: Address of the paper.
        licence: Name of its licence, of SPDX where it has one.
        source: Address of the page with these facts.
        top1: Accuracy on the validation images of ImageNet, in percent.
        top1_source: Address or name of who measured it.
        mebibytes: Size of the file in MiB, as its publisher rounds it.
        note: Caveats for its users.
    """

    variant: str
    tag: str
    address: str
    layout: str
    image_size: tuple[int, int]
    classes: int | None = 1000
    preprocessing: Preprocessing = UNIT_RANGE
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    flexible: bool = False
    paper: str | None = None
    licence: str | None = None
    source: str | None = None
    top1: float | None = None
    top1_source: str | None = None
    mebibytes: float | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """Variant and tag: `"vit_b16/augreg_in21k"`."""
        return f"{self.variant}/{self.tag}"
