"""What is known of one published checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing

PAPERS = {
    "vit": "https://arxiv.org/abs/2010.11929",
    "augreg": "https://arxiv.org/abs/2106.10270",
    "sam": "https://arxiv.org/abs/2106.01548",
    "bit": "https://arxiv.org/abs/1912.11370",
    "bit_distilled": "https://arxiv.org/abs/2106.05237",
    "plain": "https://arxiv.org/abs/2205.01580",
    "flexivit": "https://arxiv.org/abs/2212.08013",
    "siglip": "https://arxiv.org/abs/2303.15343",
    "siglip2": "https://arxiv.org/abs/2502.14786",
    "deit": "https://arxiv.org/abs/2012.12877",
    "deit3": "https://arxiv.org/abs/2204.07118",
    "mae": "https://arxiv.org/abs/2111.06377",
    "dino": "https://arxiv.org/abs/2104.14294",
    "dinov2": "https://arxiv.org/abs/2304.07193",
    "registers": "https://arxiv.org/abs/2309.16588",
}


@dataclasses.dataclass(frozen=True)
class Card:
    """One published checkpoint. What its publisher does not say is `None`.

    Args:
        variant: Name of its architecture.
        tag: Its name among the checkpoints of that architecture. Without a number of pixels at
            its end, it was made for the architecture's own image size.
        address: Where it is: `gs://...` or `hf://...`.
        layout: How it names its arrays: `"official"`, `"bit"`, `"big_vision"`, `"timm"` or
            `"transformers"`.
        image_size: Pixels along (height, width) that it was made for.
        classes: Outputs of its head, or `None` without one.
        preprocessing: How its images were prepared for evaluation.
        options: Fields of the configuration in which it differs from the architecture.
        flexible: Whether it was trained for patches of many sizes, and so resizes to any.
        paper: Address of the paper.
        licence: SPDX name of its licence.
        source: Where these facts are published.
        top1: Accuracy on the validation images of ImageNet, in percent.
        top1_source: Who measured that.
        mebibytes: Size of the file as its publisher rounds it.
        size: Exact size in bytes.
        sha256: Hash of its bytes.
        note: What else to know before using it.
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
    size: int | None = None
    sha256: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """Variant and tag: `"vit_b16/augreg_in21k"`."""
        return f"{self.variant}/{self.tag}"
