"""Reads a folder of images, with one sub-folder per class, as an `ImageSet`."""

from __future__ import annotations

import collections
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import IO, Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.data.decode import MAX_PIXELS, decode, decoding_problem
from keras_vit.data.headers import find_problem
from keras_vit.data.image_files import IMAGE_ENDINGS, find_images, list_files
from keras_vit.data.image_set import ImageSet, file_set
from keras_vit.data.pixel_range import warn_of_small_range
from keras_vit.data.shard_files import PARTS, find_format, find_split_files, folders_in
from keras_vit.data.tiff import as_png
from keras_vit.errors import listed, printable
from keras_vit.progress import map_threads
from keras_vit.reading import is_regular, open_regular

_OTHER_IMAGES = (".heic", ".heif", ".avif", ".jp2", ".svg")
# Files of other formats are found too, and reported as unreadable.
ENDINGS = IMAGE_ENDINGS + _OTHER_IMAGES
_CHUNK = 256  # files that a thread checks before it reports
_Path = TypeVar("_Path", str, pathlib.Path)
_Result = TypeVar("_Result")
# How commands check files by their flag --unreadable: an error must come before a long run, and
# what is skipped must not fail later.
CHECKS = {"error": "headers", "skip": "pixels"}


def read_folder(
    folder: str | os.PathLike[str],
    class_names: Sequence[str] | None = None,
    unreadable: str = "error",
    check: str = "headers",
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """Reads images from a folder with one sub-folder per class.

    The name of a sub-folder is the name of its class. Sub-folders are searched recursively. Names
    that begin with a dot, what other programs leave (`__MACOSX`, `@eaDir`, `lost+found`, ...), and
    files without the extension of an image are ignored; `check_folder` lists the former. TIFF files
    (1 to 16 bits, the first page) are read by Pillow.

    Args:
        folder: The folder that holds the folders of the classes.
        class_names: Names of the classes in the order of the labels, such as those of the training
            set for a test set; then some classes may have no images. A model whose classes share
            names, as "crane" of ImageNet, needs other ones, such as WordNet IDs. `None` takes the
            names of the folders, sorted.
        unreadable: `"error"` raises one error that lists all unreadable files. `"skip"` skips them,
            lists them in a warning and keeps the list in `ImageSet.skipped`.
        check: `"headers"` checks the first and last bytes of every file. `"pixels"` decodes all
            files, which also finds damage in the middle.
        max_pixels: Height times width above which an image counts as unreadable. Larger ones are
            usually errors or attacks.

    Returns:
        An `ImageSet`, sorted by class, then by path.

    Raises:
        ValueError: If there are no images, only one class, a class without images, a class name
            that occurs twice, or files that cannot be read.
        FileNotFoundError: If the folder does not exist.
    """
    check_choice("unreadable", unreadable, ("error", "skip"))
    check_choice("check", check, ("headers", "pixels"))
    root = pathlib.Path(folder)
    check_is_folder(root)
    names = _find_classes(root, class_names)
    found = {path: i for i, name in enumerate(names) for path in list_files(root / name, ENDINGS)}
    if not found:
        raise ValueError(
            f"There are no images in {printable(root)}: no {', '.join(IMAGE_ENDINGS)} file in the "
            f"folders of its {len(names)} classes."
        )
    problems = find_problems(list(found), check, max_pixels)
    skipped = tuple(f"{path} {problem}" for path, problem in problems.items())
    report_problems(skipped, unreadable, root, len(found))
    whole = {path: label for path, label in found.items() if path not in problems}
    if class_names is None:
        _check_classes(root, names, set(whole.values()))
    warn_of_small_range(list(whole), root)
    labels = np.array(list(whole.values()), "int64")
    return file_set(root, names, whole, labels, max_pixels, skipped=skipped)


def read_files(
    paths: Sequence[str | os.PathLike[str]], class_names: Sequence[str], unreadable: str = "error"
) -> tuple[list[pathlib.Path], ImageSet]:
    """Reads image files of unknown classes, for prediction; every label is 0.

    Args:
        paths: Image files and folders of image files.
        class_names: Names of the model's classes.
        unreadable: As for `read_folder`.

    Returns:
        The paths of the files, and an `ImageSet` in the same order.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If there are no images, or some cannot be read.
    """
    files = find_readable(paths, unreadable)
    return files, file_set("the files", class_names, files, np.zeros(len(files), "int64"))


def find_readable(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], unreadable: str = "error"
) -> list[pathlib.Path]:
    """Finds image files and the images in folders that can be read.

    Args:
        paths: Image files and folders of image files.
        unreadable: `"error"` checks the first and last bytes of the files, and raises one error
            that lists all problems; `"skip"` decodes them, and lists problems in a warning.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If there are no images, or some cannot be read.
    """
    check_choice("unreadable", unreadable, ("error", "skip"))
    files = find_images(paths, ENDINGS)
    problems = find_problems(files, CHECKS[unreadable])
    reasons = tuple(f"{path} {reason}" for path, reason in problems.items())
    report_problems(reasons, unreadable, "the files", len(files))
    readable = [path for path in files if path not in problems]
    warn_of_small_range(readable, "the files")
    return readable


