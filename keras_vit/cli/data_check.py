"""`keras-vit check`, and what `keras-vit train` prints about its images."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.cli.output import print_facts, say
from keras_vit.errors import listed

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
    data_dir: str | None = None,
    task: str | None = None,
    labels: str | None = None,
    output: str = "runs/labels",
) -> None:
    """Prints what a folder or table of images holds, and what would go wrong in training."""
    if labels is not None:
        from keras_vit.cli.trust import check_labels_of

        if validation or test or headers_only:
            raise ValueError(
                "--labels looks at the labels of all images of the data. Leave out --validation, "
                "--test and --headers-only."
            )
        reading = {"data_dir": data_dir, "task": task, "unreadable": unreadable}
        check_labels_of(data, labels, output, reading, as_json)
        return
    from keras_vit.data.folder_check import UNREADABLE, check_folder
    from keras_vit.data.shard_files import find_format
    from keras_vit.data.sources import CSV_ENDING, find_test_part, open_training_data, read_share

    if data.lower().endswith(CSV_ENDING) or find_format(find_test_part(data)) is not None:
        options: dict[str, Any] = {"data_dir": data_dir, "unreadable": unreadable, "task": task}
        found = open_training_data(data, validation, test, seed, options)
        tested = found.transfer_test or found.final_test
        facts = [*describe_data(found.training, found.validation, tested)]
        facts.insert(1, ("images", f"{found.training.num_images:,}"))
        if as_json:
            print(json.dumps([{"fact": name, "text": text} for name, text in facts]))
        else:
            print_facts(facts)
        return
    share = read_share(validation)
    held_out = validation if share is None else share or None
    report = check_folder(data, held_out, test, seed=seed, decode=not headers_only)
    say(json.dumps(report.to_dict()) if as_json else report)
    count = sum(each.number for each in report.findings if each.kind == UNREADABLE)
    if count and unreadable == "error":
        raise ValueError(f"{count} files in {data} cannot be read: see above.")


def describe_data(
    training: ImageSet, validation: ImageSet | None, test: ImageSet | None
) -> Iterator[tuple[str, str]]:
    """Describes the images of a run, as pairs of a name and a text."""
    if pathlib.Path(training.name).is_dir():
        from keras_vit.data.folder_check import SINGLE, UNREADABLE, check_folder

        report = check_folder(training.name, decode=False)
        yield "folder", training.name
        yield from _describe_labels(training)
        sizes = [f"{width} x {height}" for height, width in report.parts[0].sizes]
        yield "image sizes", f"{sizes[0]} to {sizes[2]}, median {sizes[1]}"
        if training.skipped:
            yield "note", f"{len(training.skipped):,} {UNREADABLE}: they are left out"
        for finding in report.findings:
            if finding.kind not in (SINGLE, *([UNREADABLE] if training.skipped else [])):
                yield "note", f"{finding.number:,} {finding.kind}: {finding.advice}"
        yield "see also", f"keras-vit check {training.name}"
    elif training.task != "single_label" or training.name.lower().endswith(".csv"):
        yield "table", f"{training.name}: {training.task}"
        yield from _describe_labels(training)
    else:
        yield "data", f"{training.name}: {training.num_images:,} images"
        if training.labels is not None:
            yield from _describe_labels(training)
        if training.skipped:
            yield "note", f"{len(training.skipped):,} unreadable images: they are left out"
    for name, images in (("validation", validation), ("test", test)):
        if images is not None:
            yield name, f"{images.name}: {images.num_images:,} images"


def _describe_labels(images: ImageSet) -> Iterator[tuple[str, str]]:
    """Counts of classes or labels, or mean and range of targets, of the training images."""
    labels = np.asarray(images.all_labels)
    if images.task == "regression":
        for name, values in zip(images.class_names, labels.T, strict=True):
            spread = f"{values.min():.4g} to {values.max():.4g}"
            yield "target", f"{name}: {spread}, mean {values.mean():.4g}, sd {values.std():.4g}"
        return
    is_single = images.task == "single_label"
    found = np.bincount(labels, minlength=images.num_classes) if is_single else labels.sum(axis=0)
    counts = sorted(zip(images.class_names, found, strict=True), key=lambda item: item[1])
    shown = counts if len(counts) <= _MAX_NAMES else [counts[0], counts[-1]]
    yield "training", ", ".join(f"{name} {int(count):,}" for name, count in shown)
    few = [name for name, count in counts if count < 2]
    if few:
        yield "note", f"one training image or none: {listed(few, _MAX_NAMES)}; add images"
