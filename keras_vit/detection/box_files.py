"""Reads images with boxes in the layouts of COCO and of YOLO."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data.csv_file import check_exist
from keras_vit.data.folder import check_is_folder, find_problems
from keras_vit.data.headers import read_displayed_size
from keras_vit.data.image_files import find_images
from keras_vit.detection.boxes import BoxSet, read_boxes
from keras_vit.errors import printable, raise_problems
from keras_vit.reading import locate, read_json, read_lines, read_text, refusing

_MAX_JSON = 1 << 30  # bytes; the boxes of COCO have 470 MB


def read_coco_boxes(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> BoxSet:
    """Reads the boxes of a file as `instances_train2017.json` of COCO.

    Crowds are left out. Boxes are cut off at the edges of their images, and those without an area
    inside are left out, as in transformers, with a warning.

    Args:
        path: The file: `images` with `id`, `file_name`, `height` and `width`, `annotations` with
            `image_id`, `category_id` and `bbox` (left, top, width and height in pixels), and
            `categories` with `id` and `name`. Labels are in the order of the ids.
        folder: Folder of the images; `None` takes that of the file.

    Returns:
        A `BoxSet` in the order of `images`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If the file is of another format, or as `read_boxes`.

    Example:

    >>> boxes = keras_vit.detection.read_coco_boxes(
    ...     "annotations/instances_val2017.json", "val2017")  # doctest: +SKIP
    """
    path = pathlib.Path(path)
    root = path.parent if folder is None else pathlib.Path(folder)
    check_exist(path, root)
    content = read_json(path, _MAX_JSON)
    needs = "It needs `images`, `annotations` with `bbox`, and `categories`, as in COCO."
    with refusing(path, "is no file of COCO's boxes", needs):
        images = {each["id"]: each for each in content["images"]}
        kinds = sorted(content["categories"], key=lambda each: each["id"])
        labels = {each["id"]: label for label, each in enumerate(kinds)}
        found: dict[Any, list[tuple[list[float], int]]] = {number: [] for number in images}
        for each in content["annotations"]:
            if not each.get("iscrowd"):
                left, top, width, height = map(float, each["bbox"])
                row = [left, top, left + width, top + height], labels[each["category_id"]]
                found[each["image_id"]].append(row)
        sizes = [(int(each["height"]), int(each["width"])) for each in images.values()]
        files = [locate(root, each["file_name"]) for each in images.values()]
        names = [str(each["name"]) for each in kinds]
    return _inside(files, sizes, list(found.values()), names, os.fspath(path))


def read_yolo_boxes(
    images: str | os.PathLike[str],
    class_names: Sequence[str],
    labels: str | os.PathLike[str] | None = None,
) -> BoxSet:
    """Reads boxes of text files in the layout of YOLO: one file for each image.

    A line has the class, and centre x and y, width and height as shares of the image, as it is
    displayed. An image without a file has no boxes. Boxes are cut off at the edges.

    Args:
        images: Folder of the images, such as `images/train`.
        class_names: Names of the classes, as in `data.yaml` or `classes.txt`.
        labels: Folder of the text files; `None` takes the path of `images` with `labels` for its
            last part of the name `images`, such as `labels/train`, or `images` itself.

    Returns:
        A `BoxSet`, sorted by path.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If a line is another one, or as `read_boxes`; the message lists all.
    """
    root = pathlib.Path(images)
    if labels is None:
        head, mark, rest = f"/{root.as_posix()}/".rpartition("/images/")
        labels = f"{head}/labels/{rest}"[1:] if mark else root
    for folder in (root, pathlib.Path(labels)):
        check_is_folder(folder)
    files, found, problems = find_images(root), [], []
    unreadable = find_problems(files, "headers")  # which `read_boxes` lists
    sizes = [(0, 0) if file in unreadable else read_displayed_size(file) for file in files]
    for file, (height, width) in zip(files, sizes, strict=True):
        text = (pathlib.Path(labels) / file.relative_to(root)).with_suffix(".txt")
        rows = []
        for number, line in enumerate(read_text(text).split("\n") if text.exists() else [], 1):
            if not line.strip():
                continue
            try:
                label, *shares = line.split()
                x, y, across, down = map(float, shares)
                if not all(0 <= value <= 1 for value in (x, y, across, down)):
                    raise ValueError
                sides = (x - across / 2, y - down / 2, x + across / 2, y + down / 2)
                rows.append((np.multiply(sides, [width, height, width, height]), int(label)))
            except ValueError:
                problems.append(f"{printable(text)}, line {number}: {printable(line):.80}")
        found.append(rows)
    raise_problems(labels, problems, "lines that are not a class and four shares in [0, 1]")
    return _inside(files, sizes, found, class_names, os.fspath(root))


def find_boxes(data: str | os.PathLike[str], *parts: str) -> BoxSet | None:
    """Reads the boxes of the first of these parts that a folder has, such as `train`.

    Args:
        data: Folder of `train/_annotations.coco.json` next to its images, and so on, or of
            `images/train`, `labels/train` and `classes.txt`.
        *parts: Names of parts.

    Raises:
        ValueError: If a file is of another format, see `read_coco_boxes` and `read_yolo_boxes`.
    """
    root = pathlib.Path(data)
    for part in parts:
        if (root / part / "_annotations.coco.json").exists():
            return read_coco_boxes(root / part / "_annotations.coco.json")
        if (root / "images" / part).is_dir():
            return read_yolo_boxes(root / "images" / part, read_lines(root / "classes.txt"))
    return None


def _inside(
    files: Sequence[Any],
    sizes: Sequence[tuple[int, int]],
    found: Sequence[Sequence[tuple[Any, int]]],
    class_names: Sequence[str],
    name: str,
) -> BoxSet:
    """The parts of boxes inside of their images, where they have an area."""
    boxes, labels, left_out = [], [], 0
    for (height, width), rows in zip(sizes, found, strict=True):
        corners = np.array([row for row, _ in rows]).reshape(-1, 4)
        corners = np.clip(corners, 0, [width, height, width, height]).astype("float32")
        has_area = (corners[:, :2] < corners[:, 2:]).all(axis=1)
        left_out += int((~has_area).sum())
        boxes.append(corners[has_area])
        labels.append(np.array([label for _, label in rows], "int64")[has_area])
    if left_out:
        warnings.warn(
            f"{printable(name)} has {left_out:,} boxes without an area inside of their images. "
            "They are left out.",
            stacklevel=3,
        )
    return read_boxes([os.fspath(file) for file in files], boxes, labels, class_names, name)
