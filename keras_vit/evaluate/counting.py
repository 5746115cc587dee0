"""What a model costs, stage by stage: parameters, multiply-accumulates, memory of training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.config import ResNetConfig, ResNetStem, ViTConfig
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.pooling import AttentionPooling
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken, PatchEncoder

_NO_PRODUCTS = (AddPositionEmbedding, ClassToken)  # weights of several axes, only added


@dataclasses.dataclass(frozen=True)
class StageCount:
    """What one stage of a model costs for one image.

    Args:
        name: Name of the layer.
        parameters: Trained numbers.
        macs: Multiply-accumulates of a forward pass in convolutions, dense layers and attention.
            Norms, softmax, biases and activation functions do not count.
        activations: Numbers a training step keeps between the forward and the backward pass.
        inputs: Numbers that come into a block or a ResNet stage, from which it can be computed a
            second time; 0 for the others.
        kernels: Numbers of standardised kernels that a training step keeps, once for all images.
        work: Numbers of gradients of activations while the backward pass is in the stage: half as
            many as the activations of one block or residual unit.
        constant_macs: Multiply-accumulates by which the backward pass has fewer than `2 macs`, for
            factors without a gradient.
    """

    name: str
    parameters: int
    macs: int = 0
    activations: int = 0
    inputs: int = 0
    kernels: int = 0
    work: int = 0
    constant_macs: int = 0


def count_stages(model: keras.Model | ViTConfig | ResNetConfig) -> list[StageCount]:
    """What each stage of a model costs for one image.

    Nothing is run: our models are counted from their configuration, so that a giant costs nothing
    to count, and any other from the shapes of its Keras layers.

    Args:
        model: A `ViTConfig` or `ResNetConfig`, a model of this package, or a functional Keras
            model of convolutions, dense layers and our layers (`keras.applications`' EfficientNet,
            for one).

    Returns:
        A list of `StageCount`, in the order of the data.

    Raises:
        ValueError: If the images have no fixed size, or a layer has weights that nobody here
            knows how to count.
    """
    config = model if not isinstance(model, keras.Model) else getattr(model, "config", None)
    if isinstance(config, ViTConfig):
        return list(_vit_stages(config))
    if isinstance(config, ResNetConfig):
        return list(_resnet_stages(config))
    if isinstance(model, keras.Model):
        return list(_layer_stages(model))
    raise ValueError(
        f"Pass a ViTConfig, a ResNetConfig or a functional Keras model. Received: {model!r}."
    )


def count_parameters(model: keras.Model | ViTConfig | ResNetConfig) -> int:
    """All parameters of what `count_stages` takes."""
    return sum(stage.parameters for stage in count_stages(model))


def count_macs(model: keras.Model | ViTConfig | ResNetConfig) -> int:
    """Multiply-accumulates of a forward pass for one image, of what `count_stages` takes.

    Floating-point operations are twice as many.
    """
    return sum(stage.macs for stage in count_stages(model))


def count_training_macs(model: keras.Model | ViTConfig | ResNetConfig) -> int:
    """Multiply-accumulates of a training step for one image, of what `count_stages` takes.

    For every product forward there are two backward, one for the gradient of each factor; but the
    first stage multiplies the image itself, of which nobody takes the gradient, so it has one.
    """
    stages = count_stages(model)
    macs = [stage.macs for stage in stages]
    constant = sum(stage.constant_macs for stage in stages)
    return 3 * sum(macs) - next(filter(None, macs), 0) - constant


def count_activations(
    model: keras.Model | ViTConfig | ResNetConfig, rematerialize: bool = False
) -> int:
    """Numbers that a training step keeps for one image from the forward to the backward pass.

    What XLA keeps of our layers, as its own account of a compiled step says: the inputs of every
    product, norm and activation function, and what is dear to compute again, such as the tanh in
    a GELU. TensorFlow's graphs without XLA, and eager execution, keep more.

    Args:
        model: What `count_stages` takes.
        rematerialize: Whether each transformer block, or stage of a ResNet, keeps its input
            alone and is computed a second time for its gradient; then the largest of them is in
            memory as a whole, one at a time.

    Returns:
        A count of numbers, not of bytes.
    """
    stages = count_stages(model)
    if not rematerialize:
        return sum(stage.activations for stage in stages)
    blocks = [stage for stage in stages if stage.inputs]
    rest = sum(stage.activations for stage in stages if not stage.inputs)
    largest = max((stage.activations for stage in blocks), default=0)
    return rest + sum(stage.inputs for stage in blocks) + largest


def _vit_stages(config: ViTConfig) -> Iterator[StageCount]:
    channels, (height, width) = config.channels, config.image_size
    if config.stem is not None:
        yield from _stem_stages(config)
        channels, (height, width) = config.stem.channels, config.stem.map_size(config.image_size)
    D, N = config.width, config.num_patches
    kernel = math.prod(config.patch_size) * channels * D
    yield StageCount("patch_encoder", kernel + D, N * kernel, height * width * channels)
    if config.class_token:
        yield StageCount("class_token", D)
    if config.distillation_token:
        yield StageCount("distillation_token", D)
    if config.num_registers:
        yield StageCount("registers", config.num_registers * D)
    if config.position_embedding not in ("none", "relative"):
        yield StageCount("position_embedding", _position_parameters(config))
    *counts, T = config.num_tokens
    for index, (before, after) in enumerate(zip(counts, config.num_tokens[1:], strict=True)):
        relative = config.position_embedding == "relative"
        block = _block(config, before, D, relative, merged=before - after)
        yield dataclasses.replace(block, name=f"block_{index}")
    vectors = T if config.pooling is None else 1
    normed = vectors if config.norm_after_pooling else T
    yield StageCount("encoder_norm", 2 * D, 0, 2 * normed * D)
    if config.pooling == "map":
        yield _attention_pooling(T, D, config.mlp_dim, config.num_heads)
    yield from _head_stages(config, D, vectors)


def _position_parameters(config: ViTConfig) -> int:
    prefix = config.num_class_tokens if config.position_on_class_token else 0
    rows, columns = config.grid
    half = config.width // 2
    return {
        "learned": (prefix + config.num_patches) * config.width,
        "learned_2d": columns * half + rows * (config.width - half) + prefix * config.width,
    }.get(config.position_embedding, 0)


def _block(
    config: ViTConfig | TransformerBlock, T: int, D: int, relative: bool, merged: int = 0
) -> StageCount:
    """A block of `T` tokens, by fields that `ViTConfig` and `TransformerBlock` share."""
    rest = T - merged  # tokens of the MLP
    M, A = config.mlp_dim, config.num_heads
    offsets = 2 * T - 1 if relative else 0
    parameters = 4 * (D * D + D) + 2 * D * M + M + D + 4 * D + offsets * (D // A)
    parameters += 2 * (D // A) * config.qk_norm + 2 * D * (config.layer_scale is not None)
    macs = 4 * T * D * D + 2 * T * T * D + 2 * rest * D * M + T * D * offsets
    match, join = (
        _merging_macs(T, D, D // A, config.num_prefix_tokens, merged) if merged else (0, 0)
    )
    macs += match + join
    # As XLA's list of buffers at the peak: of tokens the inputs and outputs of norms and products;
    # the hidden layer before and after its GELU, and the GELU's tanh or erf; attention before and
    # after it is scaled to sum to 1.
    kept = 7 * T * D + 5 * rest * D + 3 * rest * M + 2 * A * T * T
    kept += 2 * T * D * config.qk_norm + (T + rest) * D * (config.layer_scale is not None)
    if config.dropout_rate:
        kept += 2 * (T + rest) * D + 2 * rest * M  # masks, and what they leave
    if config.attention_dropout_rate:
        kept += 2 * A * T * T
    # Who joins whom has no gradient, only what they join to.
    constant = 2 * match + join
    inputs, work = T * D, kept // 2
    return StageCount("block", parameters, macs, kept, inputs, work=work, constant_macs=constant)


def _merging_macs(T: int, D: int, head_dim: int, prefix: int, merged: int) -> tuple[int, int]:
    """Similarities of half of the patches with the other half, and sums of those that merge."""
    seekers = (T - prefix + (prefix + 1) % 2) // 2
    others = T - prefix - seekers
    return seekers * others * head_dim, merged * others * D


def _attention_pooling(T: int, D: int, M: int, A: int) -> StageCount:
    dense = 4 * (D * D + D) + 2 * D * M + M + D
    macs = 2 * T * D * D + 2 * T * D + 2 * D * D + 2 * D * M
    return StageCount("pooling", D + dense + 2 * D, macs, 3 * T * D + A * T + 4 * D + 2 * M)


def _head_stages(config: ViTConfig | ResNetConfig, D: int, vectors: int) -> Iterator[StageCount]:
    if config.classes is None:
        return
    K, width = config.classes, D
    pre_logits = getattr(config, "pre_logits", None)
    if pre_logits is not None:
        macs = vectors * D * pre_logits
        yield StageCount("pre_logits", D * pre_logits + pre_logits, macs, vectors * D)
        D = pre_logits
    yield StageCount("head", D * K + K, vectors * D * K, vectors * D)
    if getattr(config, "distillation_token", False):
        yield StageCount("head_distillation", width * K + K, width * K, width)


def _resnet_stages(config: ResNetConfig) -> Iterator[StageCount]:
    if config.image_size is None:
        raise ValueError(
            "The cost of a model depends on the size of its images, and image_size=None leaves it "
            "open. Pass `dataclasses.replace(config, image_size=224)`."
        )
    yield _root(config, config.channels, norm=False)
    for index, units in enumerate(config.stages):
        yield _residual_stage(config, config, index, units, pre_activation=True)
    rows, columns = _maps(config, len(config.stages) - 1)
    D = config.width
    yield StageCount("norm", 2 * D, 0, 3 * rows * columns * D)
    yield from _head_stages(config, D, 1)


def _stem_stages(config: ViTConfig) -> Iterator[StageCount]:
    assert config.stem is not None
    root = _root(config, config.channels, norm=True)
    yield dataclasses.replace(root, name="stem_root")
    for index, units in enumerate(config.stem.stages):
        stage = _residual_stage(config, config.stem, index, units, pre_activation=False)
        yield dataclasses.replace(stage, name=f"stem_{stage.name}")


def _maps(config: ViTConfig | ResNetConfig, index: int) -> tuple[int, int]:
    """Height and width of the maps after the root (-1 and 0) and each stage (0 and on)."""
    assert config.image_size is not None
    stride = 4 * 2 ** max(0, index)
    return -(-config.image_size[0] // stride), -(-config.image_size[1] // stride)


def _root(config: ViTConfig | ResNetConfig, channels: int, norm: bool) -> StageCount:
    stem = config if isinstance(config, ResNetConfig) else config.stem
    assert stem is not None and config.image_size is not None
    filters = 64 * stem.width_factor
    places = math.prod(-(-side // 2) for side in config.image_size)
    kernel = 7 * 7 * channels * filters
    pixels = math.prod(config.image_size) * channels
    kept = pixels + places * filters * (3 if norm else 1)
    parameters = kernel + 2 * filters * norm
    kernels = 0 if norm else kernel
    return StageCount("root", parameters, places * kernel, kept, kernels=kernels)


def _residual_stage(
    config: ViTConfig | ResNetConfig,
    stem: ResNetConfig | ResNetStem,
    index: int,
    units: int,
    pre_activation: bool,
) -> StageCount:
    """Bottleneck units: norms before the convolutions (BiT) or after them (the stem)."""
    F = 64 * stem.width_factor * 2**index
    places = math.prod(_maps(config, index))
    parameters = macs = kept = standardized = work = 0
    for unit in range(units):
        first = unit == 0
        channels = 4 * F if not first else F if index == 0 else 2 * F
        came = math.prod(_maps(config, index - 1)) if first else places
        kernels = channels * F + 9 * F * F + F * 4 * F + first * channels * 4 * F
        norms = channels + 2 * F if pre_activation else 6 * F + first * 4 * F
        parameters += kernels + 2 * norms
        standardized += kernels * pre_activation  # XLA computes those of the stem again
        macs += came * channels * F + places * (kernels - channels * F)
        # Of every norm its input, what it scales, and what its ReLU hands to the next convolution.
        of_unit = 3 * came * (channels + F) + places * (3 * F + 6 * F * (not pre_activation))
        kept, work = kept + of_unit, max(work, of_unit // 2)
    channels = F if index == 0 else 2 * F
    inputs = math.prod(_maps(config, index - 1)) * channels
    name = f"stage_{index + 1}"
    return StageCount(name, parameters, macs, kept, inputs, standardized, work)


def _layer_stages(model: keras.Model) -> Iterator[StageCount]:
    """Every layer of a functional model that has weights, from its shapes."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from count_stages(layer)
        elif isinstance(layer, TransformerBlock):
            _, T, D = _tokens_of(layer)
            merged = T - keras.tree.flatten(layer.output)[0].shape[1]
            block = _block(layer, T, D, layer.relative_positions, merged)
            yield dataclasses.replace(block, name=layer.name)
        elif isinstance(layer, AttentionPooling):
            _, T, D = _tokens_of(layer)
            yield _attention_pooling(T, D, layer.mlp_dim, layer.num_heads)
        elif layer.weights:
            parameters = sum(math.prod(weight.shape) for weight in layer.weights)
            kept = math.prod(_fixed(layer, layer.input.shape)[1:])
            yield StageCount(layer.name, parameters, _layer_macs(layer), kept)


