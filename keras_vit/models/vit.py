"""The Vision Transformer, Figure 1 of https://arxiv.org/abs/2010.11929, in one function."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.config import BLOCK_POSITIONS, ViTConfig
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.grid_attention import GridAttention
from keras_vit.layers.layer import Tensor
from keras_vit.layers.merging import MergingBlock
from keras_vit.layers.norm import make_norm
from keras_vit.layers.patches import PatchDropout, PatchEncoder
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.post_norm import PostNormBlock
from keras_vit.layers.relative import RelativeBias, RelativeKeys
from keras_vit.layers.rotary import RotaryTable
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken
from keras_vit.layers.windows import WindowAttention
from keras_vit.models.heads import classify, functional_model, head, image_input, preprocess
from keras_vit.models.resnet import add_stem
from keras_vit.runtime.model import Model


def build_vit(
    config: ViTConfig, name: str | None = None, input_tensor: Tensor | None = None
) -> Model:
    """Builds a Vision Transformer from its configuration.

    Layers have stable names: `preprocessing`, for a hybrid `stem_root` and `stem_stage_1` and on,
    `patch_encoder`, `patch_norm`, `class_token`, `position_embedding`, `embedding_norm`, `block_0`
    and on, `encoder_norm`, `pooling`, `pre_logits`, `head`.

    Args:
        config: The architecture.
        name: Name of the model.
        input_tensor: Symbolic images of shape `(B, H, W, C)` to use as the input, as in
            `keras.applications`.

    Returns:
        A functional `keras_vit.Model` from images of shape `(B, H, W, C)`, with values in
        [0, 255] where `config.include_preprocessing`, to float32 logits of shape `(B, K)`, or
        `(B, T, K)` without pooling. With `config.classes=None` it ends in features instead, of
        shape `(B, D)` or `(B, T, D)`.

    Raises:
        ValueError: If `input_tensor` does not fit, or `config.max_num_patches` is not `None`.

    Example:

    >>> config = keras_vit.make_config(
    ...     patch_size=4, width=64, depth=2, num_heads=4, mlp_dim=128, image_size=32, classes=10
    ... )
    >>> keras_vit.build_vit(config).output_shape
    (None, 10)
    """
    if config.takes_patches:
        raise ValueError(
            "Images of any aspect ratio have a builder of their own. Received: max_num_patches="
            f"{config.max_num_patches}. Use `keras_vit.models.build_naflex(config)`."
        )
    images = image_input(config, input_tensor)
    x = preprocess(images, config)
    if config.stem is not None:
        x = add_stem(x, config.stem)  # (B, H / stride, W / stride, C)
    x = encode_patches(x, config)  # (B, N, D)
    maps = None
    if config.any_size:
        maps = x  # (B, rows, columns, D)
        x = keras.layers.Reshape((-1, config.width), name="patch_tokens")(maps)  # (B, N, D)
    x = embed_tokens(x, config, maps)  # (B, T, D)
    x, sizes = transform(x, config, maps)
    return functional_model(images, read_tokens(x, config, sizes), config, name)


def encode_patches(x: Tensor, config: ViTConfig) -> Tensor:
    """Projects patches to tokens."""
    bias = "patch" not in config.block.without_bias
    options = (config.patch_size, config.width, bias, config.any_size)
    x = PatchEncoder(*options, name="patch_encoder")(x)
    return stream_norm(config, "patch_norm")(x) if config.norm_patches else x


def embed_tokens(x: Tensor, config: ViTConfig, maps: Tensor | None = None) -> Tensor:
    """Adds what the patches lack: class token, positions, registers."""
    if config.position_on_class_token:
        x = add_class_tokens(x, config)
        x = add_positions(x, config, config.num_class_tokens, maps)
    else:
        x = add_positions(x, config, 0, maps)
        x = add_class_tokens(x, config)
    if config.num_registers:
        x = ClassToken(
            config.num_registers,
            insert_at=config.num_class_tokens,
            stddev=1e-6,  # as in DINOv2
            name="registers",
        )(x)
    return regularize(x, config)


def regularize(x: Tensor, config: ViTConfig) -> Tensor:
    """Applies dropout, and in some models a norm, between embedding and first block."""
    rate, dtype = config.block.dropout_rate, stream_policy()
    x = keras.layers.Dropout(rate, dtype=dtype, name="embedding_dropout")(x)
    if config.patch_dropout_rate:
        rate, prefix = config.patch_dropout_rate, config.num_prefix_tokens
        x = PatchDropout(rate, prefix, name="patch_dropout")(x)
    return stream_norm(config, "embedding_norm")(x) if config.norm_before_blocks else x


def stream_norm(config: ViTConfig, name: str) -> keras.layers.Layer:
    """A norm whose output is the residual stream, in its precision."""
    return make_norm(config.block.norm, config.block.norm_epsilon, dtype=stream_policy(), name=name)


def stream_policy() -> Float32Policy:
    """The precision of the residual stream, as in the blocks."""
    return Float32Policy(keras.config.dtype_policy().variable_dtype)


def add_class_tokens(x: Tensor, config: ViTConfig) -> Tensor:
    """Puts the class token first and the distillation token second."""
    if config.distillation_token:
        x = ClassToken(name="distillation_token")(x)
    if config.class_token:
        x = ClassToken(name="class_token")(x)
    return x


def add_positions(
    x: Tensor, config: ViTConfig, num_prefix_tokens: int, maps: Tensor | None = None
) -> Tensor:
    """Adds an embedding of its place to every token, where the blocks do not see to it."""
    if config.position_embedding in ("none", *BLOCK_POSITIONS):
        return x
    positions = AddPositionEmbedding(
        config.grid,
        num_prefix_tokens,
        "learned" if config.block_positions else config.position_embedding,
        config.learned_resize,
        name="position_embedding",
    )
    return positions(x) if maps is None else positions(x, maps)


def transform(
    x: Tensor, config: ViTConfig, maps: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Through all blocks, and how many patches each token then stands for, where not all one.

    `maps` have the grid of the patches, for images of any size.
    """
    sizes, given = None, {}
    if config.block.rope is not None:
        table = RotaryTable(
            config.block.rope,
            config.head_dim,
            None if config.any_size else config.grid,
            config.num_prefix_tokens,
            config.num_registers,
            name="rotary_table",
        )
        given["rotation"] = table(x if maps is None else maps)
    for index in range(config.depth):
        block = transformer_block(config, index)
        if config.num_merged_tokens:
            x, sizes = block(x, sizes)
        else:
            x = block(x, **given)
    return x, sizes


