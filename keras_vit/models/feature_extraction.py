"""Inside a model: intermediates by name, attention weights, the grid of patches."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.tokens import PatchEncoder
from keras_vit.models.graph import (
    after,
    calls_of,
    connect,
    find_blocks,
    lift,
    single_input,
    walk,
)
from keras_vit.trainers.model import Model

_SCORES = "attention_scores"
_HEAD_INPUTS = ("pooling", "encoder_norm", "pre_logits")
_POOLINGS = (TokenPooling, MeanPooling, AttentionPooling)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where the patch tokens of a model lie.

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
    """The attention weights of a block, from the tokens that go into it.

    A layer of one output: a block called again for two outputs cannot stand in a functional model
    of Keras 3.15, which counts on as many outputs as at its first call.

    Args:
        block: The `TransformerBlock`, whose weights this layer shares.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, A, T, T)` whose rows sum to 1.
    """

    def __init__(self, block: TransformerBlock, **kwargs: Any):
        super().__init__(**kwargs)
        self.block = block

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        x = self.block.attention_norm(tokens)
        return self.block.attention(x, return_attention_scores=True, training=False)[1]

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
    models. A pass over the blocks keeps the tokens between blocks, and the attention weights of
    one block only.

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
        _check_whole(model, self.blocks)
        owner = chain[-1]
        self.geometry = geometry_of(model)
        self._pooling = next((x for x in owner.layers if isinstance(x, _POOLINGS)), None)
        self._class_token = any(x.name == "class_token" for x in owner.layers)
        calls = calls_of(owner)
        tensors = [calls[block].input_tensors[0] for block in self.blocks]
        last = calls[self.blocks[-1]].outputs[0]
        self._pooled: Any = last
        if isinstance(self._pooling, AttentionPooling):
            self._pooled = calls[self._pooling].outputs[0]
            pooled = calls[self._pooling].input_tensors[0]
            self._between = keras.Model(last, pooled) if pooled is not last else _same
            last = pooled
        self._tokens = connect(chain, [*tensors, last])
        self._chain = chain

    def tokens(self, images: Any) -> list[keras.KerasTensor]:
        """What goes into every block, and into the pooling, each of shape `(B, T, D)`."""
        return keras.tree.flatten(self._tokens(images, training=False))

    def scores(self, tokens: list[keras.KerasTensor], index: int) -> keras.KerasTensor:
        """Float32 attention weights `(B, A, T, T)` of one block, from what `tokens` returns."""
        block = self.blocks[index]
        index = index % len(self.blocks)
        x = block.attention_norm(tokens[index])
        scores = block.attention(x, return_attention_scores=True, training=False)[1]
        return ops.cast(scores, "float32")

    def viewpoint(self, tokens: list[keras.KerasTensor]) -> keras.KerasTensor:
        """Share of each token in what attention is seen from, float32 of shape `(B, T)`.

        The token that the head reads; with other heads the class token where there is one, and
        the mean of the patches where there is none.
        """
        batch, num_tokens, _ = tokens[0].shape
        share = np.zeros((batch, num_tokens), "float32")
        if isinstance(self._pooling, TokenPooling):
            share[:, self._pooling.index] = 1
        elif self._class_token and not isinstance(self._pooling, MeanPooling):
            share[:, 0] = 1
        else:
            prefix = self.geometry.num_prefix_tokens
            share[:, prefix:] = 1 / (num_tokens - prefix)
        return ops.convert_to_tensor(share)

    def readout(self, tokens: list[keras.KerasTensor]) -> keras.KerasTensor:
        """Share of each last token in what the head reads, float32 of shape `(B, T)`.

        As `viewpoint`, or the mean over heads of the weights of the attention pooling.
        """
        if not isinstance(self._pooling, AttentionPooling):
            return self.viewpoint(tokens)
        _, scores = self._pooling(tokens[-1], return_attention_scores=True)  # (B, A, 1, T)
        return ops.mean(ops.cast(scores, "float32"), axis=1)[:, 0]

    def forward(
        self, tokens: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, list[keras.KerasTensor]]:
        """The model's output from the tokens that go into the first block, with all attention.

        In one pass, in whose graph the weights lie between tokens and output, for gradients.

        Returns:
            The output, and the weights of every block `(B, A, T, T)` and of an attention pooling
            `(B, A, 1, T)`.
        """
        all_scores = []
        for block in self.blocks:
            tokens, scores = block(tokens, return_attention_scores=True, training=False)
            all_scores.append(scores)
        if isinstance(self._pooling, AttentionPooling):
            tokens = self._between(tokens)
            tokens, scores = self._pooling(tokens, return_attention_scores=True)
            all_scores.append(scores)
        for part in after(self._chain, self._pooled):
            tokens = part(tokens, training=False)
        return tokens, all_scores


def attention_scores(model: keras.Model, images: Any, block: int = -1) -> np.ndarray:
    """The attention weights of one block for a batch of images.

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
    """Raises IndexError where there is no block of that index."""
    depth = len(attention.blocks)
    if not -depth <= block < depth:
        raise IndexError(
            f"The model has {depth} blocks, 0 to {depth - 1}, or -1 for the last. "
            f"Received: block={block}."
        )


def features_of(model: keras.Model, names: Sequence[str] | str, grids: bool = False) -> Model:
    """A model from the same images to the outputs of layers inside, by their names.

    Its layers and weights are those of `model`, and it can be saved and exported like any other.

    Args:
        model: A functional or sequential model; layers of models inside it are found too.
        names: Names of layers, such as `"block_5"` or `"encoder_norm"`; where a layer of the same
            name is in several models, `"model/layer"`. `"block_5/attention_scores"` gives the
            attention weights of a block.
        grids: Whether tokens come as grids: without those before the patches, of shape
            `(B, rows, columns, D)`.

    Returns:
        A `keras_vit.Model` to a dict `{name: output}`.

    Raises:
        ValueError: If there is no layer of a name, or several (the message names the nearest), or
            tokens were merged, for grids and attention.

    Example:

    >>> stages = keras_vit.features_of(model, ["block_3", "encoder_norm"], grids=True)
    >>> stages.predict(images)["block_3"].shape
    (8, 14, 14, 768)
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise ValueError("`names` must name at least one layer. Received: an empty list.")
    found = [_find_output(model, name) for name in names]
    outputs: dict[str, Any] = {}
    for chain in dict.fromkeys(chain for chain, _ in found):
        inside = {n: x for n, (c, x) in zip(names, found, strict=True) if c == chain}
        outputs.update(zip(inside, lift(chain, list(inside.values())), strict=True))
    outputs = {name: outputs[name] for name in names}
    if grids:
        _check_whole(model, find_blocks(model)[1])
        geometry = geometry_of(model)
        outputs = {name: _as_grid(x, geometry) for name, x in outputs.items()}
    return Model(single_input(model), outputs, name=f"{model.name}_features")


def stage_names(model: keras.Model) -> list[str]:
    """Every name that `features_of` knows for a model, in the order of the data."""
    names = []
    for chain, layer in walk(model):
        if isinstance(layer, keras.layers.InputLayer):
            continue
        path = "/".join([*(outer.name for outer in chain[1:]), layer.name])
        names.append(path)
        if isinstance(layer, TransformerBlock):
            names.append(f"{path}/{_SCORES}")
    return names


def head_input_stage(model: keras.Model) -> str:
    """Name of the layer whose output the head reads.

    Args:
        model: As for `features_of`.

    Returns:
        A name of `stage_names`: of the hidden layer of the head, the pooling or the last norm.

    Raises:
        ValueError: If there is no such layer.
    """
    names = [name for name in stage_names(model) if name.split("/")[-1] in _HEAD_INPUTS]
    if not names:
        raise ValueError(
            f"The model {model.name!r} has no layer {' or '.join(_HEAD_INPUTS)}. Pass `stage`, "
            f"one of {', '.join(stage_names(model))}."
        )
    return names[-1]


def geometry_of(model: keras.Model) -> Geometry:
    """Where the patch tokens lie among the tokens of a model, and in its images.

    Args:
        model: A Vision Transformer, or a model built on one.

    Returns:
        A `Geometry`.

    Raises:
        ValueError: If the model has no patch encoder before its blocks.
    """
    chain, blocks = find_blocks(model)
    owner = chain[-1]
    calls = calls_of(owner)
    encoders = [x for x in owner.layers if isinstance(x, PatchEncoder)]
    if not encoders:
        raise ValueError(
            f"The model {owner.name!r} has transformer blocks, but no PatchEncoder that tells "
            "the grid of its patches."
        )
    rows, columns = encoders[0].grid
    num_tokens = calls[blocks[0]].input_tensors[0].shape[1]
    height, width = owner.inputs[0].shape[1:3]
    return Geometry((height, width), (rows, columns), num_tokens - rows * columns)


def _check_whole(model: keras.Model, blocks: Sequence[TransformerBlock]) -> None:
    """Raises ValueError where tokens are merged, for which there is no place on the grid."""
    if any(block.num_merged_tokens for block in blocks):
        raise ValueError(
            f"The blocks of {model.name!r} merge tokens, which then have no place of their own in "
            "the image. Look into the same model without: build_vit(dataclasses.replace("
            "model.config, num_merged_tokens=0)), then set_weights(model.get_weights())."
        )


def _as_grid(x: keras.KerasTensor, geometry: Geometry) -> keras.KerasTensor:
    """Patch tokens `(B, T, D)` as `(B, rows, columns, D)`; anything else as it is."""
    rows, columns = geometry.grid
    prefix = x.shape[1] - rows * columns if len(x.shape) == 3 else -1
    if not 0 <= prefix <= geometry.num_prefix_tokens:
        return x
    return ops.reshape(x[:, prefix:], (-1, rows, columns, x.shape[2]))


def _find_output(
    model: keras.Model, name: str
) -> tuple[tuple[keras.Model, ...], keras.KerasTensor]:
    """The output of the layer of that name, and the chain to the model whose tensor it is."""
    path, _, last = name.rpartition("/")
    layer_name = path if last == _SCORES else name
    matches = [
        (chain, layer)
        for chain, layer in walk(model)
        if f"/{'/'.join([*(m.name for m in chain), layer.name])}".endswith(f"/{layer_name}")
    ]
    if len(matches) != 1:
        raise ValueError(_name_error(model, name, matches))
    chain, layer = matches[0]
    call = calls_of(chain[-1])[layer]
    if last == _SCORES:
        _check_whole(model, [layer])
        scores = AttentionScores(layer, name=f"{layer.name}_{_SCORES}")
        return chain, scores(call.input_tensors[0])
    return chain, call.outputs[0]


def _name_error(
    model: keras.Model, name: str, matches: list[tuple[tuple[keras.Model, ...], keras.Layer]]
) -> str:
    if matches:
        paths = ["/".join([*(m.name for m in chain), x.name]) for chain, x in matches]
        return f"{name!r} is the name of {len(matches)} layers: {', '.join(paths)}. Pass one path."
    names = stage_names(model)
    nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
    return f"The model {model.name!r} has no layer {name!r}. {advice}All: {', '.join(names)}."


def _same(tokens: keras.KerasTensor) -> keras.KerasTensor:
    return tokens