def find_parts(folder: str | os.PathLike[str]) -> dict[str, pathlib.Path]:
    """Finds the parts of a data set: `train/` and `val/` or `test/`, each with folders of classes.

    Each may hold tars, Parquet files or records instead; or the folder holds such files, whose
    names begin with `train`, `val` or `test`.

    Args:
        folder: The folder of the data set.

    Returns:
        The folders, or patterns of files, of `"train"`, `"validation"` and `"test"`, as far as they
        exist; an empty dict for a folder whose folders are classes.

    Raises:
        ValueError: If there are files of several parts and others, or of several formats.
    """
    root = pathlib.Path(folder)
    found: dict[str, pathlib.Path] = {}
    for part, names in PARTS.items():
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            is_part = path.name.lower() in names and path.is_dir()
            if is_part and (folders_in(path) or find_format(path)):
                found.setdefault(part, path)
    if "train" in found and len(found) > 1:
        return found
    return {part: pathlib.Path(files) for part, files in find_split_files(root).items()}


def read_parts(folder: str | os.PathLike[str], unreadable: str = "error") -> dict[str, ImageSet]:
    """Reads a data set with the folders `train/` and `val/` or `test/`.

    All parts have the classes of the training images, in their order.

    Args:
        folder: The folder of the data set.
        unreadable: As for `read_folder`.

    Returns:
        An `ImageSet` for each of `"train"`, `"validation"` and `"test"` that exists.

    Raises:
        ValueError: If there are no such folders, or a part has classes without training images.
        FileNotFoundError: If the folder does not exist.

    Example:

    >>> parts = keras_vit.data.read_parts("photos")  # doctest: +SKIP
    >>> result = keras_vit.fine_tune(
    ...     model, parts["train"], recipe, parts["validation"]
    ... )  # doctest: +SKIP
    """
    root = pathlib.Path(folder)
    check_is_folder(root)
    parts = find_parts(root)
    if not parts or find_format(parts["train"]):
        raise ValueError(
            f"{root} has no folders train/ and val/ or test/ with folders of classes in them. Read "
            "a folder of classes with `read_folder`."
        )
    training = read_folder(parts.pop("train"), unreadable=unreadable)
    names = training.class_names
    others = {part: read_folder(path, names, unreadable) for part, path in parts.items()}
    return {"train": training, **others}


