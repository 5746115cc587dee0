"""Positions and patch kernels of another size."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage

from keras_vit.config import BIAS_RESIZES, POSITION_RESIZES
from keras_vit.resize import (
    num_biases,
    resize_matrix,
    resize_patch_kernel,
    resize_position_bias,
    resize_positions,
)

RNG = np.random.default_rng(0)


def table(grid, width=3):
    return RNG.normal(size=(1, grid[0] * grid[1], width)).astype("float32")


@pytest.mark.parametrize(
    ("old", "new"),
    [((14, 14), (24, 24)), ((24, 24), (14, 14)), ((7, 7), (12, 12)), ((5, 5), (9, 3)),
     ((2, 2), (3, 3)), ((3, 8), (6, 5)), ((4, 4), (1, 7)), ((1, 1), (4, 4))],
)  # fmt: skip
def test_align_corners_is_scipy_zoom(old, new):
    """What the official code calls: zoom of order 1."""
    positions = table(old)
    cells = positions.reshape(*old, -1)
    expected = scipy.ndimage.zoom(cells, (new[0] / old[0], new[1] / old[1], 1), order=1)
    resized = resize_positions(positions, old, new)
    np.testing.assert_allclose(resized.reshape(expected.shape), expected, rtol=0, atol=1e-6)


def test_align_corners_in_numbers():
    square = np.arange(4.0).reshape(4, 1)
    resized = resize_positions(square, (2, 2), (3, 3))[:, 0]
    np.testing.assert_allclose(resized, [0, 0.5, 1, 1, 1.5, 2, 2, 2.5, 3])
    corners = resize_positions(np.arange(16.0).reshape(16, 1), (4, 4), (2, 2))[:, 0]
    np.testing.assert_allclose(corners, [0, 3, 12, 15])


# Computed with torch.nn.functional.interpolate(mode="bicubic", antialias=True), torch 2.13.0.
BICUBIC = {
    (4, 6): [3.263157, 0.823529, -0.594907, 3.525463, 2.705883, 0.802631],
    (6, 4): [1.402912, 2.287902, -1.194488, 3.859223],
}


@pytest.mark.parametrize(("old", "new"), BICUBIC)
def test_bicubic_is_that_of_torch_with_antialiasing(old, new):
    line = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])[:old]
    resized = resize_positions(np.tile(line, old).reshape(-1, 1), (old, old), (old, new), "bicubic")
    np.testing.assert_allclose(resized[:new, 0], BICUBIC[old, new], rtol=0, atol=1e-5)


# Computed with torch.nn.functional.interpolate(mode="bicubic"), torch 2.13.0.
PLAIN = {
    (4, 6): [3.347223, 0.53125, -0.577546, 3.47338, 2.96875, 0.739584],
    (6, 4): [1.917969, 3.042969, -1.167969, 5.617188],
    (3, 7): [3.437317, 2.450439, 0.154518, -1.0, 0.6793, 3.342566, 4.546648],
    (6, 2): [-1.0, -5.0],
}


@pytest.mark.parametrize(("old", "new"), PLAIN)
def test_plain_bicubic_is_that_of_torch_without_antialiasing(old, new):
    line = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])[:old]
    table = np.tile(line, old).reshape(-1, 1)
    resized = resize_positions(table, (old, old), (old, new), "bicubic_plain")
    np.testing.assert_allclose(resized[:new, 0], PLAIN[old, new], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("old", "new"), [((7, 7), (15, 15)), ((7, 7), (5, 3)), ((3, 2), (4, 1))])
def test_linear_is_that_of_jax(old, new):
    """What FlexiViT's code calls, in float64, because float32 differs between processors."""
    jax = pytest.importorskip("jax")
    positions = table(old)
    has_own = hasattr(jax, "enable_x64")  # since JAX 0.8
    with jax.enable_x64(True) if has_own else jax.experimental.enable_x64():
        pixels = positions.reshape(*old, -1).astype("float64")
        expected = np.asarray(jax.image.resize(pixels, (*new, 3), "linear"))
    resized = resize_positions(positions, old, new, "linear")
    np.testing.assert_allclose(resized.reshape(expected.shape), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", POSITION_RESIZES)
def test_the_same_grid_changes_nothing_and_constants_stay(method):
    positions = table((5, 7))
    np.testing.assert_array_equal(resize_positions(positions, (5, 7), (5, 7), method), positions)
    flat = np.ones((35, 2), "float32")
    resized = resize_positions(flat, (5, 7), (9, 4), method)
    np.testing.assert_allclose(resized, np.ones((36, 2)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["align_corners", "bilinear", "bicubic"])
@pytest.mark.parametrize(("old", "new"), [(4, 9), (9, 4), (1, 3), (3, 1), (5, 5)])
def test_rows_of_the_matrix_sum_to_one(method, old, new):
    matrix = resize_matrix(old, new, method)
    assert matrix.shape == (new, old)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_a_larger_patch_keeps_every_product(method):
    """The definition in https://arxiv.org/abs/2212.08013: <resized patch, new kernel> = <x, w>."""
    kernel = RNG.normal(size=(8, 8, 3, 5))
    patch = RNG.normal(size=(8, 8, 3))
    larger = resize_patch_kernel(kernel, (12, 16), method)
    assert larger.shape == (12, 16, 3, 5)
    rows, columns = (resize_matrix(8, new, method) for new in (12, 16))
    resized = np.einsum("yi,xj,ijc->yxc", rows, columns, patch)
    np.testing.assert_allclose(
        np.einsum("yxc,yxcd->d", resized, larger),
        np.einsum("ijc,ijcd->d", patch, kernel),
        rtol=0,
        atol=1e-4,
    )


def test_a_smaller_patch_is_the_least_squares_answer():
    kernel = RNG.normal(size=(6, 6, 1, 1))
    smaller = resize_patch_kernel(kernel, (4, 4))
    matrix = np.kron(*[resize_matrix(6, 4, "bilinear")] * 2)  # (16, 36)
    expected, *_ = np.linalg.lstsq(matrix.T, kernel.reshape(36), rcond=None)
    np.testing.assert_allclose(smaller.reshape(16), expected, rtol=0, atol=1e-5)


def test_the_same_patch_changes_nothing():
    kernel = RNG.normal(size=(8, 8, 3, 5)).astype("float32")
    np.testing.assert_array_equal(resize_patch_kernel(kernel, (8, 8)), kernel)


@pytest.mark.parametrize("method", BIAS_RESIZES)
def test_biases_of_distances_stay_symmetric_and_those_of_class_tokens_stay(method):
    old, new = (3, 4), (5, 6)
    table = RNG.normal(size=(num_biases(old, True), 2)).astype("float32")
    np.testing.assert_array_equal(resize_position_bias(table, old, old, method), table)
    found = resize_position_bias(table, old, new, method)
    assert found.shape == (9 * 11 + 3, 2) and found.dtype == np.float32
    np.testing.assert_array_equal(found[-3:], table[-3:])
    middle, before = 9 * 11 // 2, 5 * 7 // 2  # the patch itself
    np.testing.assert_allclose(found[middle], table[before], rtol=0, atol=1e-6)
    back = np.concatenate([table[:-3][::-1], table[-3:]])
    mirrored = resize_position_bias(back, old, new, method)
    np.testing.assert_allclose(mirrored[:-3][::-1], found[:-3], rtol=0, atol=1e-5)


def test_geometric_distances_keep_those_of_neighbours():
    """As in timm; tests/weights/test_load_torch.py has its numbers."""
    table = RNG.normal(size=(7 * 7, 1)).astype("float32")
    found = resize_position_bias(table, (4, 4), (8, 8), "geometric").reshape(15, 15)
    old = table.reshape(7, 7)
    np.testing.assert_allclose(found[6:9, 6:9], old[2:5, 2:5], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[0, 0], old[0, 0], rtol=0, atol=1e-4)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"16 positions\. Received a table of 17 rows"):
        resize_positions(np.zeros((1, 17, 4)), (4, 4), (5, 5))
    with pytest.raises(ValueError, match="Received: 'nearest'"):
        resize_positions(np.zeros((1, 16, 4)), (4, 4), (5, 5), "nearest")
    with pytest.raises(ValueError, match="Received: 'area'"):
        resize_patch_kernel(np.zeros((4, 4, 3, 2)), (8, 8), "area")
