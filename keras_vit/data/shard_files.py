"""Finds out what a path holds that is no folder of classes: tars, Parquet files or our records."""

from __future__ import annotations

import glob
import os
import re

from keras_vit.errors import listed, printable
from keras_vit.reading import is_left_over

TARS, PARQUET, RECORDS = "tars", "Parquet files", "records"
INDEX = "index.json"  # of a folder of records, see `record_folder.py`
PARTS = {  # how folders are called that hold a part of a data set, and how names of files begin
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_RECORD = ".tfrecord"
_FORMATS = {".tar": TARS, ".parquet": PARQUET}


def find_format(place: str | os.PathLike[str]) -> str | None:
    """The format of the files of a folder, of one file or of a pattern; `None` if it is another.

    Raises:
        ValueError: If there are files of several formats, or such files and folders.
    """
    if os.path.isdir(place) and any(
        name.endswith(_RECORD) and name[0] != "." for name in os.listdir(place)
    ):
        return RECORDS
    formats = {_FORMATS[os.path.splitext(file)[1].lower()] for file in list_shards(place)}
    if not formats:
        return None
    found = sorted(formats)
    if os.path.isdir(place):
        folders = folders_in(place)
        found += [f"folders ({listed(folders, 3)})"] * bool(folders)
    if len(found) > 1:
        raise ValueError(
            f"{printable(place)} must hold files of one format, or folders of images. Received: "
            f"{printable(' and '.join(found))}. Move one of them, or name the files by a pattern "
            'such as "train-*.tar".'
        )
    return found[0]


def folders_in(path: str | os.PathLike[str]) -> list[str]:
    """Lists the names of the folders in a folder, sorted, without those of other programs."""
    return sorted(
        each.name for each in os.scandir(path) if each.is_dir() and not is_left_over(each.name)
    )


def list_shards(place: str | os.PathLike[str]) -> list[str]:
    """Lists tars and Parquet files of a folder, of a pattern or of one path, sorted by name."""
    pattern = os.fspath(place)
    if os.path.isdir(place):
        pattern = os.path.join(glob.escape(pattern), "*")
    paths = [pattern] if os.path.exists(pattern) else glob.glob(pattern)
    shown = (path for path in paths if not is_left_over(os.path.basename(path)))
    return sorted(path for path in shown if os.path.splitext(path)[1].lower() in _FORMATS)


def find_split_files(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Patterns of the files of each part, whose names begin with it, as `train-0.parquet`.

    Raises:
        ValueError: If other files are among those of several parts.
    """
    found: dict[str, str] = {}
    others = []
    for path in list_shards(folder) if os.path.isdir(folder) else ():
        name = re.match(r"([A-Za-z]*)", os.path.basename(path))[0]  # type: ignore[index]
        pattern = os.path.join(glob.escape(os.fspath(folder)), f"{name}[-_.0-9]*")
        part = next((part for part, names in PARTS.items() if name.lower() in names), None)
        if part is None or found.setdefault(part, pattern) != pattern:
            others.append(os.path.basename(path))
    if "train" not in found or len(found) < 2:
        return {}
    if others:
        raise ValueError(
            f"{printable(folder)} has files of the parts {', '.join(found)}, and others: "
            f"{printable(', '.join(others[:3]))}. Name all files by their part, as train-0.tar and "
            "test-0.tar, or move the others."
        )
    return found
