"""Attention as one operator of ONNX."""

from __future__ import annotations

from keras_vit.export.onnx_graph import Graph, rewrite

# The first version of ONNX's operators with `Attention`.
ATTENTION_OPSET = 23
_PRODUCTS = ("MatMul", ("Mul", "queries", "scale"), "keys")
_ATTENTION = ("MatMul", ("Softmax", _PRODUCTS), "values")
_BIASED_ATTENTION = ("MatMul", ("Softmax", ("Add", _PRODUCTS, "bias")), "values")
# How transposed keys, `(B, A, d, T)`, come about, and how keys `(B, A, T, d)` do of the same.
_KEY_ORDERS: dict[tuple[int, ...], tuple[int, ...]] = {
    (0, 2, 3, 1): (0, 2, 1, 3),
    (0, 1, 3, 2): (0, 1, 2, 3),
}


def fuse_attention(graph: Graph) -> None:
    """Makes one operator of scale, products, softmax and what is added before it, in place.

    ONNX Runtime 1.31 makes none by itself of a Vision Transformer's: its patterns have a mask of
    tokens, or no bias on queries, keys and values.
    """
    for pattern in (_ATTENTION, _BIASED_ATTENTION):
        rewrite(graph, pattern, _attention)


def _attention(graph: Graph, node, found: dict[str, str]):
    import onnx

    scale = graph.constants.get(found["scale"])
    transpose = graph.producers().get(found["keys"])
    order = _KEY_ORDERS.get(_order(transpose))
    if scale is None or scale.size != 1 or transpose is None or order is None:
        return None
    if "bias" in found and _is_of_keys(graph, found["bias"]):
        return None
    keys = f"{node.output[0]}/keys"
    inputs = [found["queries"], keys, found["values"]]
    return [
        onnx.helper.make_node(
            "Transpose", transpose.input, [keys], f"{keys}/transpose", perm=order
        ),
        onnx.helper.make_node(
            "Attention",
            [*inputs, found["bias"]] if "bias" in found else inputs,
            node.output,
            node.name,
            scale=float(scale.reshape(())),
            softmax_precision=onnx.TensorProto.FLOAT,
        ),
    ]


def _is_of_keys(graph: Graph, bias: str) -> bool:
    """Whether a bias is the logarithm of sizes, one a key.

    It has one row for all queries, which ONNX Runtime 1.31 does not take.
    """
    producers = graph.producers()
    node = producers.get(bias)
    while node is not None and node.op_type in ("Cast", "Reshape", "Squeeze", "Unsqueeze"):
        node = producers.get(node.input[0])
    return node is not None and node.op_type == "Log"


def _order(node) -> tuple[int, ...]:
    """The order of axes of a transpose; empty for other nodes."""
    if node is None or node.op_type != "Transpose":
        return ()
    return tuple(next(a.ints for a in node.attribute if a.name == "perm"))
