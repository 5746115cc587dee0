"""Charts as inline SVG, in the colours of the page: curves, calibration, confusion, scatter.

They need no other package. Figures of images and weights are in `keras_vit.analysis.plots`.
"""

from __future__ import annotations

import html
import math
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.report.page import data_address

_WIDTH, _HEIGHT = 340, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 36
_MOST_LABELS, _MOST_NUMBERS = 60, 25  # classes of a confusion matrix with labels, and with counts
_LONGEST_LABEL = 22  # letters
_MOST_POINTS = 2_000
_CORRECT, _MISTAKE = (62, 132, 214), (216, 64, 80)  # colours of cells


def draw_curves(
    title: str, curves: Mapping[str, Sequence[float]], marked_epoch: int | None = None
) -> str:
    """Draws values of every epoch as lines.

    Args:
        title: What the values are.
        curves: One or two lines by name. Values that are not finite leave a gap.
        marked_epoch: An epoch to mark, counted from 1.

    Returns:
        An SVG element, or `""` without finite values.
    """
    finite = [v for values in curves.values() for v in values if math.isfinite(v)]
    if not finite:
        return ""
    ticks = find_ticks(min(finite), max(finite))
    low, high = min(ticks[0], *finite), max(ticks[-1], *finite)
    count = max(map(len, curves.values()))
    last = max(2, count)

    def x(epoch: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (epoch - 1) / (last - 1)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    parts = [_grid_line(y(tick), f"{tick:.5g}") for tick in ticks]
    whole = [tick for tick in find_ticks(1, last, 5) if tick == round(tick) and 1 <= tick <= count]
    whole = [1.0, *(tick for tick in whole if tick - 1 > (last - 1) / 12)]
    for tick in whole:
        anchor = "end" if tick == last > 99 else "middle"  # or its digits are cut off
        parts.append(_text(x(tick), _HEIGHT - _BOTTOM + 15, f"{tick:g}", anchor))
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "epoch", "middle"))
    if marked_epoch is not None:
        at = x(marked_epoch)
        parts.append(_line(at, _TOP, at, _HEIGHT - _BOTTOM, "mark"))
        anchor = "end" if marked_epoch > last / 2 else "start"  # above the curves
        parts.append(_text(at, _TOP - 4, f"best: {marked_epoch}", anchor, "halo"))
    legend = _WIDTH - _RIGHT
    styles = ("first", "second")[: len(curves)]
    for (name, values), style in reversed(list(zip(curves.items(), styles, strict=True))):
        parts += _polylines([(x(i + 1), y(v)) for i, v in enumerate(values)], style)
        if len(curves) > 1:
            parts.append(_text(legend, 14, name, "end", f"{style}-fill"))
            legend -= 7 * len(name) + 10
    parts.append(_text(0, 14, title, "start", "title"))
    return _svg(_WIDTH, _HEIGHT, f"{title} by epoch", parts)


def draw_calibration(
    bins: Sequence[tuple[float, float, int, float, float]], title: str = "accuracy"
) -> str:
    """Draws a reliability diagram, with the number of images below each bar.

    Args:
        bins: Lower and upper confidence, number of images, mean confidence, accuracy.
        title: Heading.

    Returns:
        An SVG element.
    """
    side = _WIDTH - _LEFT - _RIGHT
    height, base = side + 88, side + 28
    most = max(1, *(count for _, _, count, _, _ in bins))
    parts = [_grid_line(base - side * tick, f"{tick:.0%}") for tick in (0, 0.25, 0.5, 0.75, 1)]
    for low, high, count, _, accuracy in bins:
        left, width = _LEFT + side * low + 1, side * (high - low) - 2
        parts.append(_box(left, base - side * accuracy, width, side * accuracy, "first-fill"))
        tall = 24 * count / most
        parts.append(_box(left, height - 14 - tall, width, tall, "first-fill", 0.45))
        if count:
            parts.append(_text(left + width / 2, height - 17 - tall, f"{count:,}", "middle"))
    parts.append(_line(_LEFT, base, _LEFT + side, base - side, "mark"))
    for tick, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        parts.append(_text(_LEFT + side * tick, height - 2, f"{tick:.0%}", anchor))
    parts.append(_text(_LEFT + side / 4, height - 2, "confidence", "middle"))
    parts.append(_text(0, 14, title, "start", "title"))
    return _svg(_WIDTH, height, f"Accuracy by confidence: {title}", parts)


