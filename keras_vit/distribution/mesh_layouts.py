"""Layouts of a ViT on a mesh of devices: for `keras.distribution`, on JAX."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.config import ViTConfig

# Columns of the first product and rows of the second, so that what lies between them never leaves
# its device and one sum after the second is all there is to exchange:
# https://arxiv.org/abs/1909.08053, Figure 3.
_LAYOUTS: dict[str, tuple[str | None, ...]] = {
    "attention/qkv/kernel": (None, "model"),
    "attention/qkv/bias": ("model",),
    "attention/output/kernel": ("model", None),
    "mlp/hidden/kernel": (None, "model"),
    "mlp/hidden/bias": ("model",),
    "mlp/output/kernel": ("model", None),
}


def vit_layout_map(
    config: ViTConfig, device_mesh: Any, model_axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Layouts that split every block's attention and MLP over an axis of a mesh.

    For models whose weights, or their optimizer's memory, do not fit one device; where they fit,
    `keras.distribution.DataParallel` exchanges less. Make the distribution before the model:

        mesh = keras.distribution.DeviceMesh((4, 2), ["batch", "model"])
        layouts = keras_vit.distribution.vit_layout_map(keras_vit.find_config("vit_b16"), mesh)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        )
        model = keras_vit.ViTB16()

    The fused kernel of queries, keys and values is cut into equal runs of columns, which are not
    whole heads of all three: the compiler moves what is on the wrong device before attention, with
    the numbers unchanged. `docs/scaling.md` says what that costs.

    Args:
        config: The architecture; every block of it, hybrids' too.
        device_mesh: A `keras.distribution.DeviceMesh`.
        model_axis: Name of the mesh's axis that the kernels are split over.

    Returns:
        A `keras.distribution.LayoutMap` for `keras.distribution.ModelParallel`; weights that it
        does not name are on every device.

    Raises:
        ValueError: If the mesh has no such axis, or heads or the MLP cannot be split evenly.
    """
    if model_axis not in device_mesh.axis_names:
        raise ValueError(
            f"The mesh has no axis {model_axis!r}. Received: axes {list(device_mesh.axis_names)}. "
            'Make one with `keras.distribution.DeviceMesh(shape, ["batch", "model"])`.'
        )
    devices = device_mesh.shape[list(device_mesh.axis_names).index(model_axis)]
    for field in ("num_heads", "mlp_dim"):
        _check_even(field, getattr(config.block, field), devices)
    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in _LAYOUTS.items():
        named = tuple(model_axis if axis else None for axis in axes)
        layouts[rf"^(?:.*/)?block_\d+/{path}$"] = named
    return layouts


def _check_even(field: str, value: int, devices: int) -> None:
    if value % devices:
        fitting = [n for n in range(2, devices) if value % n == 0]
        advice = f"Give the axis {fitting[-1]} devices" if fitting else "Use another mesh"
        raise ValueError(
            f"`{field}` cannot be split evenly over {devices} devices. Received: {field}={value}. "
            f"{advice}, or use `keras.distribution.DataParallel`."
        )