def check_is_folder(folder: pathlib.Path) -> None:
    """Raises `FileNotFoundError` if there is no such folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {printable(folder)}.")


def find_class_folders(root: pathlib.Path) -> list[str]:
    """Names of the folders of the classes, sorted.

    Raises:
        FileNotFoundError: If there is no folder `root`.
        ValueError: If it holds no folders.
    """
    check_is_folder(root)
    names = folders_in(root)
    if not names:
        raise ValueError(
            f"There are no folders in {root}. Put the images of each class into a folder of "
            f"its own, such as {root / 'cats'} and {root / 'dogs'}."
        )
    return names


def _find_classes(root: pathlib.Path, class_names: Sequence[str] | None) -> tuple[str, ...]:
    if class_names is None:
        parts = find_parts(root)
        if parts:
            raise ValueError(
                f"{root} holds the parts of a data set, not classes: "
                f"{', '.join(path.name for path in parts.values())}. Read them with "
                f"`keras_vit.data.read_parts`, or one of them: {parts['train']}."
            )
        return tuple(find_class_folders(root))
    check_distinct(class_names)
    unknown = sorted(set(folders_in(root)) - set(class_names))
    if unknown:
        raise ValueError(
            f"{printable(root)} has folders that are no classes: {listed(unknown)}. The classes "
            f"are {listed(class_names)}; --labels (in Python, `class_names`) gives other names."
        )
    return tuple(class_names)


def check_distinct(class_names: Sequence[str]) -> None:
    """Raises a `ValueError` if two classes have one name, by which images find their class."""
    counts = collections.Counter(class_names)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            "Images find their class by its name, so every class needs a name of its own. Received "
            f"several times: {listed(twice)}. Rename these classes, here and in the data: for "
            "ImageNet, name folders and classes by WordNet IDs, such as n02012849. On the command "
            "line, --labels names the classes."
        )


def _check_classes(root: pathlib.Path, names: tuple[str, ...], present: set[int]) -> None:
    if len(names) == 1:
        raise ValueError(
            f"{printable(root)} has one class, {names[0]!r}, and telling classes apart needs two. "
            "For a part of a larger set, pass `class_names`."
        )
    empty = [name for label, name in enumerate(names) if label not in present]
    if empty:
        raise ValueError(
            f"There are no images of {listed(empty)} in {printable(root)}. Add some, remove the "
            "folder, or pass `class_names`."
        )


def find_problems(
    paths: Sequence[_Path], check: str, max_pixels: int = MAX_PIXELS
) -> dict[_Path, str]:
    """Finds files that cannot be read, each with the reason. Arguments as for `read_folder`."""
    problems = map_files(lambda path: examine(path, check, max_pixels), paths)
    return {path: each for path, each in zip(paths, problems, strict=True) if each}


def examine(path: str | os.PathLike[str], check: str, max_pixels: int = MAX_PIXELS) -> str | None:
    """Why a file cannot be read, or `None`. Arguments as for `read_folder`."""
    if not os.path.exists(path):
        return "does not exist"
    ending = os.path.splitext(path)[1]
    if ending.lower() in _OTHER_IMAGES:
        return f"is of a format that TensorFlow does not read ({ending}): convert it"
    try:
        if not is_regular(path):
            return "is no regular file"
        with open_regular(path) as file:
            return examine_bytes(file, os.stat(path).st_size, check, max_pixels)
    except OSError as error:
        return f"cannot be opened ({error.strerror})"


def examine_bytes(
    file: IO[bytes], size: int, check: str, max_pixels: int = MAX_PIXELS
) -> str | None:
    """As `examine`, of an image of `size` bytes that is open; with `check="none"` nothing is read.

    Args:
        file: The image, from its first byte on.
        size: Its bytes.
        check: `"none"`, `"headers"` or `"pixels"`.
        max_pixels: As for `read_folder`.
    """
    if check == "none":
        return None
    problem = find_problem(file, size, max_pixels)
    if problem or check == "headers":
        return problem
    file.seek(0)
    return _decoding_damage(file.read(size), max_pixels)


def map_files(function: Callable[[_Path], _Result], paths: Sequence[_Path]) -> list[_Result]:
    """Applies a function to image files in several threads, and reports how far it is."""
    return map_threads(function, paths, "checking images", at_once=_CHUNK)


# A graph takes half the time of single operators.
@tf.function(input_signature=[tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64)])
@tf.autograph.experimental.do_not_convert
def _decode_bytes(data: Any, max_pixels: Any) -> Any:
    return tf.size(decode(data, max_pixels=max_pixels))


def _decoding_damage(data: bytes, max_pixels: int) -> str | None:
    try:
        _decode_bytes(as_png(data, max_pixels), max_pixels)
    except ValueError as error:
        return str(error)
    except tf.errors.ResourceExhaustedError:  # too little memory is no fault of the file
        raise
    except tf.errors.OpError as error:
        return f"cannot be decoded ({decoding_problem(error)})"
    return None


def report_problems(
    skipped: Sequence[str],
    unreadable: str,
    root: pathlib.Path | str,
    total: int,
    advice: str = "Repair or replace them.",
) -> None:
    """Reports images that cannot be read.

    Args:
        skipped: The images, each with the reason.
        unreadable: `"error"` raises one error that lists all; `"skip"` lists them in a warning.
        root: The source of the images.
        total: How many it has. If none of them can be read, that is an error.
        advice: What to do then.

    Raises:
        ValueError: See `unreadable` and `total`.
    """
    if not skipped:
        return
    root, lines = printable(root), listed(skipped, separator="\n  ")
    if unreadable == "error":
        raise ValueError(
            f"{len(skipped)} files in {root} cannot be read:\n  {lines}\nRepair or remove them, or "
            'leave them out with unreadable="skip".'
        )
    if len(skipped) == total:
        raise ValueError(
            f"None of the {total:,} images in {root} can be read:\n  {lines}\n{advice}"
        )
    warnings.warn(f"{len(skipped)} files in {root} are left out:\n  {lines}", stacklevel=3)
