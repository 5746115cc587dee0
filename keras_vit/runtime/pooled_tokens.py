"""The tokens of a block that are read after it: often the class token alone."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.runtime.private_names import every_call_of


def pooled_tokens(model: keras.Model) -> dict[keras.Operation, int]:
    """Finds the blocks of a functional model whose first tokens alone reach its outputs.

    With `pooling="token"` that is the last block. Layers tell by an attribute: blocks that can
    compute some tokens alone (`takes_num_queries`), norms (`by_token`) and poolings
    (`num_tokens_read`). Any other layer reads all tokens, and so does an output of the model. A
    derived class must define the attribute itself, because its `call` can differ.

    Args:
        model: A functional model. Models inside it have blocks of their own.

    Returns:
        Blocks, and how many of the first tokens of each are read.
    """
    operations = every_call_of(model)
    blocks = [x for x in operations if _tells(x, "takes_num_queries")]
    if not blocks:
        return {}
    outputs = {id(tensor) for tensor in model.outputs}
    readers: dict[int, list[tuple[Any, Any]]] = {}
    for operation, calls in operations.items():
        for call in calls:
            for tensor in call.input_tensors:
                readers.setdefault(id(tensor), []).append((operation, call.outputs[0]))

    def count_read(tensor: Any) -> int | None:
        """Number of first tokens of a tensor that are read; `None` is all."""
        if id(tensor) in outputs:
            return None
        largest = 0
        for layer, after in readers[id(tensor)]:
            passes = _tells(layer, "by_token")
            count = count_read(after) if passes else _tells(layer, "num_tokens_read")
            if count is None:
                return None
            largest = max(largest, count)
        return largest

    counts = {x: count_read(operations[x][0].outputs[0]) for x in blocks if len(operations[x]) == 1}
    return {block: count for block, count in counts.items() if count is not None}


def _tells(layer: keras.Operation, name: str) -> Any:
    """An attribute that the class of a layer defines itself, or `None`."""
    return getattr(layer, name) if name in vars(type(layer)) else None
