"""The two ResNets in float64 NumPy, written from their papers: an oracle of its own."""

from __future__ import annotations

import numpy as np


def standardized(kernel, form):
    kernel = kernel - kernel.mean((0, 1, 2))
    if form == "std":
        return kernel / (kernel.std((0, 1, 2)) + 1e-5)
    return kernel / np.sqrt(kernel.var((0, 1, 2)) + 1e-10)


def group_norm(x, gamma, beta, epsilon):
    batch, height, width, channels = x.shape
    groups = x.reshape(batch, height * width, 32, channels // 32)
    mean = groups.mean((1, 3), keepdims=True)
    variance = ((groups - mean) ** 2).mean((1, 3), keepdims=True)
    return ((groups - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta


def windows(x, size, stride, padding, value=0.0):
    """Every `size` x `size` window of the padded maps, (B, rows, columns, C, size, size)."""
    before, after = padding
    widths = ((0, 0), (before, after), (before, after), (0, 0))
    x = np.pad(x, widths, constant_values=value)
    x = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return x[:, ::stride, ::stride]


def same(pixels, size, stride):
    """What TensorFlow pads before and after: as little as possible, the odd one after."""
    total = max(0, (-(-pixels // stride) - 1) * stride + size - pixels)
    return total // 2, total - total // 2


def convolution(x, kernel, stride, padding):
    """`padding` is `"same"`, or pixels on every side. Maps are square."""
    size = kernel.shape[0]
    padding = same(x.shape[1], size, stride) if padding == "same" else (padding, padding)
    return np.einsum("bhwcij,ijcd->bhwd", windows(x, size, stride, padding), kernel, optimize=True)


def relu(x):
    return np.maximum(x, 0)


def stem(w, images, stages, epsilon=1e-6):
    """A hybrid's stem, after the norm of the root and after its last stage."""

    def norm(x, name):
        return group_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"], epsilon)

    def conv(x, name, stride=1):
        return convolution(x, standardized(w[f"{name}/kernel"], "std"), stride, "same")

    root = norm(conv(images, "stem_root/conv", 2), "stem_root/norm")
    x = relu(root)
    x = windows(x, 3, 2, same(x.shape[1], 3, 2), value=-np.inf).max((-2, -1))
    for stage, num_units in enumerate(stages, start=1):
        for unit in range(1, num_units + 1):
            name = f"stem_stage_{stage}/unit_{unit}"
            stride = 2 if stage > 1 and unit == 1 else 1
            shortcut = x
            if unit == 1:
                shortcut = norm(conv(x, f"{name}/shortcut", stride), f"{name}/shortcut_norm")
            y = relu(norm(conv(x, f"{name}/conv_1"), f"{name}/norm_1"))
            y = relu(norm(conv(y, f"{name}/conv_2", stride), f"{name}/norm_2"))
            x = relu(shortcut + norm(conv(y, f"{name}/conv_3"), f"{name}/norm_3"))
    return root, x


def bit(w, images, stages, epsilon=1e-5):
    """Logits of a BiT ResNet."""

    def norm(x, name):
        return relu(group_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"], epsilon))

    def conv(x, name, stride=1):
        kernel = standardized(w[f"{name}/kernel"], "variance")
        return convolution(x, kernel, stride, kernel.shape[0] // 2)

    x = windows(conv(images, "root/conv", 2), 3, 2, (1, 1)).max((-2, -1))  # zeros count
    for stage, num_units in enumerate(stages, start=1):
        for unit in range(1, num_units + 1):
            name = f"stage_{stage}/unit_{unit}"
            stride = 2 if stage > 1 and unit == 1 else 1
            y = norm(x, f"{name}/norm_1")
            shortcut = conv(y, f"{name}/shortcut", stride) if unit == 1 else x
            y = norm(conv(y, f"{name}/conv_1"), f"{name}/norm_2")
            y = norm(conv(y, f"{name}/conv_2", stride), f"{name}/norm_3")
            x = shortcut + conv(y, f"{name}/conv_3")
    return norm(x, "norm").mean((1, 2)) @ w["head/kernel"] + w["head/bias"]
