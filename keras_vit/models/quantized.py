"""Models that Keras quantised (`model.quantize`), as models with float kernels."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops, quantizers

from keras_vit.models.cloning import change_config, clone
from keras_vit.runtime.private_names import flatten_layers

_MODES = ("int8", "int4", "float8")


def quantized_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Lists the layers of a model whose kernels Keras quantised."""
    return [layer for layer in flatten_layers(model) if layer.quantization_mode]


def dequantize(model: keras.Model) -> keras.Model:
    """Copies a model that Keras quantised, with float kernels of the quantised values.

    A kernel becomes its integers times their scale (`"int8"`, `"int4"`) or its rounded values
    (`"float8"`); low-rank updates are added to it. The layers of the copy compute in the policy
    from before `quantize`, so their inputs are not rounded: outputs differ from the quantised
    model's by that rounding, and by float rounding alone where Keras rounds no inputs (`"int4"` in
    blocks, its default).

    Args:
        model: A model after `model.quantize("int8")`, `"int4"` or `"float8"`, also with low-rank
            updates on top; it stays as it is.

    Returns:
        A model of the same class, not compiled. It can be exported, adapted, saved as a checkpoint
        and quantised again. A model that is not quantised is returned itself.

    Raises:
        ValueError: If a quantised layer is no dense layer, or has another mode.

    Example:

    >>> model.quantize("int8")  # doctest: +SKIP
    >>> keras_vit.save_weights(keras_vit.models.dequantize(model), "model.npz")  # doctest: +SKIP
    """
    check_quantized(model)
    if not quantized_layers(model):
        return model
    return clone(model, change_config(model.get_config(), float_config), float_values)


def check_quantized(model: keras.Model) -> None:
    """Raises a `ValueError` if `dequantize` cannot make a layer float."""
    unknown = [
        f"{layer.path} ({type(layer).__name__}, {layer.quantization_mode})"
        for layer in quantized_layers(model)
        if layer.quantization_mode not in _MODES or not isinstance(layer, keras.layers.Dense)
    ]
    if unknown:
        raise ValueError(
            f"Only dense layers in {', '.join(_MODES)} become float layers. {model.name!r} has "
            f"{', '.join(unknown)}. Quantise without these: `model.quantize(mode, filters=...)`."
        )


def float_values(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """Kernel and bias that a quantised or updated dense layer computes with; empty for others."""
    if not isinstance(layer, keras.layers.Dense):
        return {}
    if not (layer.quantization_mode or layer.lora_enabled):
        return {}
    variables = {v.name: v for v in layer.variables}
    kernel, scale = variables["kernel"], variables.get("kernel_scale")
    mode = layer.quantization_mode
    values = {}
    if mode == "float8":
        dtype = layer.compute_dtype
        kernel = ops.cast(kernel, dtype)
        kernel = quantizers.quantize_and_dequantize(kernel, scale, "float8_e4m3fn", dtype)
        if layer.bias is not None and dtype == "float32":  # as Keras rounds it
            values["bias"] = _numpy(ops.cast(layer.bias, "bfloat16"))
    elif mode == "int4":
        kernel = quantizers.unpack_int4(kernel, layer.units, axis=-1)
    float_kernel = _numpy(kernel)
    if "kernel_zero" in variables:  # in blocks of rows
        rows = _numpy(variables["g_idx"]).astype(int)
        zero = _numpy(variables["kernel_zero"])
        float_kernel = (float_kernel - zero[rows]) * _numpy(scale)[rows]
    elif mode in ("int8", "int4"):
        float_kernel = float_kernel / _numpy(scale)
    if layer.lora_enabled:
        a, b = (_numpy(variables[f"lora_kernel_{part}"]) for part in "ab")
        mask = layer.lora_mask() if hasattr(layer, "lora_mask") else None
        b = b if mask is None else b * mask
        float_kernel = float_kernel + layer.lora_alpha / layer.lora_rank * (a @ b)
    return {**values, "kernel": float_kernel}


def _numpy(x: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")


def float_config(config: dict[str, Any]) -> dict[str, Any]:
    """Replaces the policy of a quantised layer by that from before, and leaves updates out."""
    policy = config.get("config")
    if isinstance(policy, dict) and config.get("class_name") == "DTypePolicyMap":
        return policy["default_policy"]
    if isinstance(policy, dict) and "source_name" in policy:
        source = keras.dtype_policies.DTypePolicy(policy["source_name"])
        return keras.dtype_policies.serialize(source)
    left_out = ("lora_rank", "lora_alpha") if "units" in config else ()
    changed = {key: value for key, value in config.items() if key not in left_out}
    if "quantization_config" in changed:
        changed["quantization_config"] = None
    return changed
