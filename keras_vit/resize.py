"""NumPy arithmetic on tables of positions: fixed embeddings."""

from __future__ import annotations

import numpy as np


def sincos_2d(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> np.ndarray:
    """Fixed sine-cosine embedding of places on a grid, as in https://arxiv.org/abs/2205.01580.

    Frequencies fall geometrically from 1 to `1 / temperature`; a place (y, x) becomes
    `[sin(x w), cos(x w), sin(y w), cos(y w)]`.

    Args:
        grid: Patches along (height, width).
        width: Dimension of an embedding, a multiple of 4 above 4.
        temperature: Ratio of the highest to the lowest frequency.

    Returns:
        float32 array of shape `(N, width)`, rows in row-major order of the grid.

    Raises:
        ValueError: If 4 does not divide `width`.
    """
    if width % 4 or width < 8:
        raise ValueError(f"`width` must be a multiple of 4 from 8 on. Received: width={width}.")
    y, x = (axis.reshape(-1, 1) for axis in np.mgrid[: grid[0], : grid[1]])  # (N, 1)
    frequencies = temperature ** -np.linspace(0.0, 1.0, width // 4)
    x, y = x * frequencies, y * frequencies  # (N, D / 4)
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    return table.astype("float32")  # (N, D)
