"""Images with a mask each, for segmentation: files in two folders, arrays, or records.

TensorFlow decodes a PNG with a palette to its colours and loses the indices, which are the labels.
So the header of such a file is replaced by one of a grey image of the same depth: the pixels are
then decoded as they are stored.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.data.array_checks import check_values
from keras_vit.data.decode import MAX_PIXELS, decode, decoding_problem, name_damage
from keras_vit.data.folder import ENDINGS, check_is_folder, find_problems, report_problems
from keras_vit.data.headers import read_displayed_size, read_size
from keras_vit.data.image_files import list_files
from keras_vit.data.labelled_set import LabelledSet, to_tensor
from keras_vit.data.pixel_range import warn_of_small_range
from keras_vit.data.tiff import file_loader
from keras_vit.errors import listed
from keras_vit.reading import open_regular

IGNORED = 255  # the label of pixels without one
INVALID = -1  # in tables from stored values to labels
_HEADER = 33  # bytes of a PNG before its chunks: signature and IHDR
GREY, _COLOUR, _PALETTE = 0, 2, 3
_MAX_CLASSES = 255
Colour = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MaskSet(LabelledSet):
    """Images with masks, made by `read_masks`, `read_mask_arrays` or `read_mask_records`.

    Args:
        name: Name of the source, for error messages.
        class_names: Names of the classes, in the order of the labels.
        rows: Arrays of the same length, a row of which `load` takes; of records their positions.
        load: Maps a row to an encoded image, or pixels `(h, w, C)`, and to its labels, an int32
            tensor of shape `(h, w)`: classes from 0, `IGNORED` (255), or -1 for a value that is
            none.
        max_pixels: Height times width above which an encoded image is refused.
        records: Reads records one after the other, what `load` takes.
        exif_orientation: Whether encoded images are turned as it says, to fit their masks, also for
            a model that does not turn others.
    """

    exif_orientation: bool = False

    def pairs(self) -> Iterable[tuple[Any, np.ndarray]]:
        """Reads the images in their order, each with its labels, int32 of shape `(h, w)`.

        Raises:
            ValueError: If a mask is damaged. The message names its image.
        """
        for index, row in enumerate(self.read((0, self.num_images), None, 0)):
            with name_damage(f"The mask of {self.name_of(index)}"):
                image, labels = self.load(*row)
            yield image, labels.numpy()

    def pixel_counts(self) -> np.ndarray:
        """Counts the pixels of every class, an int64 array of shape `(K,)`; reads all masks.

        Raises:
            ValueError: If a mask holds values that are no class.
        """
        counts = np.zeros(256, "int64")
        for index, (_, labels) in enumerate(self.pairs()):
            self.check_labels(index, labels)
            counts += np.bincount(labels.ravel(), minlength=256)
        return counts[: self.num_classes]

    def check_labels(self, index: int, labels: np.ndarray) -> None:
        """Raises ValueError if the labels of the image at `index` are neither classes nor 255."""
        known = labels[labels != IGNORED]
        if ((known < 0) | (known >= self.num_classes)).any():
            raise ValueError(
                f"The mask of {self.name_of(index)} holds values that are none of its "
                f'{self.num_classes} classes. Find the files with read_masks(..., check="pixels").'
            )


def read_masks(
    images: str | os.PathLike[str],
    masks: str | os.PathLike[str],
    class_names: Sequence[str],
    *,
    first_value: int = 0,
    ignored: Sequence[int | Colour] = (IGNORED,),
    colors: Sequence[Colour] | None = None,
    mask_suffix: str = "",
    check: str = "headers",
    max_pixels: int = MAX_PIXELS,
) -> MaskSet:
    """Reads a folder of images and a folder of PNG masks of the same names.

    A mask is grey or has a palette (then its indices count, as in Pascal VOC), 1 to 8 bits; or it
    has colours, with `colors`. `photos/a/1.jpg` belongs to `masks/a/1.png`. Images are turned as
    their EXIF says, and masks have the size of the turned image.

    Args:
        images: The folder of the images; sub-folders are searched.
        masks: The folder of the masks.
        class_names: Names of the classes, at most 255.
        first_value: Value of the first class in the masks; 1 for ADE20K.
        ignored: Values, or colours, of pixels without a label. 255 stays a class if it is one.
        colors: The colour of every class, three integers each, for masks of colours.
        mask_suffix: What follows the name of the image in that of the mask, before `.png`.
        check: `"headers"` checks names, formats and sizes; `"pixels"` also reads every mask, and
            finds values that are no class. Training finds them later otherwise.
        max_pixels: Height times width above which a file counts as unreadable.

    Returns:
        A `MaskSet`.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ValueError: If images or masks are missing, cannot be read, differ in size, or hold values
            that are no class. One error lists all of them.
    """
    check_choice("check", check, ("headers", "pixels"))
    names = check_names(class_names, colors)
    found = _find_pairs(pathlib.Path(images), pathlib.Path(masks), mask_suffix)
    every = [path for pair in found for path in pair]
    unreadable = find_problems(every, "headers", max_pixels)
    problems = [f"{path} {reason}" for path, reason in unreadable.items()]
    headers = []
    for image, mask in found:
        if image in unreadable or mask in unreadable:
            continue
        header, problem = _mask_header(mask, colors is not None)
        headers.append(header)
        problem = problem or _size_problem(image, mask)
        problems += [f"{mask} {problem}"] if problem else []
    name = os.fspath(images)
    report_problems(problems, "error", name, len(every))
    warn_of_small_range([image for image, _ in found], name)
    columns = zip(*found, strict=True)
    items = tuple(np.array(list(map(os.fspath, column)), object) for column in columns)
    read = file_loader([image for image, _ in found], max_pixels)
    if colors is None:
        table = value_table(len(names), first_value, ignored)
        items = (*items, np.array(headers, object), np.array([h[24] for h in headers], "int32"))

        def load(image: Any, mask: Any, header: Any, depth: Any) -> tuple[Any, Any]:
            values = _decode_indices(tf.io.read_file(mask), header, depth)
            return read(image), tf.gather(table, values)
    else:
        codes, labels = _colour_table(colors, ignored)

        def load(image: Any, mask: Any) -> tuple[Any, Any]:  # type: ignore[misc]  # fewer items
            values = decode(tf.io.read_file(mask), 3, max_pixels, exif_orientation=False)
            return read(image), _labels_of_colours(values, codes, labels)

    whole = MaskSet(name, names, items, load, max_pixels, exif_orientation=True)
    if check == "pixels":
        _check_values(whole, [mask for _, mask in found])
    return whole


def read_mask_arrays(
    images: Any,
    masks: Any,
    class_names: Sequence[str],
    ignored: Sequence[int] = (IGNORED,),
    name: str = "the arrays",
) -> MaskSet:
    """Makes a `MaskSet` of arrays.

    Args:
        images: Array of shape `(B, H, W, C)` with values in [0, 255].
        masks: Integers of shape `(B, H, W)`: the index of a class, or an ignored value.
        class_names: Names of the classes.
        ignored: Values of pixels without a label, none of them a class.
        name: Name of the source, for error messages.

    Returns:
        A `MaskSet`.

    Raises:
        ValueError: If shapes or `ignored` do not fit, or a value is no class.
    """
    x, y = np.asarray(images), np.asarray(masks)
    names = check_names(class_names, None)
    if x.ndim != 4 or y.shape != x.shape[:3] or y.dtype.kind not in "iu" or not len(x):
        raise ValueError(
            "`images` must have the shape (B, H, W, C), and `masks` integers of shape (B, H, W). "
            f"Received: shape {x.shape}, and {y.dtype} of shape {y.shape}."
        )
    check_values(x)
    table = value_table(len(names), 0, ignored).numpy()
    known = (y >= 0) & (y < 256)
    labels = np.where(known, table[np.where(known, y, 0)], INVALID).astype("int32")
    if (labels == INVALID).any():
        unknown = np.unique(y[labels == INVALID]).tolist()
        raise ValueError(
            f"The masks of {name} hold {listed(unknown, 10)}, and the "
            f"{len(names)} classes are 0 to {len(names) - 1}. Name more classes, or pass `ignored`."
        )
    return MaskSet(name, names, (x, labels), lambda image, mask: (image, mask))


def check_names(class_names: Sequence[str], colors: Sequence[Colour] | None) -> tuple[str, ...]:
    """Raises ValueError unless there are 1 to 255 names, and a colour for each if any."""
    names = tuple(class_names)
    if isinstance(class_names, str) or not 0 < len(names) <= _MAX_CLASSES:
        raise ValueError(
            f"`class_names` must be 1 to {_MAX_CLASSES} names. Received: {class_names!r}."
        )
    if colors is not None and (
        len(colors) != len(names) or len({tuple(each) for each in colors}) != len(colors)
    ):
        raise ValueError(
            f"`colors` must give each of the {len(names)} classes a colour of its own, in the "
            f"order of `class_names`. Received: {list(colors)}."
        )
    return names


def _find_pairs(
    images: pathlib.Path, masks: pathlib.Path, suffix: str
) -> list[tuple[pathlib.Path, pathlib.Path]]:
    """Pairs images with masks by their relative paths without endings."""
    check_is_folder(images)
    check_is_folder(masks)
    problems: list[str] = []

    def by_name(folder: pathlib.Path) -> dict[pathlib.Path, pathlib.Path]:
        named: dict[pathlib.Path, pathlib.Path] = {}
        for path in map(pathlib.Path, list_files(folder, ENDINGS)):
            first = named.setdefault(path.relative_to(folder).with_suffix(""), path)
            problems.extend([f"{path} has the name of {first}"] if first != path else [])
        return named

    found, stored = by_name(images), by_name(masks)
    wanted = {key.with_name(key.name + suffix): path for key, path in found.items()}
    problems += [f"{path} has no mask" for key, path in wanted.items() if key not in stored]
    problems += [f"{path} has no image" for key, path in stored.items() if key not in wanted]
    if not found:
        raise ValueError(f"There are no images in {images}.")
    if problems:
        lines = listed(problems, separator="\n  ")
        raise ValueError(
            f"{len(problems)} files of {images} and {masks} are without their pair, a mask named "
            f"as the image with {suffix + '.png'!r}:\n  {lines}\nAdd or remove them."
        )
    return sorted((path, stored[key]) for key, path in wanted.items())


def _mask_header(path: pathlib.Path, has_colours: bool) -> tuple[bytes, str | None]:
    """The header that makes a mask a grey image, and what is wrong with the mask."""
    with open_regular(path) as file:
        head = file.read(1 << 16)
    if head[:8] != b"\x89PNG\r\n\x1a\n":
        return b"", "is no PNG: other formats change labels. Save masks as PNG"
    depth, kind = head[24], head[25]
    if has_colours:
        return b"", None
    if depth > 8:
        return b"", f"has {depth} bits a pixel. Save labels in 8 bits"
    if kind not in (GREY, _PALETTE):
        return b"", "has colours. Pass the colour of every class: colors=[(r, g, b), ...]"
    if kind == _PALETTE and b"PLTE" not in head:
        return b"", "has a palette, and no table of its colours. Save it again"
    header = head[12:25] + bytes([GREY]) + head[26:29]
    return head[:12] + header + struct.pack(">I", zlib.crc32(header)), None


def _size_problem(image: pathlib.Path, mask: pathlib.Path) -> str | None:
    """The problem with the size of a mask."""
    height, width = read_displayed_size(image)
    size = read_size(mask)[:2]
    if size == (height, width):
        return None
    return (
        f"has {size[0]} x {size[1]} pixels, and {image.name} {height} x {width} as it is displayed."
        " Save the mask in that size, without interpolation"
    )


def value_table(count: int, first: int, ignored: Sequence[int | Colour]) -> Any:
    """Labels of the values 0 to 255 of a mask."""
    table = np.full(256, INVALID, "int32")
    if not 0 <= first <= 256 - count:
        raise ValueError(
            f"The {count} classes must have values from 0 to 255. Received: first_value={first}."
        )
    table[first : first + count] = np.arange(count)
    for value in ignored:
        if not isinstance(value, int | np.integer) or not 0 <= value <= 255:
            raise ValueError(f"`ignored` must be values from 0 to 255. Received: {ignored}.")
        if table[value] in (INVALID, IGNORED):
            table[value] = IGNORED
        elif value != IGNORED:  # the default, which no one has to change for 255 classes from 1 on
            raise ValueError(
                f"The value {value} is a class, {table[value]} of {count}, and cannot be ignored "
                f"too. Received: first_value={first}, ignored={ignored}."
            )
    return tf.constant(table)


def _colour_table(
    colors: Sequence[Colour], ignored: Sequence[int | Colour]
) -> tuple[np.ndarray, np.ndarray]:
    """Sorted codes of colours, and the label of each."""
    ignored_colors = [colour for colour in ignored if not isinstance(colour, int)]
    if len(ignored_colors) < len(ignored) and tuple(ignored) != (IGNORED,):  # the default
        raise ValueError(
            "Masks of colours have ignored colours, three integers each. Received: "
            f"ignored={list(ignored)}."
        )
    both = {*map(tuple, colors)} & {*map(tuple, ignored_colors)}
    if both:
        raise ValueError(f"{sorted(both)} are colours of classes, and cannot be ignored too.")
    every = np.array([*colors, *ignored_colors], "int32").reshape(-1, 3)
    codes = every @ np.array([1 << 16, 1 << 8, 1], "int32")
    labels = np.array([*range(len(colors)), *[IGNORED] * len(ignored_colors)], "int32")
    order = np.argsort(codes)
    return codes[order], labels[order]


def _labels_of_colours(pixels: Any, codes: np.ndarray, labels: np.ndarray) -> Any:
    code = tf.reduce_sum(tf.cast(pixels, tf.int32) * [1 << 16, 1 << 8, 1], -1)  # (h, w)
    place = tf.searchsorted(codes, tf.reshape(code, (-1,)))
    place = tf.reshape(tf.minimum(place, len(codes) - 1), tf.shape(code))
    return tf.where(tf.gather(codes, place) == code, tf.gather(labels, place), INVALID)


def _decode_indices(data: Any, header: Any, depth: Any) -> Any:
    """Decodes the stored values of a mask, uint8 of shape `(h, w)`, as int32."""
    rest = tf.strings.substr(data, _HEADER, 1 << 30)
    values = tf.io.decode_png(tf.strings.join([header, rest]), 1)[..., 0]
    largest = tf.bitwise.left_shift(1, depth) - 1  # values of less than 8 bits are stretched
    return tf.cast(values, tf.int32) * largest // 255


def _check_values(masks: MaskSet, paths: list[pathlib.Path]) -> None:
    problems = []
    for path, row in zip(paths, zip(*masks.rows, strict=True), strict=True):
        try:
            _, labels = masks.load(*map(to_tensor, row))
        except tf.errors.InvalidArgumentError as error:
            problems.append(f"{path} cannot be decoded ({decoding_problem(error)})")
            continue
        count = int((labels.numpy() == INVALID).sum())
        if count:
            problems.append(f"{path} has {count} pixels of values that are no class")
    if problems:
        lines = listed(problems, separator="\n  ")
        raise ValueError(
            f"{len(problems)} masks hold values beyond the {masks.num_classes} classes, or are "
            f"damaged:\n  {lines}\nSave damaged ones again. For others name more classes, or pass "
            "`first_value`, `ignored` or `colors`."
        )
