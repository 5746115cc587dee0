"""Counts parameters, multiply-accumulates and training memory of a model, stage by stage."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.config import (
    BLOCK_POSITIONS,
    BlockOptions,
    ResNetConfig,
    ResNetStem,
    ViTConfig,
    kept_of,
    merged_of,
)
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.patches import PatchDropout, PatchEncoder
from keras_vit.layers.pixels import ColorPalette
from keras_vit.layers.pooling import AttentionPooling
from keras_vit.layers.residual import BiTRoot, ResNetStage, StemRoot
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.layers.windows import Windows
from keras_vit.models.image_gpt import ImageGPTConfig, pixel_block
from keras_vit.resize import num_biases
from keras_vit.runtime.model import Model
from keras_vit.runtime.pooled_tokens import pooled_tokens
from keras_vit.runtime.private_names import call_of, every_call_of

# Weights that are only added, or looked up.
_NO_PRODUCTS = (AddPositionEmbedding, ClassToken, keras.layers.Embedding)
_CONVOLUTIONS = (
    keras.layers.Conv2D,
    keras.layers.Conv2DTranspose,
    keras.layers.DepthwiseConv2D,
)
# Layers without weights that store as many numbers as their input has: that, or a mask. The
# gradient of a ReLU needs its output only, which the next layer stores.
_KEEPING = (keras.layers.Activation, keras.layers.Dropout, keras.layers.MaxPooling2D)


@dataclasses.dataclass(frozen=True)
class StageCount:
    """Cost of one stage of a model for one image.

    Args:
        name: Name of the layer.
        parameters: Number of parameters.
        macs: Multiply-accumulates of a forward pass in convolutions, dense layers and attention.
            Norms, softmax, biases and activation functions are not counted. Blocks are counted for
            all tokens, as in published tables, also the last, of which models that pool the class
            token compute that token alone.
        activations: Numbers that a training step stores between the forward and the backward pass.
        inputs: Numbers in the input of a block or a ResNet stage, from which rematerialisation
            recomputes it; 0 for other stages.
        kernels: Numbers in standardised kernels that a training step stores, once for all images.
        work: Numbers in the gradients of activations during the stage's backward pass: half the
            activations of one block or residual unit.
        constant_macs: Multiply-accumulates that the backward pass saves compared to `2 macs`,
            because a factor has no gradient.
        in_float32: Whether the activations are float32 in mixed precision too.
    """

    name: str
    parameters: int
    macs: int = 0
    activations: int = 0
    inputs: int = 0
    kernels: int = 0
    work: int = 0
    constant_macs: int = 0
    in_float32: bool = False


def count_stages(
    model: keras.Model | ViTConfig | ResNetConfig | ImageGPTConfig, training: bool = False
) -> list[StageCount]:
    """Counts the cost of each stage of a model for one image.

    No model is run or built. Our models are counted from their configuration, other models from
    the shapes of their Keras layers.

    Args:
        model: A `ViTConfig`, `ResNetConfig` or `ImageGPTConfig`, a model of this package, with a
            segmentation head or a feature pyramid too, or a functional Keras model of
            convolutions, dense layers and our layers, such as EfficientNet of
            `keras.applications`.
        training: Whether patch dropout leaves patches out, as in a training step.

    Returns:
        A list of `StageCount`, from the image to the output.

    Raises:
        ValueError: If the image size is not fixed, or a layer with weights is of a type that
            cannot be counted.
    """
    config = model if not isinstance(model, keras.Model) else getattr(model, "config", None)
    if isinstance(config, ViTConfig):
        return list(_vit_stages(config, training))
    if isinstance(config, ResNetConfig):
        return list(_resnet_stages(config))
    if isinstance(config, ImageGPTConfig):
        return list(_image_gpt_stages(config))
    if isinstance(model, keras.Model):
        return list(_layer_stages(model, training))
    raise ValueError(
        f"Pass a ViTConfig, a ResNetConfig or a functional Keras model. Received: {model!r}."
    )


def count_parameters(model: keras.Model | ViTConfig | ResNetConfig | ImageGPTConfig) -> int:
    """Counts the parameters of a model or configuration, as for `count_stages`."""
    return sum(stage.parameters for stage in count_stages(model))


def count_macs(model: keras.Model | ViTConfig | ResNetConfig | ImageGPTConfig) -> int:
    """Counts the multiply-accumulates of a forward pass for one image.

    Takes a model or configuration, as `count_stages`. FLOPs are twice this number. All tokens count
    in all blocks, as in published tables: models with `pooling="token"` do less, as they compute
    the last block for the class token alone.
    """
    return sum(stage.macs for stage in count_stages(model))


def count_training_macs(model: keras.Model | ViTConfig | ResNetConfig | ImageGPTConfig) -> int:
    """Counts the multiply-accumulates of a training step for one image.

    Takes a model or configuration, as `count_stages`. Each product of the forward pass has two in
    the backward pass, one for the gradient of each factor. The first stage has only one, because
    the gradient of the image is not needed. Blocks are counted as in `count_macs`.
    Patches that patch dropout leaves out are not counted after it.
    """
    stages = count_stages(model, training=True)
    macs = [stage.macs for stage in stages]
    constant = sum(stage.constant_macs for stage in stages)
    return 3 * sum(macs) - next(filter(None, macs), 0) - constant


def count_activations(
    model: keras.Model | ViTConfig | ResNetConfig | ImageGPTConfig, rematerialize: bool = False
) -> int:
    """Counts the activations that a training step stores for one image until the backward pass.

    They are those that XLA stores for our layers under JAX, according to its memory analysis of a
    compiled step: the inputs of every product, norm and activation function, and values that are
    expensive to recompute, such as the tanh of a GELU. TensorFlow without XLA stores more. Patches
    that patch dropout leaves out are not counted after it.

    Args:
        model: A model or configuration, as for `count_stages`.
        rematerialize: Whether each transformer block, or stage of a ResNet, stores only its input
            and is recomputed in the backward pass. Then all activations of the largest of them are
            added once.

    Returns:
        A count of numbers, not of bytes.
    """
    stages = count_stages(model, training=True)
    if not rematerialize:
        return sum(stage.activations for stage in stages)
    blocks = [stage for stage in stages if stage.inputs]
    rest = sum(stage.activations for stage in stages if not stage.inputs)
    largest = max((stage.activations for stage in blocks), default=0)
    return rest + sum(stage.inputs for stage in blocks) + largest


def _vit_stages(config: ViTConfig, training: bool) -> Iterator[StageCount]:
    if config.any_size:
        raise ValueError(
            "The cost of a model depends on the size of its images, and any_size=True leaves it "
            "open. Pass `dataclasses.replace(config, image_size=224, any_size=False)`."
        )
    channels = config.channels
    if config.stem is not None:
        yield from _stem_stages(config)
        channels = config.stem.channels
    D, N = config.width, config.num_patches
    kernel = math.prod(config.patch_size) * channels * D
    bias = D * ("patch" not in config.block.without_bias)
    pixels = N * math.prod(config.patch_size) * channels
    yield StageCount("patch_encoder", kernel + bias, N * kernel, pixels)
    if config.norm_patches:
        yield StageCount("patch_norm", _norm(config.block.norm, D), 0, 2 * N * D)
    if config.class_token:
        yield StageCount("class_token", D)
    if config.distillation_token:
        yield StageCount("distillation_token", D)
    if config.num_registers:
        yield StageCount("registers", config.num_registers * D)
    if config.position_embedding not in ("none", *BLOCK_POSITIONS):
        yield StageCount("position_embedding", _position_parameters(config))
    tokens = config.num_training_tokens if training else config.num_tokens
    if config.norm_before_blocks:
        yield StageCount("embedding_norm", _norm(config.block.norm, D), 0, 2 * tokens[0] * D)
    *counts, T = tokens
    last_read = config.depth - 1 if _reads_class_token_alone(config) else None
    for index, (before, after) in enumerate(zip(counts, tokens[1:], strict=True)):
        relative = config.position_embedding == "relative"
        window = config.window_of(index)
        windows = window and Windows(config.grid, window, config.num_prefix_tokens)
        bias = config.position_embedding == "relative_bias"
        rows = num_biases(config.grid, config.class_token) if bias else 0
        read = config.num_class_tokens if index == last_read else None
        block = _block(config, before, D, relative, before - after, windows, rows, read)
        yield dataclasses.replace(block, name=f"block_{index}")
    vectors = T if config.pooling is None else 1
    normed = vectors if config.norm_after_pooling else T
    if config.norm_after_pooling or config.ends_in_norm:
        yield StageCount("encoder_norm", _norm(config.block.norm, D), 0, 2 * normed * D)
    if config.pooling == "map":
        left_out = 0 if config.map_prefix_tokens else config.num_prefix_tokens
        heads = config.map_heads or config.block.num_heads
        hidden = config.map_mlp_dim or config.block.mlp_dim
        yield _attention_pooling(T - left_out, D, hidden, heads, config.block.norm)
    yield from _head_stages(config, 2 * D if config.pooling == "token_gap" else D, vectors)


def _reads_class_token_alone(config: ViTConfig) -> bool:
    """Whether a model of this configuration computes its last block for the class tokens alone."""
    whole = config.block.num_merged_tokens or config.window_of(config.depth - 1)
    return config.pooling == "token" and not whole


def _norm(kind: str, D: int) -> int:
    """Parameters of a norm: scale and shift, or the scale alone."""
    return D if kind == "rms" else 2 * D


def _position_parameters(config: ViTConfig) -> int:
    prefix = config.num_class_tokens if config.position_on_class_token else 0
    rows, columns = config.grid
    half = config.width // 2
    return {
        "learned": (prefix + rows * columns) * config.width,
        "learned_2d": columns * half + rows * (config.width - half) + prefix * config.width,
    }.get(config.position_embedding, 0)


def _block(
    config: ViTConfig | TransformerBlock,
    T: int,
    D: int,
    relative: bool,
    merged: int = 0,
    windows: Windows | None = None,
    position_biases: int = 0,
    read: int | None = None,
) -> StageCount:
    """Counts a block of `T` tokens, from what `ViTConfig` and `TransformerBlock` share.

    Products are counted for all tokens, activations for the first `read` where those are all that
    is read after the block.
    """
    options = config.block if isinstance(config, ViTConfig) else config.options
    pairs = T * T if windows is None else windows.num_pairs
    rest = T - merged  # tokens of the MLP
    M, A = options.mlp_dim, options.num_heads
    offsets = 2 * T - 1 if relative else 0
    gated = int(options.swiglu)
    inner = [part in options.inner_norms for part in ("attention", "mlp")]
    without = options.without_bias
    d = options.head_width or D // A
    H = A * d  # channels of all heads
    biases = sum(H for part in ("query", "key", "value") if part not in without)
    biases += D * ("projection" not in without) + (M * (1 + gated) + D) * ("mlp" not in without)
    parameters = 4 * D * H + (2 + gated) * D * M + biases + offsets * d
    parameters += _norm(options.norm, 2 * D + inner[0] * H + inner[1] * M)
    parameters += 2 * d * options.qk_norm + 2 * D * (options.layer_scale is not None)
    parameters += A * position_biases
    macs = 4 * T * D * H + 2 * pairs * H + (2 + gated) * rest * D * M + T * H * offsets
    match, join = _merging_macs(T, D, d, config.num_prefix_tokens, merged) if merged else (0, 0)
    macs += match + join
    # From XLA's list of buffers at the peak, under JAX: inputs and outputs of norms and products
    # (tokens); the hidden layer before and after its GELU, and the GELU's tanh or erf, or both
    # inputs of a gate, its sigmoid and its output; attention weights before and after
    # normalisation.
    Q = T if read is None else read  # of which queries are kept
    rest, pairs = (rest, pairs) if read is None else (read, read * T)
    kept = 2 * T * D + 3 * T * H + Q * (D + H)
    kept += 5 * rest * D + (3 + gated) * rest * M + 2 * A * pairs
    owner: Any = config if isinstance(config, ViTConfig) else getattr(config, "attention", None)
    kind = getattr(owner, "grid_attention", getattr(owner, "kind", None))
    if kind is not None:
        more, of_attention = _grid_attention(options, kind, owner.grid, T, D)
        parameters += more - 4 * D * H - 3 * H - D
        macs += of_attention - 4 * T * D * H - 2 * T * T * H
        kept += A * T * D  # heads of the full width
    kept += inner[0] * Q * H + inner[1] * rest * M
    kept += 2 * T * H * options.qk_norm + (Q + rest) * D * (options.layer_scale is not None)
    if options.dropout_rate:
        kept += 2 * (Q + rest) * D + 2 * rest * M  # masks, and masked values
    if options.attention_dropout_rate:
        kept += 2 * A * pairs
    # The choice of the tokens to merge has no gradient; the merged tokens have one.
    constant = 2 * match + join
    inputs, work = T * D, kept // 2
    return StageCount("block", parameters, macs, kept, inputs, work=work, constant_macs=constant)


def _grid_attention(
    options: BlockOptions, kind: str, grid: tuple[int, int], T: int, D: int
) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a `GridAttention`."""
    rows, columns = grid
    A, table = options.num_heads, 2 * (rows + columns) - 2
    parameters = A * D * D + D + D * D + D
    macs = A * T * T * D + T * A * D * D + T * D * D
    if kind == "quadratic":
        return parameters + 3 * A, macs
    if kind == "offsets":
        return parameters + table * D + 2 * D * A, macs + table * D * A
    d = options.head_width or D
    parameters += 2 * A * d * (D + 1) + table * (d // 2)
    return parameters, macs + 2 * T * D * A * d + A * T * T * d + A * T * (rows + columns) * d // 2


def _merging_macs(T: int, D: int, head_dim: int, prefix: int, merged: int) -> tuple[int, int]:
    """Token merging: similarities of the two halves of the patches, and sums of merged tokens."""
    seekers = (T - prefix + (prefix + 1) % 2) // 2
    others = T - prefix - seekers
    return seekers * others * head_dim, merged * others * D


def _attention_pooling(T: int, D: int, M: int, A: int, norm: str) -> StageCount:
    dense = 4 * (D * D + D) + 2 * D * M + M + D
    macs = 2 * T * D * D + 2 * T * D + 2 * D * D + 2 * D * M
    kept = 3 * T * D + A * T + 4 * D + 2 * M
    return StageCount("pooling", D + dense + _norm(norm, D), macs, kept)


def _head_stages(config: ViTConfig | ResNetConfig, D: int, vectors: int) -> Iterator[StageCount]:
    if config.classes is None:
        return
    K, width = config.classes, D
    pre_logits = getattr(config, "pre_logits", None)
    if pre_logits is not None:
        macs = vectors * D * pre_logits
        yield StageCount("pre_logits", D * pre_logits + pre_logits, macs, vectors * D)
        D = pre_logits
    bias = K * (config.head_bias is not None)
    yield StageCount("head", D * K + bias, vectors * D * K, vectors * D)
    if getattr(config, "distillation_token", False):
        yield StageCount("head_distillation", width * K + bias, width * K, width)


def _image_gpt_stages(config: ImageGPTConfig) -> Iterator[StageCount]:
    T, D, K = config.num_tokens, config.width, config.colors
    search = T * K * config.channels  # distances to the colours, without a backward pass
    yield StageCount("palette", K * config.channels, search, T, constant_macs=search)
    yield StageCount("token_embedding", K * D)
    if config.mask_rate is None:
        yield StageCount("start_token", D)
    yield StageCount("position_embedding", T * D)
    for index in range(config.depth):
        block = _block(pixel_block(config, index), T, D, relative=False)
        yield dataclasses.replace(block, name=f"block_{index}")
    yield StageCount("encoder_norm", D, 0, 2 * T * D)
    yield StageCount("pixel_logits", K * D, T * K * D, T * D + T * K)


def _resnet_stages(config: ResNetConfig) -> Iterator[StageCount]:
    if config.image_size is None:
        raise ValueError(
            "The cost of a model depends on the size of its images, and image_size=None leaves it "
            "open. Pass `dataclasses.replace(config, image_size=224)`."
        )
    filters = 64 * config.width_factor
    yield _root(config.image_size, config.channels, filters, norm=False)
    yield from _residual_stages(config, config, pre_activation=True)
    rows, columns = _maps(config, len(config.stages) - 1)
    D = config.width
    yield StageCount("norm", 2 * D, 0, 3 * rows * columns * D)
    yield from _head_stages(config, D, 1)


def _stem_stages(config: ViTConfig) -> Iterator[StageCount]:
    assert config.stem is not None
    filters = 64 * config.stem.width_factor
    stages = [_root(config.image_size, config.channels, filters, norm=True)]
    for stage in (*stages, *_residual_stages(config, config.stem, pre_activation=False)):
        yield dataclasses.replace(stage, name=f"stem_{stage.name}")


def _maps(config: ViTConfig | ResNetConfig, index: int) -> tuple[int, int]:
    """Height and width of the feature maps after the root (index -1) or a stage (0 and above)."""
    assert config.image_size is not None
    stride = 4 * 2 ** max(0, index)
    return -(-config.image_size[0] // stride), -(-config.image_size[1] // stride)


def _root(size: tuple[int, int], channels: int, filters: int, norm: bool) -> StageCount:
    """The convolution of a ResNet's root on images of a size and a number of channels."""
    places = math.prod(-(-side // 2) for side in size)
    kernel = 7 * 7 * channels * filters
    kept = math.prod(size) * channels + places * filters * (3 if norm else 1)
    parameters = kernel + 2 * filters * norm
    kernels = 0 if norm else kernel
    return StageCount("root", parameters, places * kernel, kept, kernels=kernels)


def _residual_stages(
    config: ViTConfig | ResNetConfig, stem: ResNetConfig | ResNetStem, pre_activation: bool
) -> Iterator[StageCount]:
    channels = 64 * stem.width_factor
    for index, units in enumerate(stem.stages):
        F = 64 * stem.width_factor * 2**index
        before, after = (math.prod(_maps(config, step)) for step in (index - 1, index))
        stage = _residual_stage(units, F, channels, before, after, pre_activation)
        yield dataclasses.replace(stage, name=f"stage_{index + 1}")
        channels = 4 * F


def _residual_stage(
    units: int, F: int, channels: int, before: int, after: int, pre_activation: bool
) -> StageCount:
    """Bottleneck units: norms before the convolutions (BiT) or after them (the stem).

    The maps have `before` positions of `channels`, and after the first unit `after` of `4 F`.
    """
    inputs = before * channels
    parameters = macs = kept = standardized = work = 0
    for unit in range(units):
        first = unit == 0
        channels, came = (channels, before) if first else (4 * F, after)
        kernels = channels * F + 9 * F * F + F * 4 * F + first * channels * 4 * F
        norms = channels + 2 * F if pre_activation else 6 * F + first * 4 * F
        parameters += kernels + 2 * norms
        standardized += kernels * pre_activation  # XLA recomputes those of the stem
        macs += came * channels * F + after * (kernels - channels * F)
        # For every norm: its input, its normalised input, and the output of its ReLU.
        of_unit = 3 * came * (channels + F) + after * (3 * F + 6 * F * (not pre_activation))
        kept, work = kept + of_unit, max(work, of_unit // 2)
    return StageCount("stage", parameters, macs, kept, inputs, standardized, work)


def _layer_stages(model: keras.Model, training: bool) -> Iterator[StageCount]:
    """Counts the layers of a functional model, from the shapes in its graph."""
    calls = every_call_of(model)
    pooled = pooled_tokens(model) if isinstance(model, Model) else {}
    drops = training and any(isinstance(layer, PatchDropout) for layer in calls)
    left_out: dict[int, int] | None = {} if drops else None
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        times = len(calls[layer])
        if isinstance(layer, keras.Model):
            for each in count_stages(layer, training):  # a shared model has its weights once
                yield dataclasses.replace(
                    each,
                    macs=times * each.macs,
                    activations=times * each.activations,
                    inputs=times * each.inputs,
                    constant_macs=times * each.constant_macs,
                )
            continue
        read = pooled.get(layer)
        stages = [_layer_stage(layer, call, left_out, read) for call in calls[layer]]
        stage = dataclasses.replace(
            stages[0],  # a shared layer has its weights once
            name=layer.name,
            macs=sum(each.macs for each in stages),
            activations=sum(each.activations for each in stages),
            inputs=sum(each.inputs for each in stages),
            constant_macs=sum(each.constant_macs for each in stages),
        )
        if isinstance(layer, ResizeMaps) and calls[layer][0].outputs[0] in model.outputs:
            size = math.prod(calls[layer][0].outputs[0].shape[1:])
            stage = dataclasses.replace(
                stage,
                activations=2 * size,  # the loss keeps logits and probabilities
                work=size,
                in_float32=layer.compute_dtype == "float32",
            )
        if stage.parameters or stage.activations or stage.macs:
            yield stage


def _tokens_left_out(tensor: Any, known: dict[int, int]) -> int:
    """Tokens of a symbolic tensor, by its shape, that patch dropout leaves out in training.

    `known` has the numbers of tensors, by their identity, that were asked for before.
    """
    if id(tensor) not in known:
        layer, call = call_of(tensor)
        before = [x for x in call.input_tensors if len(x.shape) == 3]
        missing = max((_tokens_left_out(x, known) for x in before), default=0)
        if isinstance(layer, PatchDropout):
            patches = before[0].shape[1] - layer.num_prefix_tokens
            missing = patches - kept_of(patches - missing, layer.rate)
        elif isinstance(layer, TransformerBlock):
            tokens = before[0].shape[1] - missing
            tokens -= merged_of(tokens - layer.num_prefix_tokens, layer.options.num_merged_tokens)
            missing = tensor.shape[1] - tokens
        elif len(tensor.shape) != 3 or not before or tensor.shape[1] != before[0].shape[1]:
            missing = 0  # pooled, or not made of tokens
        known[id(tensor)] = missing
    return known[id(tensor)]


def _layer_stage(
    layer: keras.layers.Layer,
    call: Any,
    left_out: dict[int, int] | None,
    read: int | None = None,
) -> StageCount:
    """Counts one call of a layer; with `left_out`, of a training step, see `_tokens_left_out`.

    `read` is that of a block, as in `_block`.
    """
    tensors = [keras.tree.flatten(x)[0] for x in (call.input_tensors, call.outputs)]
    source, target = (tensor.shape for tensor in tensors)
    if left_out is not None:
        missing = [_tokens_left_out(tensor, left_out) for tensor in tensors]
        source, target = (
            (x[0], x[1] - count, *x[2:]) if count else x
            for x, count in zip((source, target), missing, strict=True)
        )
    if isinstance(layer, TransformerBlock):
        _, T, D = source  # sizes of merged tokens may be a second input
        windows = None
        if layer.window_size is not None and layer.grid is not None:
            windows = Windows(layer.grid, layer.window_size, layer.num_prefix_tokens)
        rows = layer.attention.bias_table.shape[0] if layer.position_bias else 0
        return _block(layer, T, D, layer.relative_positions, T - target[1], windows, rows, read)
    if isinstance(layer, AttentionPooling):
        _, T, D = source
        T -= layer.num_prefix_tokens
        return _attention_pooling(T, D, layer.mlp_dim, layer.num_heads, layer.norm_kind)
    if isinstance(layer, StemRoot | BiTRoot):
        _, height, width, channels = _fixed(layer, source)
        return _root((height, width), channels, layer.filters, isinstance(layer, StemRoot))
    if isinstance(layer, ResNetStage):
        before, after = (math.prod(_fixed(layer, x)[1:-1]) for x in (source, target))
        units = layer.num_units, layer.filters, source[-1]
        return _residual_stage(*units, before, after, layer.pre_activation)
    if isinstance(layer, ResizeMaps):
        _, rows, columns, D = source
        macs = target[1] * columns * D * (rows + target[2])
        return StageCount(layer.name, 0, macs, constant_macs=macs)  # constant matrices
    if not layer.weights:
        kept = isinstance(layer, _KEEPING) and math.prod(_fixed(layer, source)[1:])
        return StageCount(layer.name, 0, activations=int(kept))
    parameters = sum(math.prod(weight.shape) for weight in layer.weights)
    kept = math.prod(_fixed(layer, source)[1:])
    macs = _layer_macs(layer, source, target)
    if not macs and not isinstance(layer, _NO_PRODUCTS):
        kept *= 2  # a norm: its input, before and after it is normalised
    return StageCount(layer.name, parameters, macs, kept)


def _layer_macs(layer: keras.layers.Layer, source: tuple[Any, ...], target: tuple[Any, ...]) -> int:
    if isinstance(layer, ColorPalette):
        return math.prod(layer.colors.shape) * target[1]
    if isinstance(layer, PatchEncoder):
        return math.prod(layer.projection.kernel.shape) * target[1]
    if isinstance(layer, keras.layers.Dense):
        return math.prod(layer.kernel.shape) * math.prod(source[1:-1])
    if isinstance(layer, _CONVOLUTIONS):
        maps = source if isinstance(layer, keras.layers.Conv2DTranspose) else target
        places = maps[1:3] if layer.data_format == "channels_last" else maps[2:4]
        return math.prod(layer.kernel.shape) * math.prod(places)
    if isinstance(layer, _NO_PRODUCTS) or max(len(w.shape) for w in layer.weights) < 2:
        return 0
    raise ValueError(
        f"Cannot count layer {layer.name!r}: type {type(layer).__name__} is not supported. "
        "Count a model by its configuration, or one of dense layers, convolutions and blocks."
    )


def _fixed(layer: keras.layers.Layer, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    if None in shape[1:]:
        raise ValueError(
            "The cost of a model depends on the size of its images, which is open in layer "
            f"{layer.name!r}: shape {shape}. Build the model with an input_shape."
        )
    return shape