def _tokens_of(layer: keras.layers.Layer) -> tuple[Any, ...]:
    """Shape of the tokens that go in; their sizes may come along."""
    return keras.tree.flatten(layer.input)[0].shape


def _layer_macs(layer: keras.layers.Layer) -> int:
    source, target = layer.input.shape, layer.output.shape
    if isinstance(layer, PatchEncoder):
        return math.prod(layer.projection.kernel.shape) * target[1]
    if isinstance(layer, keras.layers.Dense):
        return math.prod(layer.kernel.shape) * math.prod(source[1:-1])
    if isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D):
        places = target[1:3] if layer.data_format == "channels_last" else target[2:4]
        return math.prod(layer.kernel.shape) * math.prod(places)
    if isinstance(layer, _NO_PRODUCTS) or max(len(w.shape) for w in layer.weights) < 2:
        return 0
    raise ValueError(
        f"Nobody here knows how to count the layer {layer.name!r}, a {type(layer).__name__}. "
        "Count a model by its configuration, or one of dense layers, convolutions and blocks."
    )


def _fixed(layer: keras.layers.Layer, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    if None in shape[1:]:
        raise ValueError(
            "The cost of a model depends on the size of its images, which is open in layer "
            f"{layer.name!r}: shape {shape}. Build the model with an input_shape."
        )
    return shape
