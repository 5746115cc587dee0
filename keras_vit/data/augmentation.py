"""Augmentation of training images: which random transforms are applied, as a frozen dataclass."""

from __future__ import annotations

import dataclasses

from keras_vit.checks import check_choice, check_rate, pair

CROPS = ("inception", "resize_small", "resize", "none")
MIXINGS = ("official", "timm")


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random transforms of training images, applied in the order of the arguments.

    Args:
        crop: `"inception"` (a random window of 5 to 100 % of the area), `"resize_small"` (resized
            to cover `resize_size`, with its proportions, then a random crop), `"resize"` (squashed
            to `resize_size`, then a random crop) or `"none"` (`eval_transform`).
        resize_size: Pixels before the random crop of `"resize_small"` and `"resize"`, at least
            those of the input; `None` takes 7/6 of the input size, as 448 to 384.
        area_range: Least and greatest share of the area of the window of `"inception"`.
        interpolation: How images are resized for training; the official code does so bilinearly
            whatever the evaluation does.
        flip: Whether half of the images are mirrored left to right.
        rand_augment: Layers and magnitude of `rand_augment`, or `None`.
        erasing: Probability of random erasing, as in timm.
        label_smoothing: Share of a label that all classes get equally, in [0, 1).
        mixup: Alpha of mixup, or 0.
        cutmix: Alpha of CutMix, or 0.
        mixing: `"official"` (mixup with the image before, as in big_vision) or `"timm"`.

    Raises:
        ValueError: If a value is out of its range.
    """

    crop: str = "inception"
    resize_size: tuple[int, int] | None = None
    area_range: tuple[float, float] = (0.05, 1.0)
    interpolation: str = "bilinear"
    flip: bool = True
    rand_augment: tuple[int, float] | None = None
    erasing: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mixing: str = "official"

    def __post_init__(self) -> None:
        check_choice("crop", self.crop, CROPS)
        check_choice("mixing", self.mixing, MIXINGS)
        if self.resize_size is not None:
            object.__setattr__(self, "resize_size", pair("resize_size", self.resize_size))
        check_rate("label_smoothing", self.label_smoothing)
        for field in ("erasing", "mixup", "cutmix"):
            if getattr(self, field) < 0:
                raise ValueError(f"`{field}` must be 0 or more. Received: {getattr(self, field)}.")
        least, greatest = self.area_range
        if not 0 < least <= greatest <= 1:
            raise ValueError(
                "`area_range` must be shares of the area, the least first. Received: "
                f"{self.area_range}."
            )
        if self.rand_augment is not None:
            layers, magnitude = self.rand_augment
            if layers < 0 or not 0 <= magnitude <= 20:
                raise ValueError(
                    "`rand_augment` must be 0 layers or more, and a magnitude in [0, 20]. "
                    f"Received: {self.rand_augment}."
                )
        if self.cutmix and self.mixing == "official":
            raise ValueError('CutMix needs mixing="timm": the official code has none.')

    @property
    def mixes(self) -> bool:
        """Whether images of a batch are mixed."""
        return bool(self.mixup or self.cutmix)


# AugReg's seven settings (https://arxiv.org/abs/2106.10270, Figure 4 and big_vision's configs):
# layers and magnitude of RandAugment, alpha of mixup.
AUGREG: dict[str, Augmentation] = {
    name: Augmentation(rand_augment=randaugment, mixup=alpha)
    for name, randaugment, alpha in (
        ("none", None, 0.0),
        ("light1", (2, 0), 0.0),
        ("light2", (2, 10), 0.2),
        ("medium1", (2, 15), 0.2),
        ("medium2", (2, 15), 0.5),
        ("strong1", (2, 20), 0.5),
        ("strong2", (2, 20), 0.8),
    )
}
