"""Resizing of position embeddings and patch kernels, and fixed embeddings: in NumPy or a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.checks import check_choice
from keras_vit.config import POSITION_RESIZES

# Path in a block of the table of position_embedding="relative_bias", whose last axis are the heads.
BIAS_TABLE = "attention/position_bias"


def sincos_2d(grid: tuple[Any, Any], width: int, xp: Any = np, last: float = 1.0) -> Any:
    """Computes the fixed sine-cosine embedding of a grid, as in https://arxiv.org/abs/2205.01580.

    Frequencies fall geometrically from 1 to 1 / 10,000; position (y, x) becomes
    `[sin(x w), cos(x w), sin(y w), cos(y w)]`.

    Args:
        grid: Patches along (height, width).
        width: Dimension of an embedding, a multiple of 4 above 4.
        xp: As for `resize_matrix`.
        last: Exponent of the lowest frequency, in which masked autoencoders differ.

    Returns:
        float32 array of shape `(N, width)`, rows in row-major order of the grid.

    Raises:
        ValueError: If 4 does not divide `width`.
    """
    if width % 4 or width < 8:
        raise ValueError(f"`width` must be a multiple of 4 from 8 on. Received: width={width}.")
    coordinates = xp.meshgrid(*(_real(xp.arange(count), xp) for count in grid), indexing="ij")
    y, x = (xp.reshape(axis, (-1, 1)) for axis in coordinates)  # (N, 1)
    frequencies = _real(10_000.0 ** -np.linspace(0.0, last, width // 4), xp)
    x, y = x * frequencies, y * frequencies  # (N, D / 4)
    table = xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=1)
    return table.astype("float32") if xp is np else table  # (N, D)


def resize_positions(
    table: np.ndarray, grid: Sequence[int], new_grid: Sequence[int], method: str = "align_corners"
) -> np.ndarray:
    """Resizes a position embedding from one grid of patches to another.

    Args:
        table: Float array of shape `(..., N, D)`, the positions of `grid` in row-major order,
            without rows for class tokens or registers.
        grid: Patches along (height, width) that the table was learned for.
        new_grid: Patches along (height, width) of the result.
        method: `"align_corners"`, linear between positions whose corners coincide, as the official
            code does (https://arxiv.org/abs/2010.11929, section 3.2); between the centres of
            cells `"linear"`, antialiased, as FlexiViT does, `"bilinear"`, not antialiased, as
            timm does for FlexiViT, `"bicubic"`, antialiased, as timm does otherwise, or
            `"bicubic_plain"`, as most models of transformers do.

    Returns:
        float32 array of shape `(..., M, D)`, `M` the positions of `new_grid`.

    Raises:
        ValueError: If the table has other positions than `grid`, or the method is unknown.

    Example:

    >>> resize_positions(np.array([[0.0], [1.0], [2.0], [3.0]]), (2, 2), (3, 3))[:, 0]
    array([0. , 0.5, 1. , 1. , 1.5, 2. , 2. , 2.5, 3. ], dtype=float32)
    """
    if table.shape[-2] != grid[0] * grid[1]:
        raise ValueError(
            f"A grid of {grid[0]} x {grid[1]} has {grid[0] * grid[1]} positions. Received a table "
            f"of {table.shape[-2]} rows, shape {table.shape}. Leave out the rows of class tokens "
            "and registers, or pass the grid that the table was made for."
        )
    check_choice("method", method, POSITION_RESIZES)
    return _resize_grid(table, grid, new_grid, lambda old, new: resize_matrix(old, new, method))


def num_biases(grid: tuple[int, int], class_token: bool) -> int:
    """Rows of a table of biases of distances between patches, with those of a class token."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3 * class_token


def side_of_biases(rows: int, class_token: bool) -> int:
    """Side of the square grid that such a table with so many rows is for; any number without."""
    return (math.isqrt(max(rows - 3 * class_token, 0)) + 1) // 2


def resize_position_bias(
    table: np.ndarray,
    grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str = "align_corners",
) -> np.ndarray:
    """Resizes biases of the rows and columns between two patches to another grid of patches.

    Args:
        table: Float array of shape `(R, A)`: row by row `(2 height - 1) * (2 width - 1)` distances,
            from the most negative one on, and then any rows of class tokens, which stay.
        grid: Patches along (height, width) that the table was learned for.
        new_grid: Patches along (height, width) of the result.
        method: One of `resize_positions`, of which transformers takes `"bilinear"`; or
            `"geometric"`, as timm does: old distances are as far apart as a geometric series that
            reaches the largest new distance, so that those of neighbours keep their biases, and
            values between them are linear.

    Returns:
        float32 array, a table of the same kind for `new_grid`.

    Raises:
        ValueError: If the table has fewer distances than `grid`, or the method is unknown.
    """
    sides, new_sides = ([2 * side - 1 for side in each] for each in (grid, new_grid))
    count = sides[0] * sides[1]
    distances, token_biases = table[:count], table[count:].astype("float32")
    if method == "geometric" and len(distances) == count:
        distances = _resize_grid(distances, sides, new_sides, _geometric)
    else:
        distances = resize_positions(distances, sides, new_sides, method)
    return np.concatenate([distances, token_biases])


def _geometric(old: int, new: int) -> np.ndarray:
    """Matrix of shape `(new, old)` between distances, odd numbers of them: see above."""
    half, reach = old // 2, new // 2
    low, high = 1.01, 1.5  # bounds and precision of the published code, whose ratio this is
    while high - low > 1e-6:
        ratio = (low + high) / 2
        beyond = (1 - ratio**half) / (1 - ratio) > reach
        low, high = (low, ratio) if beyond else (ratio, high)
    positive = np.cumsum(ratio ** np.arange(half))
    known = np.concatenate([-positive[::-1], [0.0], positive])
    wanted = np.arange(-reach, reach + 1)
    return np.stack([np.interp(wanted, known, one) for one in np.eye(old)], axis=1)


def _resize_grid(
    table: np.ndarray,
    grid: Sequence[int],
    new_grid: Sequence[int],
    matrix: Callable[[int, int], np.ndarray],
) -> np.ndarray:
    """Interpolates a table `(..., N, D)` of a grid along its rows and columns by two matrices."""
    if tuple(grid) == tuple(new_grid):
        return table.astype("float32")
    rows, columns = (matrix(old, new) for old, new in zip(grid, new_grid, strict=True))
    *lead, _, width = table.shape
    cells = table.reshape(*lead, *grid, width).astype("float64")
    cells = np.einsum("yi,...ijd->...yjd", rows, cells)
    cells = np.einsum("xj,...yjd->...yxd", columns, cells)
    return cells.reshape(*lead, -1, width).astype("float32")


def resize_patch_kernel(
    kernel: np.ndarray, patch_size: tuple[int, int], method: str = "bilinear"
) -> np.ndarray:
    """Resizes a patch kernel to another patch size.

    Solves for the kernel whose output on resized patches is that of the old kernel on the
    original patches: the pseudo-inverse resize of https://arxiv.org/abs/2212.08013. It is exact
    where patches grow, and the least-squares solution where they shrink.

    Args:
        kernel: Float array of shape `(rows, columns, C, D)`.
        patch_size: New (height, width) in pixels.
        method: How patches are resized: `"bilinear"`, as big_vision does, or `"bicubic"`,
            antialiased, as timm does.

    Returns:
        float32 array of shape `(*patch_size, C, D)`.

    Raises:
        ValueError: If the method is unknown.
    """
    check_choice("method", method, ("bilinear", "bicubic"))
    if kernel.shape[:2] == tuple(patch_size):
        return kernel.astype("float32")
    rows, columns = (
        np.linalg.pinv(resize_matrix(old, new, method).T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    # The matrix of both axes is a Kronecker product, and so is its pseudo-inverse.
    return np.einsum("yi,xj,ijcd->yxcd", rows, columns, kernel, optimize=True).astype("float32")


def resize_matrix(old: Any, new: Any, method: str, xp: Any = np) -> Any:
    """Computes the matrix that interpolates a line of `old` values to `new` values.

    Args:
        old: Number of values given.
        new: Number of values in the result.
        method: `"align_corners"` (linear, the ends coincide); between centres `"bilinear"`
            (linear), `"linear"` (the same, widened when shrinking), `"bicubic"` (Keys' cubic,
            widened when shrinking) or `"bicubic_plain"` (a steeper cubic, never widened, with the
            outermost values repeated beyond the ends, as in PyTorch); `"adaptive_mean"`, means of
            parts that overlap where `new` does not divide `old`.
        xp: `numpy`, or `keras.ops` where a size is a tensor, which only the graph knows; `old` for
            the first two methods alone.

    Returns:
        float64 array, or float32 tensor, of shape `(new, old)`, rows summing to 1.
    """
    if method == "adaptive_mean":
        parts, values = np.arange(new)[:, None], np.arange(old)
        inside = (values >= parts * old // new) & (values < -(-(parts + 1) * old // new))
        return inside / inside.sum(axis=1, keepdims=True)
    coordinates, size = _real(xp.arange(new), xp), _real(new, xp)
    old = old if isinstance(old, int) else _real(old, xp)
    if method == "align_corners":
        positions = coordinates * ((old - 1) / xp.maximum(size - 1, 1))
        return _weights(_tent, positions, old, 1.0, xp)
    positions = (coordinates + 0.5) * (old / size) - 0.5
    if method == "bilinear":
        return _weights(_tent, xp.clip(positions, 0, old - 1), old, 1.0, xp)
    if method == "bicubic_plain":
        return _repeated_ends(positions, old, xp)
    kernel = _tent if method == "linear" else _keys
    return _weights(kernel, positions, old, xp.maximum(old / size, 1.0), xp)


def _real(x: Any, xp: Any) -> Any:
    """Integers as float64 in NumPy, and as float32 in a graph."""
    return np.asarray(x, "float64") if xp is np else xp.cast(x, "float32")


def _repeated_ends(positions: Any, old: int, xp: Any) -> Any:
    """Cubic weights of the four values around every position; the end values are repeated."""
    values, matrix = _real(np.arange(old), xp), 0.0
    first = xp.floor(positions) - 1
    for offset in range(4):
        index = first + offset
        weights = _keys(positions - index, xp, a=-0.75)
        is_it = xp.equal(xp.clip(index, 0, old - 1)[:, None], values)  # (new, old)
        matrix = matrix + xp.where(is_it, weights[:, None], 0.0)
    return matrix


def _weights(kernel: Callable[..., Any], positions: Any, old: Any, scale: Any, xp: Any) -> Any:
    """Weights of every old value at every position; those beyond the ends are left out."""
    values = (np if isinstance(old, int) else xp).arange(old)
    weights = kernel((_real(values, xp)[None] - positions[:, None]) / scale, xp)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _tent(x: Any, xp: Any) -> Any:
    return xp.maximum(0.0, 1.0 - xp.abs(x))


def _keys(x: Any, xp: Any, a: float = -0.5) -> Any:
    """Keys' cubic; -0.5 as in Pillow and in PyTorch where it antialiases, -0.75 elsewhere there."""
    x = xp.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return xp.where(x < 1, near, xp.where(x < 2, far, 0.0))
