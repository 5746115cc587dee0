"""Plots of attention, features and learned weights; needs matplotlib."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_vit.installation import needing

if TYPE_CHECKING:  # an optional package
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#20242b"
_USUAL = 95  # percentile that ends a scale where the highest value lies far above it
_OUTLYING = 1.5  # times the range up to that percentile
# From OKLab to linear RGB (https://bottosson.github.io/posts/oklab/).
_OKLAB = np.array(
    [[1, 0.3963378, 0.2158038], [1, -0.1055613, -0.0638542], [1, -0.0894842, -1.2914855]]
)
_CONES = np.array(
    [
        [4.0767417, -3.3077116, 0.2309699],
        [-1.2684380, 2.6097574, -0.3413194],
        [-0.0041961, -0.7034186, 1.7076147],
    ]
)
SERIES = ("#2a6fbb", "#d1495b", "#3a9b72", "#8a5fb0", "#c98a1b", "#5b6770")


def usual_range(values: npt.ArrayLike) -> tuple[float, float]:
    """Finds the ends of a scale on which a few very high values do not make all others dark.

    Returns:
        The lowest value, and the highest; or the 95th percentile, if the highest is 1.5 times as
        far from the lowest.
    """
    low, usual, high = (float(each) for each in np.percentile(np.asarray(values), (0, _USUAL, 100)))
    return low, usual if high - low > _OUTLYING * (usual - low) > 0 else high


def relative_map(values: npt.ArrayLike) -> np.ndarray:
    """Scales a map to [0, 1] by its `usual_range`; a map of one value becomes 1."""
    low, high = usual_range(values)
    if low == high:
        return np.ones(np.shape(values), "float32")
    return np.clip((np.asarray(values, "float32") - low) / (high - low), 0, 1)


def overlay_attention(image: npt.ArrayLike, attention: npt.ArrayLike) -> np.ndarray:
    """Darkens an image where attention is low.

    As in Figures 6 and 14 of https://arxiv.org/abs/2010.11929: the map is resized to the image
    (Lanczos), blurred by one patch, rescaled to [0, 1], and multiplied with the image. Unlike
    there, the map is clipped to its `usual_range` first: trained networks often have one or two
    patches with 30 times the attention of others, and all else would be black.

    Args:
        image: Array of shape `(H, W, 3)`, `(H, W, 1)` or `(H, W)`, in [0, 255], or in [0, 1] if
            its type is a float and no value is above 1.
        attention: Non-negative array of shape `(rows, columns)`.

    Returns:
        float32 array of shape `(H, W, 3)` in [0, 1].

    Raises:
        ValueError: If the map is not two-dimensional.
    """
    _import_matplotlib()  # raises an error without matplotlib, which needs Pillow
    from PIL import Image, ImageFilter

    image = as_rgb(image)
    attention = np.asarray(attention, "float32")
    if attention.ndim != 2:
        raise ValueError(
            "An attention map must have the shape (rows, columns). Received: shape "
            f"{attention.shape}. For maps of several heads, pass the mean over heads, or one head."
        )
    height, width = image.shape[:2]
    relative = Image.fromarray(relative_map(attention))
    relative = relative.resize((width, height), Image.Resampling.LANCZOS)
    # Pillow cannot blur floats; 256 levels are enough for an image.
    pixels = Image.fromarray(np.clip(np.asarray(relative) * 255, 0, 255).astype("uint8"))
    radius = min(height / attention.shape[0], width / attention.shape[1])
    mask = np.asarray(pixels.filter(ImageFilter.GaussianBlur(radius)), "float32")
    spread = float(mask.max() - mask.min())
    mask = (mask - mask.min()) / spread if spread else np.ones_like(mask)
    return image * mask[:, :, None]


def plot_attention(
    images: npt.ArrayLike,
    attention: npt.ArrayLike,
    titles: Sequence[str] | None = None,
    outliers: npt.ArrayLike | None = None,
) -> Figure:
    """Plots images, and below them the same images darkened where attention is low.

    The scale is that of each image, its `usual_range`: the highest attention is not darkened, the
    lowest is black.

    Args:
        images: Array of shape `(B, H, W, C)`, in [0, 255], or floats in [0, 1].
        attention: Maps of shape `(B, rows, columns)`, as `attention_rollout` returns.
        titles: A title for each image.
        outliers: Patches to frame, as `outlier_patches` returns.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the numbers of maps, titles and images differ.
    """
    images, attention = np.asarray(images), np.asarray(attention)
    figure, axes = _two_rows(images, len(attention), titles, ("image", "attention"))
    for i, image in enumerate(images):
        show_image(axes[1, i], overlay_attention(image, attention[i]))
    _frame(figure, axes[1], outliers, images.shape[1:3])
    scale = _import_matplotlib().cm.ScalarMappable(cmap="gray")
    bar = figure.colorbar(scale, ax=axes[1], shrink=0.9, pad=0.01, ticks=(0, 1))
    bar.ax.set_yticklabels(("lowest", "highest"))
    return figure


def plot_maps(
    images: npt.ArrayLike,
    maps: npt.ArrayLike,
    label: str = "value",
    titles: Sequence[str] | None = None,
    outliers: npt.ArrayLike | None = None,
    relative: bool = False,
) -> Figure:
    """Plots images, and below them maps with one value per patch.

    The scale is the `usual_range` of all maps; where values lie above it, the colour bar ends in an
    arrow. The colours, viridis, can be told apart by colour-blind readers and in print.

    Args:
        images: Array of shape `(B, H, W, C)`, in [0, 255], or floats in [0, 1].
        maps: Array of shape `(B, rows, columns)`: relevance, norms, attention.
        label: What the values are, with their unit.
        titles: A title for each image.
        outliers: Patches to frame, as `outlier_patches` returns.
        relative: Whether each map has a scale of its own.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the numbers of maps, titles and images differ.
    """
    images, maps = np.asarray(images), np.asarray(maps)
    figure, axes = _two_rows(images, len(maps), titles, ("image", "map"))
    if relative:
        maps = np.stack([relative_map(each) for each in maps])
    low, high = usual_range(maps)
    for i, values in enumerate(maps):
        drawn = axes[1, i].imshow(values, cmap="viridis", vmin=low, vmax=max(high, low + 1e-12))
    _frame(figure, axes[1], outliers, maps.shape[1:])
    extend = "max" if high < maps.max() else "neither"
    bar = figure.colorbar(drawn, ax=axes[1], shrink=0.9, pad=0.01, extend=extend)
    if relative:
        bar.set_ticks((low, high), labels=("lowest", "highest"))
    inches = 1.5 * images.shape[1] / images.shape[2]  # height of a row
    letters = max(8, int(inches / 0.085))
    bar.set_label(textwrap.fill(label, letters, break_long_words=False))
    return figure


def plot_components(images: npt.ArrayLike, components: npt.ArrayLike) -> Figure:
    """Plots images, and below them three principal components of their patches as colours.

    The first is lightness, the second goes from blue to yellow, the third from green to red (in
    OKLab), so that readers who cannot tell red from green miss the third only.

    Args:
        images: Array of shape `(B, H, W, C)`, in [0, 255], or floats in [0, 1].
        components: Array of shape `(B, rows, columns, 3)`, as `patch_components` returns. All
            images share the scale of each component.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the numbers of maps and images differ, or there are not three components.
    """
    images, components = np.asarray(images), np.asarray(components)
    if components.ndim != 4 or components.shape[3] != 3:
        raise ValueError(
            "Colours need 3 components, of shape (images, rows, columns, 3). Received: "
            f"shape {components.shape}."
        )
    low, high = np.percentile(components, (1, 99), axis=(0, 1, 2))
    colors = component_colors(np.clip((components - low) / np.maximum(high - low, 1e-12), 0, 1))
    figure, axes = _two_rows(images, len(components), None, ("image", "components"))
    for axis, values in zip(axes[1], colors, strict=True):
        show_image(axis, values.astype("float32"))
    return figure


def component_colors(components: np.ndarray) -> np.ndarray:
    """Converts three components in [0, 1] to colours: lightness, blue to yellow, green to red."""
    lightness, yellow, red = np.moveaxis(components, -1, 0)
    oklab = np.stack([0.35 + 0.57 * lightness, 0.32 * red - 0.16, 0.32 * yellow - 0.16], axis=-1)
    linear = np.clip((oklab @ _OKLAB.T) ** 3 @ _CONES.T, 0, 1)
    return np.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def plot_patch_filters(filters: npt.ArrayLike, columns: int = 7) -> Figure:
    """Plots principal components of the filters, as in Figure 7 (left) of the ViT paper.

    Args:
        filters: Array of shape `(count, P, P, C)`, as `patch_filters` returns. Each is scaled to
            the range from black to white. If there are neither 1 nor 3 channels, their mean is
            shown.
        columns: Filters per row.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    images = np.asarray(filters)
    if images.shape[-1] not in (1, 3):
        images = images.mean(axis=-1, keepdims=True)
    rows = -(-len(images) // columns)
    figure = new_figure(0.7 * columns, 0.7 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, pixels in zip(axes.flat, images, strict=False):
        spread = max(float(np.ptp(pixels)), 1e-12)
        show_image(axis, ((pixels - pixels.min()) / spread).astype("float32"))
    return figure


def plot_position_similarity(similarity: npt.ArrayLike) -> Figure:
    """Plots the position similarity of every patch, as in Figure 7 (centre) of the ViT paper.

    Args:
        similarity: Array of shape `(rows, columns, rows, columns)`, as `position_similarity`
            returns.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    similarity = np.asarray(similarity)
    rows, columns = similarity.shape[:2]
    tile = min(0.7, 7 / max(rows, columns))
    figure = new_figure(tile * columns + 1.2, tile * rows * rows / columns + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02)
    for (y, x), axis in np.ndenumerate(axes):
        image_plot = axis.imshow(similarity[y, x], cmap="viridis", vmin=-1, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.supxlabel("column of the patch", fontsize=9)
    figure.supylabel("row of the patch", fontsize=9)
    figure.colorbar(image_plot, ax=axes, label="cosine similarity", shrink=0.9, pad=0.02)
    return figure


def plot_attention_distance(distances: npt.ArrayLike) -> Figure:
    """Plots the mean attention distance by block, as in Figures 7 (right) and 11 of the ViT paper.

    Args:
        distances: Array of shape `(depth, A)` in pixels, as `mean_attention_distance` returns.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    distances = np.asarray(distances)
    figure = new_figure(5.0, 3.6)
    axis = figure.subplots()
    for head, column in enumerate(distances.T):
        axis.plot(column, "o", color=SERIES[head % 6], alpha=0.85, label=f"head {head + 1}")
    style_axis(axis, "block", "mean attention distance (pixels)")
    axis.set_ylim(0, 1.08 * max(float(distances.max()), 1e-12))
    axis.locator_params(axis="x", integer=True)
    if distances.shape[1] <= 6:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Creates an empty figure without a window; width and height are in inches."""
    return _import_matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


def show_image(axis: Axes, image: npt.ArrayLike, title: str | None = None) -> None:
    """Draws an image on an axis without ticks."""
    axis.imshow(as_rgb(image), interpolation="nearest")
    axis.set_axis_off()
    if title:
        axis.set_title(title, fontsize=9, color=_INK, parse_math=False)


def style_axis(axis: Axes, x: str, y: str) -> None:
    """Sets the labels and grid lines that all plots share."""
    axis.set(xlabel=x, ylabel=y)
    axis.grid(color="#e3e6ea", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def as_rgb(image: npt.ArrayLike) -> np.ndarray:
    """Converts an image to RGB floats in [0, 1].

    Args:
        image: Array of shape `(H, W, 3)`, `(H, W, 1)` or `(H, W)`, in [0, 255], or in [0, 1] if
            its type is a float and no value is above 1.

    Returns:
        float32 array of shape `(H, W, 3)`.

    Raises:
        ValueError: If it has another shape.
    """
    x = np.asarray(image)
    x = x[:, :, None] if x.ndim == 2 else x
    if x.ndim != 3 or x.shape[2] not in (1, 3):
        raise ValueError(
            "An image must have the shape (height, width) or (height, width, 1 or 3). "
            f"Received: shape {np.asarray(image).shape}."
        )
    scale = 1.0 if x.dtype.kind == "f" and x.max() <= 1 else 255.0
    x = np.clip(x.astype("float32") / scale, 0, 1)
    return np.repeat(x, 3, axis=2) if x.shape[2] == 1 else x


def _two_rows(
    images: np.ndarray, num_maps: int, titles: Sequence[str] | None, rows: tuple[str, str]
) -> tuple[Figure, np.ndarray]:
    """A figure with images and titles in the first row, and empty axes in the second."""
    _check_count("map", num_maps, len(images))
    if titles is not None:
        _check_count("title", len(titles), len(images))
    height = 3.4 * images.shape[1] / images.shape[2] + (0.3 if titles is None else 0.6)
    figure = new_figure(1.6 * len(images) + 1.0, height)
    axes = figure.subplots(2, len(images), squeeze=False)
    for i, image in enumerate(images):
        # Long titles take two lines: a column is about 20 letters wide.
        title = None if titles is None else textwrap.fill(titles[i], 20)
        show_image(axes[0, i], image, title)
        axes[1, i].set_axis_off()
    for axis, name in zip(axes[:, 0], rows, strict=True):
        axis.text(
            -0.06, 0.5, name, transform=axis.transAxes, rotation=90, ha="right", va="center",
            fontsize=9, color=_INK,
        )  # fmt: skip
    return figure, axes


def _frame(
    figure: Figure, axes: np.ndarray, outliers: npt.ArrayLike | None, shape: tuple[int, ...]
) -> None:
    """Frames outliers on pictures of `shape`, white in black: seen on every colour."""
    if outliers is None:
        return
    outliers = np.asarray(outliers)
    _check_count("map of outliers", len(outliers), len(axes))
    height, width = shape[0] / outliers.shape[1], shape[1] / outliers.shape[2]
    for i, row, column in np.argwhere(outliers):
        for color, line in (("black", 2.4), ("white", 1.0)):
            corner = (column * width - 0.5, row * height - 0.5)
            patch = _import_matplotlib().patches.Rectangle(
                corner, width, height, fill=False, edgecolor=color, linewidth=line, clip_on=False
            )
            axes[i].add_patch(patch)
    if outliers.any():
        figure.supxlabel("framed: outlier patches", fontsize=8, color=_INK)


def _check_count(what: str, received: int, expected: int) -> None:
    """Raises a `ValueError` unless there is one map or title per image."""
    if received != expected:
        raise ValueError(
            f"There must be one {what} for each of the {expected} images. Received: {received}."
        )


def _import_matplotlib() -> types.ModuleType:
    with needing("plot", "Plots need matplotlib"):
        import matplotlib
        import matplotlib.cm
        import matplotlib.figure
        import matplotlib.patches
    return matplotlib
