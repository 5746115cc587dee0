"""Dense layers that lose most where a file rounds them to few bits, as the model in Keras shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.errors import listed
from keras_vit.export.formats import FORMATS, Rounding
from keras_vit.export.inference import Inference
from keras_vit.runtime.private_names import flatten_layers

_IMAGES, _NAMED = 8, 3
_LISTED = 60  # names in an error message: a ViT-B has 49 dense layers and a convolution


def name_lossy_layers(
    inference: Inference, format: str, precision: str, images: Any, float_layers: Sequence[str] = ()
) -> str:
    """Names the dense layers whose outputs a quantised file changes most, for a message.

    The model runs once on a few images; each layer rounds its kernel and its inputs as the format
    does, and its error is that of `ErrorSums`.

    Args:
        inference: The model.
        format: Name of the format.
        precision: Precision of the file.
        images: What `Inference.batch` takes.
        float_layers: Parts of the names of layers that the file keeps float.

    Returns:
        A sentence and a space; empty for a file that is not quantised.
    """
    rounding = FORMATS[format].roundings.get(precision)
    if rounding is None:
        return ""
    errors = _errors(inference, rounding, images[:_IMAGES])
    kept = {n: e for n, e in errors.items() if not any(is_part(x, n) for x in float_layers)}
    worst = sorted(kept, key=lambda name: -kept[name])[:_NAMED]
    named = ", ".join(f"{name} ({kept[name]:.1%})" for name in worst)
    return f"{rounding.bits} bits lose most in {named}. " if named else ""


def is_part(part: str, name: str) -> bool:
    """Whether a name in a file has a part, with or without the numbers that conversion adds.

    Args:
        part: Such as `block_0/mlp`.
        name: Such as `exported_1/block_0_1/mlp_1/hidden_1/MatMul`.
    """
    return part in name or part in re.sub(r"_\d+(?=/|$)", "", name)


def match_parts(
    parts: Sequence[str], names: Sequence[str], what: str, advice: str = ""
) -> list[str]:
    """Finds the names in a file that have a part, as `float_layers` of an export gives them.

    Args:
        parts: As for `is_part`.
        names: All names.
        what: What has these names, for the error message.
        advice: The end of that message.

    Raises:
        ValueError: If no name has one of the parts.
    """
    unknown = [part for part in parts if not any(is_part(part, name) for name in names)]
    if unknown:
        raise ValueError(
            f"`float_layers` must be parts of the names of {what}. Received: {unknown}, which "
            f"match none of {len(names)}: {listed(names, _LISTED)}.{advice}"
        )
    return [name for name in names if any(is_part(part, name) for part in parts)]


class ErrorSums:
    """Sums over tokens and images for each channel of an output."""

    def __init__(self) -> None:
        self.count, self.largest = 0, 0.0
        self.squares = self.values = self.differences = np.zeros(1)

    def add(self, rounded: np.ndarray, exact: np.ndarray) -> None:
        exact = exact.reshape(-1, exact.shape[-1]).astype("float64")
        difference = rounded.reshape(exact.shape) - exact
        self.count += len(exact)
        self.values = self.values + exact.sum(axis=0)
        self.squares = self.squares + (exact**2).sum(axis=0)
        self.differences = self.differences + (difference**2).sum(axis=0)
        self.largest = max(self.largest, float(np.abs(difference).max()))

    def error(self) -> float:
        """As in `keras_vit.export.litert_int8.LayerError`."""
        variance = self.squares / self.count - (self.values / self.count) ** 2
        shares = self.differences / self.count / np.maximum(variance, 1e-12)
        return float(np.sqrt(np.minimum(shares, 1).mean()))


def _errors(inference: Inference, rounding: Rounding, images: Any) -> dict[str, float]:
    """The error of every dense layer by its path."""
    layers = flatten_layers(inference.model)
    sums = {layer: ErrorSums() for layer in layers if isinstance(layer, keras.layers.Dense)}

    def record(layer: keras.layers.Dense, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(inputs, "numpy"):  # another thread may trace the layer meanwhile
                x, kernel = inputs.numpy(), np.asarray(layer.kernel)
                x = x.reshape(-1, x.shape[-1])
                sums[layer].add(_round_both(x, kernel, rounding), x @ kernel)
            return call(inputs, *args, **kwargs)

        return recorded

    for layer in sums:
        vars(layer)["call"] = record(layer, layer.call)
    try:
        inference(inference.batch(images))
    finally:
        for layer in sums:
            del vars(layer)["call"]
    return {layer.path: total.error() for layer, total in sums.items() if total.count}


def _round_both(x: np.ndarray, kernel: np.ndarray, rounding: Rounding) -> np.ndarray:
    """The product of inputs `(T, D)` and a kernel `(D, K)`, both rounded."""
    axis = -1 if rounding.by_token else None
    high, low = x.max(axis, keepdims=True, initial=0), x.min(axis, keepdims=True, initial=0)
    x = _round(x, high - low, 2**8 - 1)
    blocks = kernel.reshape(-1, rounding.block or len(kernel), kernel.shape[-1])
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    return x @ _round(blocks, largest, 2 ** (rounding.bits - 1) - 1).reshape(kernel.shape)


def _round(x: np.ndarray, reach: np.ndarray, steps: int) -> np.ndarray:
    scale = np.where(reach > 0, reach, 1) / steps
    return np.round(x / scale) * scale
