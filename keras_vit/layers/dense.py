"""Keras's dense layer, with low-rank updates that need no gradient of the whole kernel."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_rate
from keras_vit.layers.layer import Tensor
from keras_vit.runtime.private_names import flatten_layers, replace_policy, unlocked


@keras.saving.register_keras_serializable("keras_vit")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` whose low-rank update is a product of its own (LoRA).

    Keras adds the update to the kernel in every step, and so computes the gradient of the whole
    kernel. Here `x A B` is added to `x W` (Eq. 3 in https://arxiv.org/abs/2106.09685), and the
    gradient of `W` is never needed. As in Keras, files hold the kernel with the update added.

    Args:
        *args: As for `keras.layers.Dense`.
        **kwargs: As for `keras.layers.Dense`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.lora_parts: tuple[bool, ...] | None = None
        self.lora_dropout_rate = 0.0
        self.lora_seed: keras.random.SeedGenerator | None = None

    def build(self, input_shape: Any) -> None:
        policy = self.dtype_policy
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            # Keras saves a layer by the policy of the whole map, without the scales of its kernel.
            replace_policy(self, policy[self.path])
        super().build(input_shape)

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
        *,
        parts: tuple[bool, ...] | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        """Freezes the kernel and adds a low-rank update to it, as in Keras.

        Args:
            rank: Rank of the update, of each part where there are parts.
            lora_alpha: The update counts `lora_alpha / rank` times; `None` is `rank`.
            a_initializer: Initial values of `A`.
            b_initializer: Initial values of `B`.
            parts: Splits the units evenly, and says which parts have an update of their own:
                `(True, False, True)` are queries and values. `None` is one update of all units.
            dropout_rate: Dropout of the input of the update, in [0, 1).

        Raises:
            ValueError: If there is an update already, or the kernel is quantised: with parts or
                dropout, or as float8, where Keras computes no updates.
        """
        check_rate("dropout_rate", dropout_rate)
        if self.quantization_mode == "float8":
            raise ValueError(
                f"{self.path} is quantised as float8, where Keras computes no low-rank updates. "
                'Quantise as "int8" or "int4".'
            )
        if self.quantization_mode and (parts or dropout_rate):
            raise ValueError(
                f"A kernel that Keras quantised ({self.quantization_mode}) has one low-rank update "
                f"without dropout. Received: parts={parts}, dropout_rate={dropout_rate}."
            )
        ranks, alpha = rank, rank if lora_alpha is None else lora_alpha
        if parts:
            if self.units % len(parts) or not any(parts):
                raise ValueError(
                    f"`parts` must choose one or more of equal parts of {self.units} units. "
                    f"Received: {parts}."
                )
            ranks, alpha = rank * sum(parts), alpha * sum(parts)
        super().enable_lora(ranks, alpha, a_initializer, b_initializer)
        self.lora_parts = parts
        self.lora_dropout_rate = dropout_rate
        mask = self.lora_mask()
        if mask is not None:
            self.lora_kernel_b.assign(self.lora_kernel_b * mask)
        if dropout_rate:
            with unlocked(self):
                self.lora_seed = keras.random.SeedGenerator()

    @property
    def lora_scale(self) -> float:
        """Factor of the update."""
        return float(self.lora_alpha / self.lora_rank)

    @property
    def frozen_kernel(self) -> Any:
        """The kernel without the update, a variable of shape `(inputs, units)`."""
        return next(variable for variable in self.weights if variable.name == "kernel")

    def lora_mask(self) -> np.ndarray | None:
        """Mask of `B`, 1 where it may differ from 0, `(rank, units)`; `None` is everywhere."""
        if not self.lora_parts:
            return None
        rank = self.lora_rank // sum(self.lora_parts)
        chosen = np.flatnonzero(self.lora_parts)
        rows = np.repeat(chosen, rank)[:, None]
        columns = np.repeat(np.arange(len(self.lora_parts)), self.units // len(self.lora_parts))
        return (rows == columns).astype("float32")

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if not self.lora_enabled:
            return super().call(inputs, training=training)
        x = ops.matmul(inputs, self.frozen_kernel)
        if training and self.lora_dropout_rate:
            inputs = keras.random.dropout(inputs, self.lora_dropout_rate, seed=self.lora_seed)
        b, mask = self.lora_kernel_b, self.lora_mask()
        if mask is not None:
            b = b * mask
        a, b = (ops.cast(part, inputs.dtype) for part in (self.lora_kernel_a, b))
        x = x + self.lora_scale * ops.matmul(ops.matmul(inputs, a), b)
        if self.bias is not None:
            x = x + self.bias
        return x if self.activation is None else self.activation(x)

    def quantize(self, mode: Any = None, type_check: bool = True, **kwargs: Any) -> None:
        """As `keras.layers.Dense.quantize`, which takes no subclasses unless told to."""
        del type_check
        super().quantize(mode, type_check=False, **kwargs)


def build_dense(
    owner: keras.layers.Layer, name: str, input_dim: int, units: int, **options: Any
) -> Dense:
    """A built dense layer inside of another layer, with its dtype policy."""
    dense = Dense(units, dtype=owner.dtype_policy, name=name, **options)
    dense.build((None, input_dim))
    return dense


def quantized_policies(layer: keras.layers.Layer) -> dict[str, Any]:
    """The `dtype` of a layer's configuration where Keras quantised layers inside of it, or nothing.

    Keras writes the policy of the outer layer alone, and then cannot read the file it wrote.
    """
    inner = [x for x in flatten_layers(layer) if x is not layer and x.quantization_mode]
    if not inner:
        return {}
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy.default_policy
    policies = {x.path: x.dtype_policy for x in inner}
    kept = keras.dtype_policies.DTypePolicyMap(policy, policies)
    return {"dtype": keras.dtype_policies.serialize(kept)}
