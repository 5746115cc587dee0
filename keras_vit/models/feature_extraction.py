"""Features of a model: outputs of inner layers by name, as tokens or as feature maps."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.layer import Tensor
from keras_vit.models.attention import (
    AttentionScores,
    Geometry,
    check_whole,
    geometry_of,
    rotation_of,
)
from keras_vit.models.graph import (
    Chain,
    calls_of,
    find_blocks,
    find_layer,
    head_input,
    in_one_graph,
    is_headless,
    single_input,
    token_norm,
    walk_layers,
)
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import call_of

_SCORES = "attention_scores"
_HEAD_INPUTS = ("pooling", "encoder_norm", "pre_logits")


def features_of(model: keras.Model, names: Sequence[str] | str, grids: bool = False) -> Model:
    """Builds a model from the same images to the outputs of inner layers, by their names.

    It shares layers and weights with `model`, and can be saved and exported like any other. Every
    layer runs once, also in models inside models, so that a `tf.GradientTape` finds the gradient of
    a later output with respect to an earlier one, as Grad-CAM needs it: of tokens, not of `grids`
    or attention weights, which nothing follows. With `pooling="token"` the patches after the last
    block have none: take the block before. Of a layer or model that is called several times, the
    output is that of its first call.

    Args:
        model: A functional or sequential model; layers of nested models are found too.
        names: Names of layers, such as `"block_5"` or `"encoder_norm"`; or `"model/layer"`, if
            several models have a layer of that name. `"block_5/attention_scores"` gives the
            attention weights of a block.
        grids: Whether to return patch tokens as feature maps of shape `(B, rows, columns, D)`,
            without the tokens before the patches.

    Returns:
        A `keras_vit.Model` to a dict `{name: output}`.

    Raises:
        ValueError: If no layer or several layers have a name (the message lists similar names),
            if the layer is in a subclassed model, which has no graph, or if grids or attention are
            requested and tokens were merged.

    Example:

    >>> stages = keras_vit.features_of(model, ["block_3", "encoder_norm"], grids=True)
    >>> stages.predict(images)["block_3"].shape
    (8, 14, 14, 768)
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise ValueError("`names` must name at least one layer. Received: an empty list.")
    found = in_one_graph(model, [find_output(model, name) for name in names])
    outputs: dict[str, Any] = dict(zip(names, found, strict=True))
    if grids:
        check_whole(model, find_blocks(model)[1])
        geometry = geometry_of(model)
        outputs = {name: as_grid(x, geometry) for name, x in outputs.items()}
    return Model(single_input(model), outputs, name=f"{model.name}_features")


def stage_names(model: keras.Model) -> list[str]:
    """Lists the names that `features_of` accepts for a model, from input to output."""
    names = []
    for chain, layer in walk_layers(model):
        if isinstance(layer, keras.layers.InputLayer):
            continue
        path = "/".join([*(outer.name for outer in chain[1:]), layer.name])
        names.append(path)
        if isinstance(layer, TransformerBlock):
            names.append(f"{path}/{_SCORES}")
    return names


def head_input_stage(model: keras.Model) -> str:
    """Finds the name of the layer whose output is the input of the head.

    Of a model of this package without a head, it is the layer that gives the output.

    Args:
        model: As for `features_of`.

    Returns:
        A name of `stage_names`.

    Raises:
        ValueError: If there is no such layer.
    """
    tensor = head_input(model)
    if tensor is not None and call_of(tensor)[0] in model.layers:
        return call_of(tensor)[0].name
    if is_headless(model):
        return call_of(model.outputs[0])[0].name
    names = [name for name in stage_names(model) if name.split("/")[-1] in _HEAD_INPUTS]
    if not names:
        raise ValueError(
            f"The model {model.name!r} has no layer {' or '.join(_HEAD_INPUTS)}. Pass `stage`, "
            f"one of {', '.join(stage_names(model))}."
        )
    return names[-1]


def token_stage(model: keras.Model) -> str:
    """Finds the name of the layer whose output is the tokens before pooling.

    It is the norm after the last block, or the last block, if no norm follows it or that norm
    follows the pooling.

    Args:
        model: As for `features_of`.

    Returns:
        A name of `stage_names`.

    Raises:
        ValueError: If the model has no transformer blocks.
    """
    if find_layer(model, TransformerBlock) is None:
        raise ValueError(
            f"The model {model.name!r} has no transformer blocks, and so no tokens before pooling. "
            f"Pass `stage`, one of {', '.join(stage_names(model))}."
        )
    chain, blocks = find_blocks(model)
    last = token_norm(chain[-1]) or blocks[-1]
    return "/".join([*(outer.name for outer in chain[1:]), last.name])


def as_grid(x: Tensor, geometry: Geometry) -> Tensor:
    """Reshapes patch tokens `(B, T, D)` to `(B, rows, columns, D)`; returns others unchanged."""
    rows, columns = geometry.grid
    prefix = x.shape[1] - rows * columns if len(x.shape) == 3 else -1
    if not 0 <= prefix <= geometry.num_prefix_tokens:
        return x
    return ops.reshape(x[:, prefix:], (-1, rows, columns, x.shape[2]))


def find_output(model: keras.Model, name: str) -> tuple[Chain, Tensor]:
    """Finds the output of a layer by name, and the models that contain it."""
    path, _, last = name.rpartition("/")
    layer_name = path if last == _SCORES else name
    matches = [
        (chain, layer)
        for chain, layer in walk_layers(model)
        if f"/{'/'.join([*(m.name for m in chain), layer.name])}".endswith(f"/{layer_name}")
    ]
    if len(matches) != 1:
        raise ValueError(_name_error(model, name, matches))
    chain, layer = matches[0]
    call = calls_of(chain[-1])[layer]
    if last == _SCORES:
        check_whole(model, [layer])
        scores = AttentionScores(layer, name=f"{layer.name}_{_SCORES}")
        return chain, scores(call.input_tensors[0], rotation_of(call))
    return chain, call.outputs[0]


def _name_error(model: keras.Model, name: str, matches: list[tuple[Chain, keras.Layer]]) -> str:
    if matches:
        paths = ["/".join([*(m.name for m in chain), x.name]) for chain, x in matches]
        return f"{name!r} is the name of {len(matches)} layers: {', '.join(paths)}. Pass one path."
    names = stage_names(model)
    nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
    return f"The model {model.name!r} has no layer {name!r}. {advice}All: {', '.join(names)}."
