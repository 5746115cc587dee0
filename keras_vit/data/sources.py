"""Opens images by the text that names them: a folder, its parts, files of many formats, TFDS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_vit.data.csv_file import read_csv
from keras_vit.data.folder import CHECKS, find_parts, read_folder
from keras_vit.data.image_set import ImageSet
from keras_vit.data.parquet import read_parquet
from keras_vit.data.record_folder import read_record_folder
from keras_vit.data.shard_files import RECORDS, TARS, find_format, list_shards
from keras_vit.data.tfds import read_tfds
from keras_vit.data.webdataset import read_webdataset
from keras_vit.errors import printable

_TFDS = "tfds:"
CSV_ENDING = ".csv"


class TrainingData(NamedTuple):
    """The images of a run.

    Args:
        training: Images to train on.
        validation: Images to evaluate on after every epoch, or `None`.
        transfer_test: Images of --test, see `transfer`, or `None`.
        final_test: Images to evaluate on once at the end, or `None`: of `test/` in the folder, and
            of --test for several labels and regression, which `transfer` does not know.
    """

    training: ImageSet
    validation: ImageSet | None
    transfer_test: ImageSet | None
    final_test: ImageSet | None

    @property
    def held_out(self) -> tuple[str, ImageSet] | None:
        """The images that say most about new ones: test images before validation images."""
        tested = self.transfer_test or self.final_test
        if tested is not None:
            return "test", tested
        return None if self.validation is None else ("validation", self.validation)

    def file_names(self) -> dict[str, tuple[str, ...]]:
        """File names of the images, see `ImageSet.file_names`, for training and what is held out.

        The keys are `"training"` and the kinds of `held_out`.
        """
        tested = self.transfer_test or self.final_test
        parts = {"training": self.training, "validation": self.validation, "test": tested}
        return {kind: images.file_names() for kind, images in parts.items() if images is not None}


def open_images(
    data: str,
    data_dir: str | None = None,
    class_names: Sequence[str] | None = None,
    unreadable: str = "error",
    split: str = "train",
    download: bool = False,
    task: str | None = None,
) -> ImageSet:
    """Opens a folder of images, tars, Parquet files or records, a CSV file, or `"tfds:NAME@SPLIT"`.

    Args:
        data: As above. Tars and Parquet files may also be one file, or a pattern of names.
        data_dir: Folder of the TFDS data sets, or of the images that a CSV file names.
        class_names: Class names in the order of the labels.
        unreadable: As for `read_folder`. `"skip"` decodes every file once, so that damage in the
            middle of a file does not end training later.
        split: TFDS split if none is named.
        download: Whether TFDS may download a missing data set.
        task: As for `read_csv`; records have that of the images they were written of, others have
            one class for each image.

    Raises:
        ValueError: If the images cannot be read, or are not for the task.
    """
    if data.lower().endswith(CSV_ENDING):
        return read_csv(data, data_dir, task, class_names, unreadable, CHECKS[unreadable])
    kind = None if data.startswith(_TFDS) else find_format(data)
    images = None if kind is None else open_shards([data], class_names, unreadable)
    if task not in (None, "single_label" if images is None else images.task):
        raise ValueError(
            f"Images with task={task!r} come from a CSV file, --data FILE.csv, or records of one. "
            f"Received: {data}."
        )
    if images is not None:
        return images
    if not data.startswith(_TFDS):
        return read_folder(data, class_names, unreadable, CHECKS[unreadable])
    name, _, named = data.removeprefix(_TFDS).partition("@")
    return read_tfds(name, named or split, data_dir, download)


def are_shards(places: Sequence[str]) -> bool:
    """Whether tars, Parquet files or folders of them or of records are named, and no images.

    Raises:
        ValueError: If there are several formats among them, or such files and others.
    """
    formats = [find_format(place) for place in places]
    if len(set(formats)) > 1:
        pairs = zip(places, formats, strict=True)
        listed = (f"{place} ({kind or 'images'})" for place, kind in pairs)
        raise ValueError(
            "Files of one format are expected: images, tars, Parquet files, or a folder of "
            f"records. Received: {printable(', '.join(listed))[:500]}. Name them one by one."
        )
    return formats[:1] != [None]


def open_shards(
    places: Sequence[str],
    class_names: Sequence[str] | None = None,
    unreadable: str = "error",
    labelled: bool = True,
) -> ImageSet:
    """Opens tars, Parquet files or a folder of records.

    Args:
        places: Folders, files or patterns of one format.
        class_names: Class names in the order of the labels.
        unreadable: As for `read_folder`.
        labelled: As for `read_webdataset`.
    """
    kind = find_format(places[0])
    if kind == RECORDS:
        if len(places) > 1:
            raise ValueError(f"Name one folder of records. Received: {', '.join(places)}.")
        return read_record_folder(places[0], class_names if labelled else None)
    read = read_webdataset if kind == TARS else read_parquet
    options: dict[str, Any] = {"unreadable": unreadable, "check": CHECKS[unreadable]}
    files = [file for place in places for file in list_shards(place)]
    return read(files, class_names, labelled=labelled, **options)


def open_test_images(data: str, *args: Any, **options: Any) -> ImageSet:
    """As `open_images` of `find_test_part`."""
    return open_images(find_test_part(data), *args, **options)


def find_test_part(data: str) -> str:
    """Of a folder with parts its `test`, or else its `validation`; otherwise `data` itself."""
    parts = find_parts(data)
    return str(parts.get("test", parts.get("validation", data)))


def open_training_data(
    data: str, validation: str | None, test: str | None, seed: int, options: dict[str, Any]
) -> TrainingData:
    """Opens the images of a run; all sets have the classes of the training images.

    Args:
        data: Folder of classes, folder with train/ and val/ or test/, CSV file, or `tfds:NAME`.
        validation: Share to hold out, 0 for none, or images as `data`.
        test: Images as `data`.
        seed: Seed of the choice of held-out images.
        options: Further arguments of `open_images`.
    """
    parts = {name: str(path) for name, path in find_parts(data).items()}
    images = open_images(parts.get("train", data), **options)
    names = images.class_names
    options = {**options, "task": images.task}

    def open_other(place: str | None) -> ImageSet | None:
        return (place and open_images(place, class_names=names, split="test", **options)) or None

    share = read_share(validation)
    held_out = None
    if share:
        images, held_out = images.split(share, seed)
    elif share is None and (validation is not None or test is None):
        held_out = open_other(validation or parts.get("validation"))
    tested = open_other(parts.get("test") if test is None else test)
    if test is None or images.task != "single_label":
        return TrainingData(images, held_out, None, tested)
    return TrainingData(images, held_out, tested, None)


def read_share(validation: str | None) -> float | None:
    """The share of images in a text such as `"0.1"`, or `None` if it names other images."""
    try:
        return None if validation is None else float(validation)
    except ValueError:
        return None