def draw_scatter(title: str, true: np.ndarray, predicted: np.ndarray) -> str:
    """Draws predicted against true values, with the line where both are equal.

    Args:
        title: What the values are.
        true: True values of shape `(B,)`.
        predicted: Predicted values of shape `(B,)`.

    Returns:
        An SVG element, with at most 2,000 of the points, spread evenly.
    """
    side = _WIDTH - _LEFT - _RIGHT
    base = _TOP + side
    ticks = find_ticks(
        float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))
    )
    low, scale = ticks[0], side / (ticks[-1] - ticks[0])
    parts = [_grid_line(base - (tick - low) * scale, f"{tick:.5g}") for tick in ticks]
    parts.append(_line(_LEFT, base, _LEFT + side, _TOP, "mark"))
    step = -(-len(true) // _MOST_POINTS)
    parts += [
        f'<circle class="first-fill" opacity=".45" cx="{_LEFT + (x - low) * scale:.1f}" '
        f'cy="{base - (y - low) * scale:.1f}" r="2.5"/>'
        for x, y in zip(true[::step], predicted[::step], strict=True)
    ]
    for tick in ticks:
        anchor = "end" if tick == ticks[-1] else "middle"
        parts.append(_text(_LEFT + (tick - low) * scale, base + 15, f"{tick:.5g}", anchor))
    parts.append(_text(_LEFT + side / 2, base + 32, "true", "middle"))
    parts.append(_text(0, 14, f"{title}, predicted", "start", "title"))
    return _svg(_WIDTH, base + 38, f"{title}: predicted against true values", parts)


def draw_confusion(matrix: np.ndarray, class_names: Sequence[str]) -> str:
    """Draws a confusion matrix: rows are true classes, columns are predictions.

    Up to 25 classes it has numbers, up to 60 it has labels. The strength of a colour is the share
    of the row: blue for correct predictions, red for mistakes.

    Args:
        matrix: Integers of shape `(K, K)`.
        class_names: Names of the classes.

    Returns:
        An SVG element of a width that grows with the number of classes, up to 1000 pixels.
    """
    K = len(matrix)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    digits = len(f"{matrix.max(initial=0):,}")
    cell = max(1.0, 640 / K)
    if K <= _MOST_LABELS:
        cell = max(34, 7 * digits + 8) if K <= _MOST_NUMBERS else 13
    names = [_shorten(name) for name in class_names] if K <= _MOST_LABELS else []
    labels = 14 + 6.2 * max(map(len, names), default=2)
    width = labels + cell * K + 0.6 * labels  # the labels of columns are tilted
    height = labels + cell * K + 6
    address = data_address(_encode_cells(shares), "png")
    parts = [
        f'<g class="cells"><rect x="{labels:.1f}" y="{labels:.1f}" width="{cell * K:.1f}" '
        f'height="{cell * K:.1f}" class="grid-line" fill="none"/>'
        f'<image href="{address}" x="{labels:.1f}" y="{labels:.1f}" width="{cell * K:.1f}" '
        f'height="{cell * K:.1f}" preserveAspectRatio="none" '
        'style="image-rendering: pixelated"/></g>'
    ]
    for i, name in enumerate(names):
        middle = labels + cell * (i + 0.5)
        parts.append(_text(labels - 6, middle + 4, name, "end"))
        tilted = f'transform="translate({middle + 4:.1f} {labels - 6:.1f}) rotate(-60)"'
        parts.append(f"<text {tilted}>{html.escape(name)}</text>")
    for row, column in zip(*np.nonzero(matrix), strict=True) if K <= _MOST_NUMBERS else ():
        x, y = labels + cell * (column + 0.5), labels + cell * (row + 0.5) + 4
        style = "on-dark" if shares[row, column] > 0.45 else "on-light"
        parts.append(_text(x, y, f"{matrix[row, column]:,}", "middle", style))
    return _svg(width, height, "Confusion matrix: rows true, columns predicted", parts, width)


def draw_interval(share: float, low: float, high: float) -> str:
    """Draws a share and its interval on a line from 0 to 100 %."""
    return (
        '<svg class="interval" viewBox="0 0 160 14" width="160" aria-hidden="true">'
        '<path class="grid-line" d="M4 7H156"/>'
        f'<path class="first" stroke-width="4" opacity=".5" '
        f'd="M{4 + 152 * low:.1f} 7H{4 + 152 * high:.1f}"/>'
        f'<circle class="first-fill" cx="{4 + 152 * share:.1f}" cy="7" r="4"/></svg>'
    )


def find_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Finds about `count` round numbers from below `low` to above `high`."""
    if high <= low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(each for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def _encode_cells(shares: np.ndarray) -> bytes:
    """Encodes a confusion matrix as a PNG with one transparent pixel a cell, for all pages."""
    height, width = shares.shape
    pixels = np.empty((height, width, 4), "uint8")
    pixels[:] = (*_MISTAKE, 0)
    np.einsum("iij->ij", pixels)[:] = (*_CORRECT, 0)
    pixels[..., 3] = np.round(255 * np.where(shares > 0, 0.12 + 0.88 * shares, 0))
    rows = np.concatenate([np.zeros((height, 1), "uint8"), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + end

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    image = zlib.compress(rows.tobytes(), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", image) + chunk(b"IEND", b"")
    )


def _svg(
    width: float, height: float, label: str, parts: Sequence[str], least_width: float = 0
) -> str:
    style = f' style="min-width: {least_width:.0f}px"' if least_width else ""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="{html.escape(label)}"{style}>{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{html.escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    return f'<path class="{style}" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"/>'


def _box(x: float, y: float, width: float, height: float, style: str, opacity: float = 1) -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" opacity="{opacity}"/>'
    )


def _grid_line(y: float, label: str) -> str:
    line = _line(_LEFT, y, _WIDTH - _RIGHT, y, "grid-line")
    return line + _text(_LEFT - 6, y + 4, label, "end")


def _polylines(points: Sequence[tuple[float, float]], style: str) -> list[str]:
    """Lines with gaps where a value is not finite; a dot for a value on its own."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    parts = []
    for run in filter(None, runs):
        if len(run) == 1:
            parts.append(
                f'<circle class="{style}-fill" cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="3"/>'
            )
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            parts.append(f'<polyline class="{style}" stroke-width="1.8" points="{path}"/>')
    return parts


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
