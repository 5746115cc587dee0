"""Layers that compute in float32 under every precision, and their dtype policy."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_vit")
class Float32Policy(keras.dtype_policies.DTypePolicyMap):
    """Dtype policy of a layer that stays float32 in exports in half precision.

    In a model that was built in float32, `dtype="float32"` does not tell such a layer from others.

    Keras replaces the policy of a layer by its name when it reads the layer's configuration, and
    by another policy when it quantises the layer, but keeps a map of policies. This is a map of
    one policy, that of its layer.

    Args:
        default_policy: The policy of the layer now.
        policy_map: Empty; of `DTypePolicyMap`.

    Example:

    >>> keras.layers.Dense(10, dtype=Float32Policy()).compute_dtype
    'float32'
    """

    def __init__(self, default_policy: Any = "float32", policy_map: Any = None):
        super().__init__(keras.dtype_policies.get(default_policy), policy_map)

    @property
    def name(self) -> str:
        return str(self.default_policy.name)

    def __getitem__(self, path: str) -> keras.DTypePolicy:
        return self.default_policy

    def __setitem__(self, path: str, policy: keras.DTypePolicy) -> None:
        self.__init__(policy)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Float32Policy) and self.name == other.name

    def get_config(self) -> dict[str, Any]:
        return {"default_policy": keras.dtype_policies.serialize(self.default_policy)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Float32Policy:
        return cls(keras.dtype_policies.deserialize(config["default_policy"], custom_objects))


def float32_dense(
    units: int, name: str, activation: Any = None, **options: Any
) -> keras.layers.Dense:
    """Makes a dense layer that computes in float32 under every precision."""
    return keras.layers.Dense(units, activation, dtype=Float32Policy(), name=name, **options)


def float32_norm(name: str, epsilon: float = 1e-6) -> keras.layers.LayerNormalization:
    """Makes a layer norm that computes in float32 under every precision."""
    return keras.layers.LayerNormalization(epsilon=epsilon, dtype=Float32Policy(), name=name)
