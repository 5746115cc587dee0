"""Counts parameters, multiply-accumulates and training memory of a model, stage by stage."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import keras

from keras_vit.config import ResNetConfig, ViTConfig, kept_of
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.costs import Cost, cost_of
from keras_vit.layers.merging import MergingBlock
from keras_vit.layers.patches import PatchDropout
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.attention import geometry_of
from keras_vit.models.naflex import build_naflex
from keras_vit.models.real_time import RealTimeDetector
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from keras_vit.runtime.model import Model
from keras_vit.runtime.pooled_tokens import pooled_tokens
from keras_vit.runtime.private_names import call_of, every_call_of


@dataclasses.dataclass(frozen=True)
class StageCount(Cost):
    """Cost of one stage of a model for one image: its layer's `Cost`, with name and parameters.

    The `macs` of blocks are of all tokens, as in published tables. Models that pool the class token
    compute the last block for that token alone: `unread_macs` are not computed, and its activations
    are of that token alone.

    Args:
        name: Name of the layer.
        parameters: Number of parameters.
        in_float32: Whether the activations are float32 in mixed precision too.
    """

    name: str = ""
    parameters: int = 0
    in_float32: bool = False


@runtime_checkable
class CountedConfig(Protocol):
    """A configuration that builds its model, such as `ImageGPTConfig`."""

    def build_model(self) -> keras.Model: ...

    def __hash__(self) -> int: ...


_Config = ViTConfig | ResNetConfig | CountedConfig
Countable: TypeAlias = keras.Model | _Config  # what has a cost that can be counted


def count_stages(model: Countable, training: bool = False) -> list[StageCount]:
    """Counts the cost of each stage of a model for one image, as its layers state it.

    No model is run, and no weights are made: a model of a configuration, ours or a new one, is
    built of symbolic variables. Its low-rank updates and quantised kernels do not count.

    Args:
        model: A `ViTConfig`, `ResNetConfig` or `image_gpt.ImageGPTConfig`, a model of this
            package, with a segmentation head or a feature pyramid too, or a functional Keras model
            of convolutions, dense layers and our layers, such as EfficientNet of
            `keras.applications`. A layer of your own states its cost in a method `count_costs`, see
            `keras_vit.layers.costs.cost_of`.
        training: Whether patch dropout leaves patches out, as in a training step.

    Returns:
        A list of `StageCount`, from the image to the output.

    Raises:
        ValueError: If the image size is not fixed, or a layer with weights is of a type that
            cannot be counted.
    """
    config = model if not isinstance(model, keras.Model) else getattr(model, "config", None)
    if isinstance(config, _Config):
        drops = training and getattr(config, "patch_dropout_rate", 0) > 0
        return list(_stages_of_config(config, drops))
    if isinstance(model, keras.Model):
        return list(_stages(model, training))
    raise ValueError(
        f"Pass a ViTConfig, a ResNetConfig or a functional Keras model. Received: {model!r}."
    )


def count_parameters(model: Countable) -> int:
    """Counts the parameters of a model or configuration, as for `count_stages`."""
    return sum(stage.parameters for stage in count_stages(model))


def count_macs(model: Countable, as_computed: bool = False) -> int:
    """Counts the multiply-accumulates of a forward pass for one image.

    FLOPs are twice this number.

    Args:
        model: A model or configuration, as for `count_stages`.
        as_computed: Whether to count what `predict` and exports compute: with `pooling="token"`
            the last block for the class token alone. Otherwise all tokens count in all blocks, as
            in published tables.
    """
    stages = count_stages(model)
    return sum(stage.macs - as_computed * stage.unread_macs for stage in stages)


def describe_macs(stages: Sequence[StageCount]) -> str:
    """The sum of all stages, and how many of it the model computes, if these are fewer."""
    macs, unread = (sum(getattr(x, name) for x in stages) for name in ("macs", "unread_macs"))
    text = f"{macs / 1e9:.3g} billion multiply-accumulates for an image"
    if not unread:
        return text
    computed = f"{(macs - unread) / 1e9:.3g} billion are computed"
    return f"{text}, as published tables count; {computed}: the last block for pooled tokens alone"


def count_training_macs(model: Countable) -> int:
    """Counts the multiply-accumulates of a training step for one image.

    Takes a model or configuration, as `count_stages`. Each product of the forward pass has two in
    the backward pass, one for the gradient of each factor. The first stage has only one, because
    the gradient of the image is not needed. All tokens count in all blocks, as in `count_macs`.
    Patches that patch dropout leaves out are not counted after it.
    """
    stages = count_stages(model, training=True)
    macs = [stage.macs for stage in stages]
    constant = sum(stage.constant_macs for stage in stages)
    return 3 * sum(macs) - next(filter(None, macs), 0) - constant


def count_activations(model: Countable, rematerialize: bool = False) -> int:
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


@functools.lru_cache(maxsize=64)
def _stages_of_config(config: _Config, training: bool) -> tuple[StageCount, ...]:
    is_any = getattr(config, "any_size", False)
    if is_any or (isinstance(config, ResNetConfig) and config.image_size is None):
        cause, change = ("any_size=True", ", any_size=False") if is_any else ("image_size=None", "")
        raise ValueError(
            f"The cost of a model depends on the size of its images, and {cause} leaves it open. "
            f"Pass `dataclasses.replace(config, image_size=224{change})`."
        )
    # In another thread: Keras keeps names in use, and variables to initialise later, per thread.
    random_state = random.getstate()  # initialisers draw their seeds from it
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(_count_symbolic, config, training).result()
    finally:
        random.setstate(random_state)


def _count_symbolic(config: _Config, training: bool) -> tuple[StageCount, ...]:
    with keras.StatelessScope(initialize_variables=False):  # nothing is allocated
        if isinstance(config, ResNetConfig):
            model = build_resnet(config)
        elif isinstance(config, ViTConfig):
            model = build_naflex(config) if config.takes_patches else build_vit(config)
        else:
            model = config.build_model()
        return tuple(_stages(model, training))


def _stages(model: keras.Model, training: bool) -> Iterator[StageCount]:
    """Counts the layers of a functional model, from the shapes in its graph."""
    calls = every_call_of(model)
    pooled = pooled_tokens(model) if isinstance(model, Model) else {}
    drops = training and any(isinstance(layer, PatchDropout) for layer in calls)
    left_out: dict[int, int] | None = {} if drops else None
    is_windowed = isinstance(model, RealTimeDetector)  # whose windows are images to its blocks
    patches = math.prod(geometry_of(model).grid) if is_windowed else 0
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        made = calls[layer]
        if isinstance(layer, keras.Model):
            for each in count_stages(layer, training):
                yield _stage(each.name, each.parameters, [each] * len(made), each.in_float32)
            continue
        costs = [_cost_of_call(layer, call, left_out, pooled.get(layer)) for call in made]
        if patches and isinstance(layer, TransformerBlock):
            costs *= patches // (made[0].input_tensors[0].shape[1] - 1) or 1
        in_float32 = False
        if isinstance(layer, ResizeMaps) and made[0].outputs[0] in model.outputs:
            size = math.prod(made[0].outputs[0].shape[1:])
            # The loss keeps logits and probabilities.
            costs = [dataclasses.replace(each, activations=2 * size, work=size) for each in costs]
            in_float32 = layer.compute_dtype == "float32"
        parameters = sum(math.prod(weight.shape) for weight in layer.weights)
        stage = _stage(layer.name, parameters, costs, in_float32)
        if stage.parameters or stage.activations or stage.macs:
            yield stage


def _stage(name: str, parameters: int, calls: Sequence[Cost], in_float32: bool) -> StageCount:
    """All calls of a layer or a stage, which has its weights once."""
    total = vars(sum(calls, Cost())) | {"kernels": calls[0].kernels}
    return StageCount(**total, name=name, parameters=parameters, in_float32=in_float32)


def _cost_of_call(
    layer: keras.layers.Layer, call: Any, left_out: dict[int, int] | None, read: int | None
) -> Cost:
    """Cost of one call of a layer.

    Args:
        layer: The layer.
        call: The node of the call.
        left_out: Of a training step with patch dropout, see `_tokens_left_out`.
        read: How many of the tokens are read after a block, the first ones; `None` is all.
    """
    shapes = [tensor.shape for tensor in call.input_tensors]
    if left_out is not None:
        missing = [_tokens_left_out(tensor, left_out) for tensor in call.input_tensors]
        shapes = [
            (x[0], x[1] - count, *x[2:]) if count else x
            for x, count in zip(shapes, missing, strict=True)
        ]
    cost = cost_of(layer, *shapes)
    if read is None:
        return cost
    computed = layer.count_costs(*shapes, num_queries=read)
    return dataclasses.replace(computed, macs=cost.macs, unread_macs=cost.macs - computed.macs)


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
            tokens -= layer.count_merged(tokens) if isinstance(layer, MergingBlock) else 0
            missing = tensor.shape[1] - tokens
        elif len(tensor.shape) != 3 or not before or tensor.shape[1] != before[0].shape[1]:
            missing = 0  # pooled, or not made of tokens
        known[id(tensor)] = missing
    return known[id(tensor)]
