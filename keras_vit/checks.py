"""Checks of arguments, used by configurations and layers."""

from __future__ import annotations

import dataclasses
import difflib
import numbers
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

# A shape as Keras passes it: an integer for each axis, or None where the size is unknown, as that
# of the batch. Layers compute with the axes that they need, and mypy cannot tell those from others.
Shape = tuple[Any, ...]
_TRIED_HEADS = 10_000  # on both sides of the number of heads that does not divide the width
# More than normalised pixels have: what reaches beyond is of another range.
NORMALIZED_LIMIT = 10.0


def is_broken(text: str) -> bool:
    """Whether a text has half of a surrogate pair, which is no letter: JSON can hold it."""
    return any("\ud800" <= letter <= "\udfff" for letter in text) if not text.isascii() else False


def pair(field: str, value: object) -> tuple[int, int]:
    """Converts one positive integer, or two, to (height, width).

    Raises:
        ValueError: If it is neither.
    """
    values = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(values) != 2 or not all(_is_positive_integer(v) for v in values):
        raise ValueError(
            f"`{field}` must be a positive integer, or two as (height, width). Received: {value!r}."
        )
    return int(values[0]), int(values[1])


def in_order(names: Any) -> Any:
    """Returns names in the order of their numbers, of `{name: number}` or `{number: name}`.

    Raises:
        ValueError: If the numbers are not 0, 1, 2, ..., one for each name.
    """
    if not isinstance(names, Mapping):
        return names
    by_number = all(isinstance(x, numbers.Integral) for x in names)  # NumPy's too
    named = dict(names) if by_number else {number: name for name, number in names.items()}
    if len(named) != len(names) or set(named) != set(range(len(names))):
        raise ValueError(
            f"Numbers of classes must be 0 to {len(names) - 1}, one for each name. Received: "
            f"{names!r}."
        )
    return [named[number] for number in range(len(named))]


def check_whole_patches(
    image_size: tuple[int, int],
    patch_size: tuple[int, int],
    map_size: tuple[int, int] | None = None,
    stride: int = 1,
) -> None:
    """Checks that an image, or the feature maps of it, are a whole number of patches.

    Args:
        image_size: Pixels along (height, width).
        patch_size: Pixels along (height, width) of a patch, or positions of the maps.
        map_size: Positions along (height, width) of the maps of a stem.
        stride: Pixels per position of the maps.

    Raises:
        ValueError: If they are not.
    """
    counted = image_size if map_size is None else map_size
    for axis, pixels, count, patch in zip(
        ("height", "width"), image_size, counted, patch_size, strict=True
    ):
        if count % patch:
            step = patch * stride
            fitting = pixels - pixels % step
            advice = f"Crop to {fitting} pixels" if fitting else f"Resize to {step} pixels"
            unit = "pixels" if map_size is None else f"positions of the stem's maps {map_size}"
            raise ValueError(
                f"The image {axis} must be a whole number of patches. Received: "
                f"image_size={image_size}, patch_size={patch_size} ({count % patch} {unit} left "
                f"over). {advice}, or change patch_size."
            )


def check_heads(width: int, num_heads: int) -> None:
    """Raises ValueError if the heads do not divide the width."""
    if width % num_heads:
        near = min(num_heads, width)
        tried = range(max(1, near - _TRIED_HEADS), min(width, near + _TRIED_HEADS) + 1)
        fitting = [n for n in tried if width % n == 0] or [1]
        nearest = sorted(fitting, key=lambda n: abs(n - num_heads))[:3]
        raise ValueError(
            f"`num_heads` must divide `width`. Received: width={width}, num_heads={num_heads}. "
            f"The nearest that do: {', '.join(map(str, sorted(nearest)))}."
        )


def check_positive(field: str, value: object) -> None:
    """Raises ValueError if `value` is not a positive integer."""
    if not _is_positive_integer(value):
        raise ValueError(f"`{field}` must be a positive integer. Received: {field}={value!r}.")


def counts(field: str, values: Iterable[object]) -> tuple[object, ...]:
    """A tuple of checked positive integers."""
    values = tuple(values)
    for value in values:
        check_positive(field, value)
    return values


def check_rate(field: str, value: float) -> None:
    """Raises ValueError if `value` is not a rate in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"`{field}` must be a number in [0, 1). Received: {field}={value!r}.")


def _is_positive_integer(value: object) -> bool:
    # NumPy's integers too.
    return hasattr(value, "__index__") and not isinstance(value, bool) and int(value) > 0


def check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises ValueError if one of `names` is not `known`; the message lists the nearest."""
    known = sorted(known)
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=3)
            advice = f"Did you mean {', '.join(nearest)}? " if nearest else ""
            raise ValueError(f"There is no {what} `{name}`. {advice}All: {', '.join(known)}.")


def check_choice(field: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises ValueError if `value` is not one of `choices`."""
    if value not in choices:
        start = "None or one of" if None in choices else "one of"
        known = ", ".join(repr(choice) for choice in choices if choice is not None)
        raise ValueError(f"`{field}` must be {start} {known}. Received: {value!r}.")


def chosen_names(field: str, values: str | Iterable[str], known: tuple[str, ...]) -> Any:
    """Checked names, one or several, in the order of `known`."""
    values = (values,) if isinstance(values, str) else tuple(values)
    for value in values:
        check_choice(field, value, known)
    return tuple(name for name in known if name in values)


def from_fields(field: str, value: Any, kind: type) -> Any:
    """Makes a dataclass of a dict of its fields, as `get_config` returns it."""
    del field
    return kind(**value) if isinstance(value, dict) else value


def check_fields(config: Any, checks: Mapping[str, Callable[[str, Any], Any]]) -> None:
    """Checks the fields of a frozen dataclass by functions of name and value.

    What a function returns becomes the value, if anything. `None` stays where the type has it.
    """
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if name not in checks or (value is None and "None" in str(field.type)):
            continue
        converted = checks[name](name, value)
        if converted is not None:
            object.__setattr__(config, name, converted)


_SHOWN_ITEMS = 5
_SHOWN_LETTERS = 100


def short_repr(self: Any) -> str:
    """A `__repr__` of dataclasses on one line: of arrays type and shape, of long fields the size.

    Functions and fields that are empty or as by default are left out.
    """
    values = [
        (field, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr
    ]
    shown = [f"{field.name}={_shorten(value)}" for field, value in values if _tells(field, value)]
    return f"{type(self).__name__}({', '.join(shown)})"


def _tells(field: dataclasses.Field[Any], value: Any) -> bool:
    if value is None or callable(value) or (isinstance(value, Sized) and not len(value)):
        return False
    return not isinstance(value, str | int | float) or value != field.default


def _shorten(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list | Mapping):
        arrays = any(hasattr(each, "shape") for each in value)
        if arrays or len(value) > _SHOWN_ITEMS or len(repr(value)) > _SHOWN_LETTERS:
            return f"<{len(value):,} items>"
    return repr(value)
