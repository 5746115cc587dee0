"""Low-rank adaptation (LoRA, https://arxiv.org/abs/2106.09685) of the products of the blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import keras

from keras_vit.checks import check_positive, check_rate
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.dense import Dense
from keras_vit.models.cloning import change_config, clone
from keras_vit.models.quantized import float_config, float_values
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.private_names import flatten_layers

_PARTS = {"query": 0, "q_proj": 0, "key": 1, "k_proj": 1, "value": 2, "v_proj": 2}
# The products of a block: their names, ours, timm's and those of transformers in memory and in
# files, and the parts that their units are, in this order.
_PRODUCTS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "attention/qkv": (("qkv",), (0, 1, 2)),
    "attention/queries_keys": (("qkv",), (0, 1)),  # of `GridAttention`, as the next
    "attention/value": (("qkv",), (2,)),
    "attention/output": (("attention_output", "proj", "attn.proj", "o_proj"), ()),
    "mlp/hidden": (("mlp_hidden", "fc1", "mlp.fc1", "intermediate.dense"), ()),
    "mlp/output": (("mlp_output", "fc2", "mlp.fc2"), ()),
}
ALL_LINEAR = "all-linear"


def add_lora(
    model: keras.Model,
    rank: int,
    targets: str | Sequence[str] = ("qkv",),
    *,
    alpha: float | None = None,
    dropout_rate: float = 0.0,
    rank_stabilized: bool = False,
    trainable: Sequence[str] = ("head",),
) -> keras.Model:
    """Freezes a model and adds low-rank updates to products of its blocks, which train.

    The model is changed, as by Keras's own `layer.enable_lora`, and computes the same until it is
    trained. `model.save` writes the updated kernels, without updates; so do exports.
    `keras_vit.train.save_adapter` writes the updates alone, and `merge_lora` gives a plain model.

    Args:
        model: A model with `TransformerBlock`s, at any depth of nested models.
        rank: Rank of each update.
        targets: Products that get an update: `"qkv"` (one update of queries, keys and values; of
            `GridAttention` one of queries and keys, one of values), `"query"`, `"key"`, `"value"`
            (an update each), `"attention_output"`, `"mlp_hidden"`, `"mlp_output"`, or the names
            that timm or transformers give them. `"all-linear"` is every product.
        alpha: An update counts `alpha / rank` times; `None` is `rank`, so that it counts once.
        dropout_rate: Dropout of the inputs of the updates, in [0, 1).
        rank_stabilized: Whether an update counts `alpha / sqrt(rank)` times
            (https://arxiv.org/abs/2312.03732).
        trainable: Names of the layers that train as a whole; their names may go on after a `_`.

    Returns:
        The model. Compile it before `fit`, also where it was compiled before.

    Raises:
        ValueError: If a target or a layer is not in the model, or a product has an update already.

    Example:

    >>> model = keras_vit.ViTTi16(weights=None, classes=10)
    >>> model = keras_vit.models.add_lora(model, rank=8, targets=("query", "value"))
    >>> sum(w.shape[0] * w.shape[1] for w in model.trainable_weights if "lora" in w.path)
    147456
    """
    check_positive("rank", rank)
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    scale = (rank if alpha is None else alpha) / (rank**0.5 if rank_stabilized else rank)
    plans = [Plan(layer, rank, scale, parts) for layer, parts in _choose(model, names)]
    return apply_plans(model, plans, dropout_rate, trainable)


class Plan(NamedTuple):
    """A low-rank update of one layer.

    Args:
        layer: The layer.
        rank: Rank of the update, of each part where there are parts.
        scale: How often it counts.
        parts: Which parts of the units have an update of their own; none is one update of all.
    """

    layer: Dense
    rank: int
    scale: float
    parts: tuple[bool, ...]


def apply_plans(
    model: keras.Model, plans: Sequence[Plan], dropout_rate: float, trainable: Sequence[str]
) -> keras.Model:
    """Freezes a model and adds updates; see `add_lora`."""
    check_rate("dropout_rate", dropout_rate)
    kept = _variables_of(model, trainable)
    there = lora_layers(model)
    if there:
        raise ValueError(
            f"{there[0].path} has a low-rank update already. Call `merge_lora(model)` for a model "
            "that holds it in its kernels, then add another."
        )
    # PEFT's initial values: uniform, up to one over the square root of the inputs.
    initial = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
    for variable in model.variables:
        if variable.trainable and id(variable) not in kept:
            variable.trainable = False
    strategy = model.distribute_strategy.scope() if is_distributed(model) else nullcontext()
    with strategy:
        for layer, rank, scale, parts in plans:
            options: dict[str, Any] = {"parts": parts or None, "dropout_rate": dropout_rate}
            layer.enable_lora(rank, scale * rank, initial, **options)
    model.compiled = False  # an optimizer made before has other variables
    return model


def lora_layers(model: keras.Model) -> list[Dense]:
    """Lists the dense layers of a model that have a low-rank update."""
    return [layer for layer in dense_layers(model) if layer.lora_enabled]


def merge_lora(model: keras.Model) -> keras.Model:
    """Copies a model with its low-rank updates added to the kernels.

    Args:
        model: A model that `add_lora` changed; it stays as it is.

    Returns:
        A model of the same class and configuration, not compiled and all of it trainable, whose
        outputs differ from the old ones by rounding. A model without updates is returned itself.

    Raises:
        ValueError: If a kernel with an update is quantised: `dequantize` merges these.
    """
    layers = lora_layers(model)
    if not layers:
        return model
    quantized = [layer.path for layer in layers if layer.quantization_mode]
    if quantized:
        raise ValueError(
            f"The kernels of {quantized[0]} and others are quantised and cannot be merged exactly. "
            "`keras_vit.models.dequantize(model)` merges into float kernels; `model.save` "
            "quantises the sum again."
        )
    return clone(model, change_config(model.get_config(), float_config), float_values)


def dense_layers(model: keras.Model) -> Iterator[Dense]:
    """Yields the dense layers of a model's blocks."""
    for block in flatten_layers(model):
        if isinstance(block, TransformerBlock):
            yield from (layer for layer in flatten_layers(block) if isinstance(layer, Dense))


def _choose(model: keras.Model, targets: tuple[str, ...]) -> list[tuple[Dense, tuple[bool, ...]]]:
    """The layers that targets name, each with the parts that have an update of their own."""
    layers = list(dense_layers(model))
    if not layers:
        raise ValueError(
            f"The model {model.name!r} has no `TransformerBlock`, whose products get the updates."
        )
    names = {name for names, _ in _PRODUCTS.values() for name in names} | {*_PARTS, ALL_LINEAR}
    unknown = [target for target in targets if target not in names]
    parts = {_PARTS[target] for target in targets if target in _PARTS}
    if unknown or not targets or (parts and {"qkv", ALL_LINEAR} & set(targets)):
        raise ValueError(
            "`targets` must be 'all-linear', or names of products: 'qkv', or one or more of "
            "'query', 'key', 'value'; 'attention_output', 'mlp_hidden', 'mlp_output'. Received: "
            f"{', '.join(map(repr, targets)) or 'none'}."
        )
    missing = [x for x in targets if not any(_is_target(layer, x) for layer in layers)]
    if missing:
        there = sorted({"/".join(layer.path.split("/")[-2:]) for layer in layers})
        raise ValueError(
            f"The blocks of {model.name!r} have no {', '.join(map(repr, missing))}. Their products "
            f"are {', '.join(there)}."
        )
    found = [layer for layer in layers if any(_is_target(layer, x) for x in targets)]
    return [(layer, _chosen_parts(layer, parts)) for layer in found]


def _is_target(layer: Dense, target: str) -> bool:
    """Whether a target names a product, or a part of it."""
    names, units = _product_of(layer)
    is_part = target in _PARTS and _PARTS[target] in units
    return is_part or target in names or target == ALL_LINEAR


def _chosen_parts(layer: Dense, parts: set[int]) -> tuple[bool, ...]:
    """The parts of a product that get an update of their own; none is one update of all."""
    _, units = _product_of(layer)
    return tuple(part in parts for part in units) if parts and len(units) > 1 else ()


def _product_of(layer: Dense) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return next((x for product, x in _PRODUCTS.items() if layer.path.endswith(product)), ((), ()))


def _variables_of(model: keras.Model, names: Iterable[str]) -> set[int]:
    """The variables of layers with these names, by their identity."""
    found: set[int] = set()
    for name in names:
        pattern = re.compile(rf"{re.escape(name)}(_.*)?")
        layers = [x for x in flatten_layers(model) if x is not model and pattern.fullmatch(x.name)]
        if not layers:
            raise ValueError(
                f"`trainable` names layers, and {model.name!r} has no layer {name!r}. Its last "
                f"layers are {', '.join(x.name for x in model.layers[-3:])}."
            )
        found.update(id(v) for layer in layers for v in layer.variables)
    return found