def transformer_block(config: ViTConfig, index: int) -> TransformerBlock:
    """The block at `index`; stochastic depth grows linearly with it."""
    kind: Any = PostNormBlock if config.post_norm else TransformerBlock
    own: dict[str, Any] = {"attention": own_attention(config, index)}
    if config.num_merged_tokens:
        kind, own = MergingBlock, {"num_merged_tokens": config.num_merged_tokens,
                                   "num_prefix_tokens": config.num_prefix_tokens}  # fmt: skip
    rate = config.stochastic_depth_rate * index / max(1, config.depth - 1)
    return kind(**vars(config.block), **own, stochastic_depth_rate=rate, name=f"block_{index}")


def own_attention(config: ViTConfig, index: int) -> keras.Layer | None:
    """The attention of a block where it is no plain `SelfAttention`."""
    options, name = vars(config.block), "attention"
    window_size = config.window_of(index)
    if config.grid_attention is not None:
        return GridAttention(
            config.block.num_heads,
            config.grid,
            config.grid_attention,
            config.block.head_width,
            dropout_rate=config.block.dropout_rate,
            attention_dropout_rate=config.block.attention_dropout_rate,
            name=name,
        )
    if window_size is not None:
        return WindowAttention(
            grid=config.grid,
            window_size=window_size,
            num_prefix_tokens=config.num_prefix_tokens,
            name=name,
            **options,
        )
    if config.block_positions == "relative":
        return SelfAttention(**options, positions=RelativeKeys(), name=name)
    if config.block_positions == "relative_bias":
        positions = RelativeBias(config.grid, config.class_token)
        return SelfAttention(**options, positions=positions, name=name)
    return None


def read_tokens(x: Tensor, config: ViTConfig, sizes: Tensor | None = None) -> Tensor:
    """From the tokens of the last block to the outputs: norm, pooling and head."""
    norm = make_norm(config.block.norm, config.block.norm_epsilon, name="encoder_norm")
    if config.ends_in_norm:
        x = norm(x)
    features = pool(x, config, sizes)  # (B, D), two where there is a distillation token
    if config.norm_after_pooling:
        features = [norm(feature) for feature in features]
    return add_heads(features, config)


def pool(x: Tensor, config: ViTConfig, sizes: Tensor | None = None) -> list[Tensor]:
    """From tokens, and their sizes or the mask of patches, to the input of each head."""
    weighted = {} if sizes is None else {"sizes": sizes}
    if config.pooling == "token" and config.distillation_token:
        second = TokenPooling(1, name="distillation_pooling")(x)
        return [TokenPooling(name="pooling")(x), second]
    if config.pooling == "token":
        return [TokenPooling(name="pooling")(x)]
    if config.pooling == "gap":
        left_out = 0 if config.gap_prefix_tokens else config.num_prefix_tokens
        return [MeanPooling(left_out, name="pooling")(x, **weighted)]
    if config.pooling == "token_gap":
        mean = MeanPooling(config.num_prefix_tokens, name="patch_pooling")(x, **weighted)
        parts = [TokenPooling(name="pooling")(x), mean]
        return [keras.layers.Concatenate(name="token_and_mean")(parts)]  # (B, 2 D)
    if config.pooling in ("map", "attention"):
        pooling = AttentionPooling(
            config.map_heads or config.block.num_heads,
            (config.map_mlp_dim or config.block.mlp_dim) if config.pooling == "map" else None,
            gelu=config.block.gelu,
            norm_epsilon=config.block.norm_epsilon,
            num_prefix_tokens=0 if config.map_prefix_tokens else config.num_prefix_tokens,
            norm=config.block.norm,
            name="pooling",
        )
        return [pooling(x, **weighted)]
    return [x]


def add_heads(features: list[Tensor], config: ViTConfig) -> Tensor:
    """The head, with its hidden layer where there is one, or the mean of two of them.

    The second is DeiT's (https://arxiv.org/abs/2012.12877): for distillation, train a model of
    the outputs of the layers `head` and `head_distillation`.
    """
    x = features[0]
    if config.classes is None:
        return keras.layers.Average(name="features")(features) if len(features) > 1 else x
    if config.pre_logits is not None:
        x = keras.layers.Dense(
            config.pre_logits, "tanh", kernel_initializer="lecun_normal", name="pre_logits"
        )(x)
    if len(features) == 1:
        return classify(x, config)
    logits = [
        head(config, "head", activation=None)(x),
        head(config, "head_distillation", activation=None)(features[1]),
    ]
    x = keras.layers.Average(dtype=Float32Policy(), name="mean_logits")(logits)
    if config.classifier_activation is None:
        return x
    return keras.layers.Activation(
        config.classifier_activation, dtype=Float32Policy(), name="predictions"
    )(x)
