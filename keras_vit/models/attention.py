"""Attention weights of every block, and the grid of patches that they refer to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.any_aspect import PaddingMask
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.layer import Tensor
from keras_vit.layers.merging import MergingBlock
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.rotary import RotaryTable, Rotation
from keras_vit.models.graph import calls_of, connect, find_blocks, find_layer
from keras_vit.runtime.private_names import run_graph

_POOLINGS = (TokenPooling, MeanPooling, AttentionPooling)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Grid of the patch tokens of a model.

    Args:
        image_size: Pixels along (height, width).
        grid: Patches along (height, width).
        num_prefix_tokens: Tokens before the patches: class, distillation, registers.
    """

    image_size: tuple[int, int]
    grid: tuple[int, int]
    num_prefix_tokens: int

    @property
    def cell_size(self) -> tuple[float, float]:
        """Pixels of the image from one patch to the next, along (height, width)."""
        return self.image_size[0] / self.grid[0], self.image_size[1] / self.grid[1]


@keras.saving.register_keras_serializable("keras_vit")
class AttentionScores(keras.layers.Layer):
    """Attention weights of a block from its input tokens.

    This layer has one output: a functional model of Keras 3.15 cannot contain a block that is
    called again with two outputs, because Keras expects as many outputs as at the first call.

    Args:
        block: The `TransformerBlock`, whose weights this layer shares.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        rotation: As for the block.

    Returns:
        Float tensor of shape `(B, A, T, T)` whose rows sum to 1.
    """

    def __init__(self, block: TransformerBlock, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)  # the block casts the tokens itself
        self.block = block

    def call(self, tokens: Tensor, rotation: Rotation | None = None) -> Tensor:
        return self.block.attention_scores(tokens, rotation)

    def get_config(self) -> dict[str, Any]:
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AttentionScores:
        block = keras.saving.deserialize_keras_object(config.pop("block"))
        return cls(block, **config)


