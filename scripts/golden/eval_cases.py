"""What `make_eval.py` and `eval_transforms.py` compare: images, transforms, small models.

Imports NumPy alone, since the two run in different environments.
"""

from __future__ import annotations

import numpy as np

IMAGES = 200

_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_TIMM = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "crop_pct": 0.9}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_IMAGENET = {"image_mean": _MEAN, "image_std": _STD}


def _processor(kind: str, size: object, crop: object = None, **more: object) -> dict:
    """Fields of an image processor of transformers."""
    cropped = {"do_center_crop": True, "crop_size": crop} if crop else {}
    return {"image_processor_type": f"{kind}ImageProcessor", "size": size, **cropped, **more}


def _sides(height: int, width: int) -> dict[str, int]:
    return {"height": height, "width": width}


# name: image size, fields as published
TIMM = {
    "timm ViT": ((224, 224), _TIMM),
    "timm FlexiViT": ((240, 240), {**_TIMM, "crop_pct": 0.95}),
    "timm crop 1": ((96, 96), {**_TIMM, "crop_pct": 1.0}),
    "timm BiT": ((224, 224), {**_TIMM, "interpolation": "bilinear", "crop_pct": 0.875}),
    "timm squash": ((96, 96), {**_TIMM, "crop_pct": 0.95, "crop_mode": "squash"}),
    "timm squash whole": ((96, 96), {**_TIMM, "crop_pct": 1.0, "crop_mode": "squash"}),
    "timm border": ((96, 96), {**_TIMM, "mean": _MEAN, "crop_mode": "border"}),
    "timm oblong": ((96, 64), _TIMM),
    "timm oblong border": ((64, 96), {**_TIMM, "mean": _MEAN, "crop_mode": "border"}),
}
_EDGE = {"shortest_edge": 256}
TRANSFORMERS = {
    f"transformers {name}": (size, _processor(kind, side, crop, resample=resample, **statistics))
    for name, size, kind, side, crop, resample, statistics in (
        ("ViT", (224, 224), "ViT", 224, None, 2, _HALF),
        ("DeiT", (224, 224), "DeiT", 256, 224, 3, _IMAGENET),
        ("DINOv2", (224, 224), "Bit", _EDGE, _sides(224, 224), 3, _IMAGENET),
        ("SigLIP", (96, 96), "Siglip", _sides(96, 96), None, 3, _HALF),
        ("oblong", (64, 96), "ViT", _sides(64, 96), None, 2, _HALF),
        ("odd", (75, 75), "CLIP", {"shortest_edge": 98}, 75, 3, _HALF),
    )
}
# title of a small model: image size, fields
LOGITS = {
    "timm vit": ((32, 32), _TIMM),
    "transformers deit": ((32, 32), _processor("DeiT", 36, 32, resample=3, **_IMAGENET)),
}


def all_images() -> list[np.ndarray]:
    return [image_of(index) for index in range(IMAGES)]


def size_of(index: int) -> tuple[int, int]:
    """Height and width of an image: 16 to 400 pixels, a tenth of them long strips."""
    height, width = (16 + (7919 * index + 104729 * axis) * (index + 3) % 385 for axis in (1, 2))
    return (height, 8 + width // 16) if index % 10 == 9 else (height, width)


def image_of(index: int) -> np.ndarray:
    """An image by a formula: noise, or waves with sharp edges."""
    height, width = size_of(index)
    y, x, c = np.mgrid[:height, :width, :3].astype("int64")
    if index % 2:
        return np.abs((3 * x + 5 * y + 40 * c + 7 * index) % 510 - 255).astype("uint8")
    i = (y * width + x) * 3 + c
    return ((i * i * 31 + i * (7919 + index)) // 13 % 2003 % 256).astype("uint8")


def normalized(pixels: np.ndarray, fields: dict) -> np.ndarray:
    mean, std = (fields.get(key) or fields[f"image_{key}"] for key in ("mean", "std"))
    return ((pixels / 255 - np.array(mean)) / np.array(std)).astype("float32")


def values(shape: tuple[int, ...], position: int, scale: bool) -> np.ndarray:
    """The formula: pseudo-random values in [-0.15, 0.15], around 1 for scales."""
    i = np.arange(int(np.prod(shape)), dtype="int64")
    fill = 0.15 * (((7 * i**2 + 7919 * i + 104729 * position) % 2003) / 1001 - 1)
    return (fill + scale).astype("float32").reshape(shape)


def is_scale(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 and name.endswith(("weight", "gamma", "lambda1"))


def formula_arrays(shapes: dict) -> dict[str, np.ndarray]:
    """Arrays of these names and shapes, by the formula; their order in the alphabet counts."""
    return {
        name: values(tuple(shape), position, is_scale(name, tuple(shape)))
        for position, (name, shape) in enumerate(sorted(shapes.items()))
    }
