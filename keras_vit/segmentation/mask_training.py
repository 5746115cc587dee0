"""Training of EoMT: predictions before every masked block, and mask annealing."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np

from keras_vit.checks import check_positive
from keras_vit.layers.queries import QueryMask
from keras_vit.layers.rotary import RotaryTable
from keras_vit.models.attention import geometry_of
from keras_vit.models.graph import calls_of, find_blocks, single_input
from keras_vit.segmentation.eomt import decode
from keras_vit.train.mask_loss import MaskLoss
from keras_vit.train.mask_trainer import MaskTrainer


def build_mask_trainer(
    model: keras.Model, num_steps: int, mask_loss: MaskLoss | None = None
) -> MaskTrainer:
    """Builds the model that trains one of EoMT, whose weights it shares.

    In training, the queries attend to the patches inside their predicted masks alone, with a
    probability that falls from 1 to 0, block after block between a sixth and five sixths of the
    training: the schedule of github.com/tue-mps/eomt. `model` is without masks after it.

    Args:
        model: A model of `build_eomt` or of a checkpoint.
        num_steps: Steps of the whole training.
        mask_loss: The loss; `None` takes the settings of the checkpoint.

    Returns:
        A `MaskTrainer`, which trains with plain `compile(optimizer)` and `fit(images, y)`.

    Raises:
        ValueError: If the model is none of EoMT, or has masked blocks.

    Example:

    >>> trainer = keras_vit.segmentation.build_mask_trainer(model, num_steps=1000)
    >>> trainer.compile("adamw")
    >>> trainer.fit(images, {"masks": masks, "labels": labels})  # doctest: +SKIP
    """
    check_positive("num_steps", num_steps)
    layers, calls = {layer.name: layer for layer in model.layers}, calls_of(model)
    if "queries" not in layers or any(isinstance(layer, QueryMask) for layer in calls):
        raise ValueError(
            "Training needs a model of EoMT without masked attention. Received: "
            f"{model.name!r}. Load a checkpoint whose attn_mask_probs are 0, or build a model by "
            "`build_eomt`."
        )
    if mask_loss is None:
        stated = (getattr(model, "published", None) or {}).get("config", {})
        names = [field.name for field in dataclasses.fields(MaskLoss)]
        mask_loss = MaskLoss(**{name: stated[name] for name in names if name in stated})
    x, blocks = calls[layers["queries"]].outputs[0], find_blocks(model)[1]
    first = next(i for i, block in enumerate(blocks) if calls[block].input_tensors[0] is x)
    blocks, grid = blocks[first:], geometry_of(model).grid
    tables = [layer for layer in calls if isinstance(layer, RotaryTable)]
    rotation = calls[layers["query_rotary_table"]].outputs if tables else ()
    begins = np.linspace(num_steps / 6, num_steps * 4 / 6, len(blocks)).round().astype(int)
    spans = [(int(begin), int(begin) + max(num_steps // 6, 1)) for begin in begins]
    masks = [QueryMask(x.shape[1], grid, span, name=f"query_mask_{index}")
             for index, span in enumerate(spans)]  # fmt: skip
    *before, last = decode(layers, blocks, x, rotation, masks, grid)
    outputs = dict(last)
    for block, predictions in zip(blocks, before, strict=True):
        outputs |= {f"{key}_before_{block.name}": value for key, value in predictions.items()}
    name = f"{model.name}_trainer"
    return MaskTrainer(single_input(model), outputs, mask_loss=mask_loss, name=name)
