"""`keras-vit check`, and the images that `keras-vit train` reads."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_vit.cli.resolve import open_images

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet

_MAX_NAMES = 10


class TrainingData(NamedTuple):
    """The images of a run.

    Args:
        training: Images to train on.
        validation: Images to evaluate on after every epoch, or `None`.
        transfer_test: Images of --test, see `transfer`, or `None`.
        final_test: Images of `test/` in the folder, to evaluate on once at the end, or `None`.
    """

    training: ImageSet
    validation: ImageSet | None
    transfer_test: ImageSet | None
    final_test: ImageSet | None


def check_data(
    data: str,
    validation: str | None = None,
    test: str | None = None,
    seed: int = 0,
    headers_only: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what a folder of images holds, and what would go wrong in training."""
    from keras_vit.data.folder_check import check_folder

    share = _share(validation)
    held_out = validation if share is None else share or None
    report = check_folder(data, held_out, test, seed=seed, decode=not headers_only)
    print(json.dumps(report.to_dict()) if as_json else report)


def open_training_data(
    data: str, validation: str | None, test: str | None, seed: int, options: dict[str, Any]
) -> TrainingData:
    """Opens the images of a run; all sets have the classes of the training images.

    Args:
        data: Folder of classes, folder with train/ and val/ or test/, or `tfds:NAME`.
        validation: Share to hold out, 0 for none, or images as `data`.
        test: Images as `data`.
        seed: Seed of the choice of held-out images.
        options: Further arguments of `open_images`.
    """
    from keras_vit.data.folder import find_parts

    parts = {name: str(path) for name, path in find_parts(data).items()}
    images = open_images(parts.get("train", data), **options)
    names = images.class_names

    def open_other(place: str | None) -> ImageSet | None:
        return (place and open_images(place, class_names=names, split="test", **options)) or None

    share = _share(validation)
    held_out = None
    if share:
        images, held_out = images.split(share, seed)
    elif share is None and (validation is not None or test is None):
        held_out = open_other(validation or parts.get("validation"))
    final = open_other(parts.get("test")) if test is None else None
    return TrainingData(images, held_out, open_other(test), final)


def describe_data(
    training: ImageSet, validation: ImageSet | None, test: ImageSet | None
) -> Iterator[tuple[str, str]]:
    """What the images of a run are, as pairs of a name and a text."""
    if pathlib.Path(training.name).is_dir():
        from keras_vit.data.folder_check import check_folder

        report = check_folder(training.name, decode=False)
        counts = sorted(report.parts[0].counts.items(), key=lambda item: item[1])
        shown = counts if len(counts) <= _MAX_NAMES else [counts[0], counts[-1]]
        yield "folder", f"{training.name}: " + ", ".join(f"{n} {count:,}" for n, count in shown)
        sizes = [f"{width} x {height}" for height, width in report.parts[0].sizes]
        yield "image sizes", f"{sizes[0]} to {sizes[2]}, median {sizes[1]}"
        for finding in report.findings:
            yield "note", f"{finding.number:,} {finding.kind}: {finding.advice}"
        yield "see also", f"keras-vit check {training.name}"
    for name, images in (("validation", validation), ("test", test)):
        if images is not None:
            yield name, f"{images.name}: {images.num_images:,} images"


def _share(validation: str | None) -> float | None:
    try:
        return None if validation is None else float(validation)
    except ValueError:
        return None
