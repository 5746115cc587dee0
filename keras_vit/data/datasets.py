"""Table of the papers' data sets: TFDS name, splits, labels, classes and recipe.

VTAB (https://arxiv.org/abs/1910.04867) trains on 1,000 images of each of 19 tasks: 800 of the
training split and 200 of the validation split. The table lists them in this order, so a recipe that
holds out the last 200 images holds out the validation images. If a data set has no validation
split, VTAB takes a part of another split; the table gives it in numbers of images.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.data.decode import decode
from keras_vit.data.image_set import ImageSet
from keras_vit.data.tfds import read_tfds

Example = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class DatasetRow:
    """A data set of TFDS, or a task derived from one.

    Args:
        tfds: Name in TFDS, with the supported versions.
        train: Training split; a recipe may hold out a part of it.
        test: Test split.
        recipe: Name of a recipe for `find_recipe`.
        label_of: Computes the label of an example; `None` takes the feature `"label"`.
        classes: Number of classes, if `label_of` is given or the feature has no class names.
        scale: Factor that brings pixels to [0, 255].
    """

    tfds: str
    train: str
    test: str
    recipe: str
    label_of: Callable[[Example], Any] | None = None
    classes: int | None = None
    scale: int = 1


def _count_objects(example: Example) -> Any:
    return tf.size(example["objects"]["size"]) - 3  # there are 3 to 10 objects


def _bin(value: Any, limits: tuple[float, ...]) -> Any:
    """Index of the last limit that is below the value."""
    return tf.reduce_sum(tf.cast(value > tf.constant(limits), tf.int64)) - 1


def _distance(example: Example) -> Any:
    nearest = tf.reduce_min(example["objects"]["pixel_coords"][:, 2])
    return _bin(nearest, (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def _vehicle_distance(example: Example) -> Any:
    """Distance class of the nearest car, van or truck: near, middle, far, or no vehicle."""
    vehicle = example["objects"]["type"] < 3
    ahead = tf.boolean_mask(example["objects"]["location"][:, 2], vehicle)
    return _bin(tf.reduce_min(tf.concat((ahead, [1000.0]), 0)), (-100.0, 8.0, 20.0, 999.0))


def _feature(name: str, divisor: int = 1) -> Callable[[Example], Any]:
    return lambda example: example[name] // divisor


def _vtab(tfds: str, validation: str, test: str = "test", **options: Any) -> DatasetRow:
    return DatasetRow(tfds, f"train[:800]+{validation}", test, "finetune_vtab", **options)


_VALIDATION = "validation[:200]"
VTAB: dict[str, DatasetRow] = {
    "vtab/caltech101": _vtab("caltech101:3.*.*", "train[2753:2953]"),
    "vtab/cifar100": _vtab("cifar100:3.*.*", "train[45000:45200]"),
    "vtab/dtd": _vtab("dtd:3.*.*", _VALIDATION),
    "vtab/flowers102": _vtab("oxford_flowers102:2.*.*", _VALIDATION),
    "vtab/pets": _vtab("oxford_iiit_pet", "train[2944:3144]"),
    "vtab/sun397": _vtab("sun397/tfds:4.*.*", _VALIDATION),
    "vtab/svhn": _vtab("svhn_cropped:3.*.*", "train[65931:66131]"),
    "vtab/camelyon": _vtab("patch_camelyon:2.*.*", _VALIDATION),
    "vtab/eurosat": _vtab("eurosat/rgb:2.*.*", "train[16200:16400]", "train[21600:]"),
    "vtab/resisc45": _vtab("resisc45:3.*.*", "train[18900:19100]", "train[25200:]"),
    "vtab/retinopathy": _vtab("diabetic_retinopathy_detection/btgraham-300:3.*.*", _VALIDATION),
    "vtab/clevr_count": _vtab(
        "clevr:3.*.*", "train[63000:63200]", "validation", label_of=_count_objects, classes=8
    ),
    "vtab/clevr_distance": _vtab(
        "clevr:3.*.*", "train[63000:63200]", "validation", label_of=_distance, classes=6
    ),
    "vtab/dmlab": _vtab("dmlab:2.*.*", _VALIDATION),
    "vtab/dsprites_location": _vtab(
        "dsprites:2.*.*", "train[589824:590024]", "train[663552:]",
        label_of=_feature("label_x_position", 2), classes=16, scale=255,
    ),
    "vtab/dsprites_orientation": _vtab(
        "dsprites:2.*.*", "train[589824:590024]", "train[663552:]",
        label_of=lambda example: tf.cast(example["label_orientation"], tf.int64) * 16 // 40,
        classes=16, scale=255,
    ),
    "vtab/kitti_distance": _vtab(
        "kitti:3.*.*", _VALIDATION, label_of=_vehicle_distance, classes=4
    ),
    "vtab/smallnorb_azimuth": _vtab(
        "smallnorb:2.*.*", "test[:200]", "test[50%:]", label_of=_feature("label_azimuth"),
        classes=18,
    ),
    "vtab/smallnorb_elevation": _vtab(
        "smallnorb:2.*.*", "test[:200]", "test[50%:]", label_of=_feature("label_elevation"),
        classes=9,
    ),
}  # fmt: skip
DATASETS: dict[str, DatasetRow] = {
    "cifar10": DatasetRow("cifar10:3.*.*", "train", "test", "finetune_cifar10"),
    "cifar100": DatasetRow("cifar100:3.*.*", "train", "test", "finetune_cifar100"),
    "pets": DatasetRow("oxford_iiit_pet", "train", "test", "finetune_pets"),
    # The official split of 1,020 images, as in big_vision.
    "flowers102": DatasetRow("oxford_flowers102:2.*.*", "train", "test", "finetune_flowers"),
    "imagenet": DatasetRow("imagenet2012:5.*.*", "train", "validation", "finetune_imagenet"),
    # Not part of TFDS: the user prepares a data set with this name, as Google did.
    "imagenet21k": DatasetRow(
        "imagenet21k", "full[51200:]", "full[:25600]", "paper_in21k_b", classes=21_843
    ),
    **VTAB,
}


def list_datasets() -> list[str]:
    """Lists the names of the data sets for `read_dataset`."""
    return list(DATASETS)


def find_dataset(name: str) -> DatasetRow:
    """Finds the splits, labels and recipe of a data set by its name.

    Args:
        name: As in `list_datasets()`.

    Returns:
        A `DatasetRow`.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        raise ValueError(
            f"There are no settings for {name!r}. Near it: {', '.join(near) or 'nothing'}. All: "
            f"{', '.join(DATASETS)}. Others are read with `read_tfds`."
        )
    return DATASETS[name]


def read_dataset(
    name: str,
    part: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> ImageSet:
    """Reads a data set of the papers, with the papers' splits and labels.

    Args:
        name: As in `list_datasets()`, such as `"pets"` or `"vtab/dmlab"`.
        part: `"train"` or `"test"`.
        data_dir: As for `read_tfds`.
        download: As for `read_tfds`.

    Returns:
        An `ImageSet`.

    Raises:
        ValueError: If the name or the part is unknown.
        FileNotFoundError: If the data set is not in `data_dir` and `download` is false.

    Example:

    >>> train = keras_vit.data.read_dataset("pets", "train")  # doctest: +SKIP
    """
    row = find_dataset(name)
    check_choice("part", part, ("train", "test"))
    return read_tfds(
        row.tfds,
        getattr(row, part),
        data_dir,
        download,
        label_of=row.label_of,
        class_names=None if row.classes is None else list(map(str, range(row.classes))),
        load=None if row.scale == 1 else lambda image: decode(image) * row.scale,
    )