class Attention:
    """The attention of every block of a model, one batch of images and one block at a time.

    Works on models of this package, on what users build on them, and through models nested in
    models. The tokens between blocks are kept in memory, and the attention weights of one block
    only.

    Args:
        model: A functional or sequential model with `TransformerBlock` layers.

    Attributes:
        blocks: The blocks, in the order of the data.
        geometry: The `Geometry` of the patch tokens.

    Raises:
        ValueError: If the model has no transformer blocks or no graph of layers, or merges tokens.
    """

    def __init__(self, model: keras.Model):
        chain, self.blocks = find_blocks(model)
        check_whole(model, self.blocks)
        owner = chain[-1]
        self.geometry = geometry_of(model)
        self._poolings: list[Any] = [x for x in owner.layers if isinstance(x, _POOLINGS)] or [None]
        self._pooling = self._poolings[0]
        self._class_token = any(x.name == "class_token" for x in owner.layers)
        calls = calls_of(owner)
        tensors = [calls[block].input_tensors[0] for block in self.blocks]
        last = calls[self.blocks[-1]].outputs[0]
        if isinstance(self._pooling, AttentionPooling):
            last = calls[self._pooling].input_tensors[0]
        self._tokens = connect(chain, [*tensors, last])
        self._chain = chain
        tables = [x for x in owner.layers if isinstance(x, RotaryTable)]
        self._rotation = tables[0].call(None) if tables else None  # constants of the grid

    def tokens(self, images: Any) -> list[Tensor]:
        """Inputs of every block and of the pooling, each of shape `(B, T, D)`."""
        return keras.tree.flatten(self._tokens(images, training=False))

    def scores(self, tokens: list[Tensor], index: int) -> Tensor:
        """Float32 attention weights `(B, A, T, T)` of one block, from the result of `tokens`."""
        block = self.blocks[index]
        index = index % len(self.blocks)
        scores = block.attention_scores(tokens[index], self._rotation)
        return ops.cast(scores, "float32")

    def output_weights(self, tokens: list[Tensor], index: int = 0) -> Tensor:
        """Weight of each output token in attention maps, float32 of shape `(B, T)`; rows sum to 1.

        1 for the token that is the input of the head, the first of several. With other poolings: 1
        for the class token, or the mean of the patches if there is no class token. `index` is that
        of another pooling layer.
        """
        pooling = self._poolings[index]
        batch, num_tokens, _ = tokens[0].shape
        share = np.zeros((batch, num_tokens), "float32")
        if isinstance(pooling, TokenPooling):
            share[:, pooling.index] = 1
        elif self._class_token and not isinstance(pooling, MeanPooling):
            share[:, 0] = 1
        else:
            prefix = self.geometry.num_prefix_tokens
            share[:, prefix:] = 1 / (num_tokens - prefix)
        return ops.convert_to_tensor(share)

    def pooling_weights(self, tokens: list[Tensor]) -> Tensor:
        """Weight of each output token in the input of the head, float32 of shape `(B, T)`.

        The mean over heads of the weights of the attention pooling, or the mean over the pooling
        layers, two for `pooling="token_gap"` and for a distillation token.
        """
        if not isinstance(self._pooling, AttentionPooling):
            rows = [self.output_weights(tokens, index) for index in range(len(self._poolings))]
            return ops.mean(ops.stack(rows), axis=0)
        _, scores = self._pooling(tokens[-1], return_attention_scores=True)  # (B, A, 1, T)
        return ops.mean(ops.cast(scores, "float32"), axis=1)[:, 0]

    def forward(self, images: Any) -> tuple[Tensor, list[Tensor]]:
        """Computes the output of the model and all attention weights from its images.

        One forward pass, so that gradients of the output with respect to the weights exist.

        Returns:
            The output, and the weights of every block `(B, A, T, T)` and of an attention pooling
            `(B, A, 1, T)`.
        """
        all_scores: list[Tensor] = []
        pooling = [self._pooling] if isinstance(self._pooling, AttentionPooling) else []
        scored = [*self.blocks, *pooling]

        def with_scores(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
            outputs, scores = layer(*args, **kwargs, return_attention_scores=True)
            all_scores.append(scores)
            return outputs

        def run(model: keras.Model, *args: Any, **_: Any) -> list[Any]:
            calls = calls_of(model)

            def function_of(call: Any) -> Callable[..., Any]:
                layer = call.operation
                if call is not calls[layer]:
                    return layer
                if layer in self._chain:
                    return functools.partial(run, layer)
                return functools.partial(with_scores, layer) if layer in scored else layer

            known = run_graph(model, keras.tree.flatten(args), model.outputs, function_of)
            return [known[id(tensor)] for tensor in model.outputs]

        return run(self._chain[0], images)[0], all_scores


def rotation_of(call: Any) -> Rotation | None:
    """The symbolic `rotation` of the call of a block."""
    args, kwargs = call.arguments.args, call.arguments.kwargs
    rotation: Rotation | None = args[1] if len(args) > 1 else kwargs.get("rotation")
    return rotation


def attention_scores(model: keras.Model, images: Any, block: int = -1) -> np.ndarray:
    """Computes the attention weights of one block for a batch of images.

    Eq. 6 in https://arxiv.org/abs/2010.11929, as the model itself computes them.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them.
        block: Index of the block; negative counts from the last.

    Returns:
        float32 array of shape `(B, A, T, T)`: image, head, from token, to token; rows sum to 1.

    Raises:
        ValueError: If the model has no transformer blocks.
        IndexError: If it has fewer.
    """
    attention = Attention(model)
    check_block(attention, block)
    return ops.convert_to_numpy(attention.scores(attention.tokens(images), block))


def check_block(attention: Attention, block: int) -> None:
    """Raises an `IndexError` if there is no block of that index."""
    depth = len(attention.blocks)
    if not -depth <= block < depth:
        raise IndexError(
            f"The model has {depth} blocks, 0 to {depth - 1}, or -1 for the last. "
            f"Received: block={block}."
        )


def geometry_of(model: keras.Model) -> Geometry:
    """Finds the grid of patches of a model, and the number of tokens before them.

    Args:
        model: A Vision Transformer, or a model built on one.

    Returns:
        A `Geometry`.

    Raises:
        ValueError: If the model has no patch encoder before its blocks, or takes images of any
            size.
    """
    chain, blocks = find_blocks(model)
    owner = chain[-1]
    calls = calls_of(owner)
    encoders = [x for x in owner.layers if isinstance(x, PatchEncoder)]
    if not encoders:
        raise ValueError(
            f"The model {owner.name!r} has transformer blocks, but no PatchEncoder for "
            "the grid of its patches."
        )
    grid = encoders[0].grid
    if grid is None:
        raise ValueError(
            f"The grid of patches of {owner.name!r} is that of each image, and must be known here. "
            "Build the model for one size: keras_vit.models.resize_model(model, (height, width))."
        )
    num_tokens = calls[blocks[0]].input_tensors[0].shape[1]
    height, width = owner.inputs[0].shape[1:3]
    return Geometry((height, width), grid, num_tokens - grid[0] * grid[1])


def check_whole(model: keras.Model, blocks: Sequence[TransformerBlock]) -> None:
    """Raises a `ValueError` if tokens are merged or padding: not each has its place on one grid."""
    if find_layer(model, PaddingMask) is not None:
        raise ValueError(
            f"The images of {model.name!r} have any aspect ratio (max_num_patches), and so patches "
            "no grid that all images share. Build the model for images of one size: "
            "max_num_patches=None."
        )
    if any(isinstance(block, MergingBlock) for block in blocks):
        raise ValueError(
            f"The blocks of {model.name!r} merge tokens, so tokens have no position of their own "
            "in the image. Use the same model without merging: build_vit(keras_vit.replace_fields("
            "model.config, num_merged_tokens=0)), then set_weights(model.get_weights())."
        )
