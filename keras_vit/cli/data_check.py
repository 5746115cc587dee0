"""`keras-vit check`, and what `keras-vit train` prints about its images."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet

_MAX_NAMES = 10


def check_data(
    data: str,
    validation: str | None = None,
    test: str | None = None,
    seed: int = 0,
    headers_only: bool = False,
    unreadable: str = "skip",
    as_json: bool = False,
) -> None:
    """Prints what a folder of images holds, and what would go wrong in training."""
    from keras_vit.data.folder_check import UNREADABLE, check_folder
    from keras_vit.data.sources import read_share

    share = read_share(validation)
    held_out = validation if share is None else share or None
    report = check_folder(data, held_out, test, seed=seed, decode=not headers_only)
    print(json.dumps(report.to_dict()) if as_json else report)
    found = sum(each.number for each in report.findings if each.kind == UNREADABLE)
    if found and unreadable == "error":
        raise ValueError(f"{found} files in {data} cannot be read: see above.")


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
