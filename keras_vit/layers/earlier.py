"""Blocks of files from before 2026-12, which knew the grid of their patches.

`from_config` of today's classes finds the functions by their registered names.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.config import BLOCK_FIELDS
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.causal import CausalAttention, CausalBlock
from keras_vit.layers.layer import Tensor
from keras_vit.layers.merging import MergingBlock
from keras_vit.layers.post_norm import PostNormBlock
from keras_vit.layers.relative import RelativeBias, RelativeKeys
from keras_vit.layers.rotary import RotaryTable
from keras_vit.layers.saved_as import saved_as
from keras_vit.layers.windows import WindowAttention

_FIELDS = (
    "positions", "causal", "grid", "num_prefix_tokens", "num_registers", "window_size", "post_norm",
    "num_merged_tokens",
)  # fmt: skip


class _EarlierCalls(TransformerBlock):
    """A block with the call arguments of before, and its own table of rotations.

    Args:
        table: Arguments of the `RotaryTable`, for blocks with `rope`.
        **kwargs: Arguments of the block.

    Call arguments:
        padding_mask: Boolean tensor of shape `(B, T)`, False for padding.
        maps: Tensor of shape `(B, rows, columns, ...)` with the grid of the patches.
    """

    def __init__(self, *args: Any, table: dict[str, Any], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.table = table

    def build(
        self, tokens_shape: Any, padding_mask_shape: Any = None, maps_shape: Any = None
    ) -> None:
        del padding_mask_shape, maps_shape
        super().build(tokens_shape)
        rope, width = self.options.rope, tokens_shape[-1]
        head_dim = self.options.head_width or width // self.options.num_heads
        self.rotations = None if rope is None else RotaryTable(rope, head_dim, **self.table)

    def call(  # type: ignore[override]
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        maps: Tensor | None = None,
        training: bool | None = None,
        **given: Any,
    ) -> Tensor | tuple[Tensor, ...]:
        mask = None if padding_mask is None else padding_mask[:, None, None]
        rotation = self._rotation(tokens, maps)
        return super().call(tokens, rotation, mask, training=training, **given)

    def _rotation(self, tokens: Any, maps: Any = None) -> Any:
        grid_of = tokens if maps is None else maps
        return None if self.rotations is None else self.rotations.call(grid_of)

    def attention_scores(self, tokens: Tensor, rotation: Any = None, **given: Any) -> Tensor:
        return super().attention_scores(tokens, self._rotation(tokens), **given)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "table": self.table}


@saved_as("TransformerBlock")
@keras.saving.register_keras_serializable("keras_vit", "EarlierBlock")
class EarlierBlock(_EarlierCalls):
    """A `TransformerBlock` of before."""

    takes_num_queries = TransformerBlock.takes_num_queries


@saved_as("TransformerBlock")
@keras.saving.register_keras_serializable("keras_vit", "EarlierCausalBlock")
class EarlierCausalBlock(_EarlierCalls, CausalBlock):
    """A causal `TransformerBlock` of before."""


@keras.saving.register_keras_serializable("keras_vit")
def earlier_block(config: dict[str, Any]) -> TransformerBlock:
    """The block of a configuration that `TransformerBlock.get_config` made before.

    Args:
        config: Its configuration, with `grid` and `num_prefix_tokens`.

    Returns:
        A block with the same weights, outputs and call arguments.
    """
    own, config = _split(config)
    if own["num_merged_tokens"]:
        merging = {name: own[name] for name in ("num_merged_tokens", "num_prefix_tokens")}
        return MergingBlock.from_config({**config, **merging})
    if own["post_norm"]:
        return PostNormBlock.from_config(config)
    if own["window_size"] is not None or own["positions"] is not None:
        options = {name: config[name] for name in BLOCK_FIELDS if name in config}
        options |= {"dtype": config["dtype"], "name": "attention"}
        attention = earlier_attention({**own, **options, "causal": False})
        config["attention"] = keras.saving.serialize_keras_object(attention)
    if own["num_prefix_tokens"] and config["rope"] is None and not own["causal"]:
        return TransformerBlock.from_config(config)  # never called with grids or padding
    kind = EarlierCausalBlock if own["causal"] else EarlierBlock
    names = ("grid", "num_prefix_tokens", "num_registers")
    return kind.from_config({**config, "table": {name: own[name] for name in names}})


@keras.saving.register_keras_serializable("keras_vit")
def earlier_attention(config: dict[str, Any]) -> SelfAttention:
    """As `earlier_block`, for configurations of `SelfAttention`.

    Raises:
        ValueError: If it made its own rotary positions, outside of a block.
    """
    own, config = _split(config)
    if own["window_size"] is not None:
        names = ("grid", "window_size", "num_prefix_tokens")
        return WindowAttention.from_config({**config, **{name: own[name] for name in names}})
    if own["causal"]:
        return CausalAttention.from_config(config)
    positions: Any = None
    if own["positions"] == "relative":
        positions = RelativeKeys()
    elif own["positions"] == "relative_bias":
        positions = RelativeBias(own["grid"], own["num_prefix_tokens"] == 1)
    elif config["rope"] is not None and own["positions"] is None:
        raise ValueError(
            "A file of before has a `SelfAttention` with `rope` outside of a block. Build the "
            "model with a `RotaryTable`, and load its weights by `load_weights`."
        )
    return SelfAttention.from_config({**config, "positions": positions})


def _split(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields that layers had before, and the other ones."""
    own = {name: config.get(name) for name in _FIELDS}
    return own, {name: value for name, value in config.items() if name not in own}
