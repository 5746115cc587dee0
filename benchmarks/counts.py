"""What a small model is made of, in counts that are the same on every machine.

    python benchmarks/counts.py            what has changed since docs/benchmarks/counts.json
    python benchmarks/counts.py --write    makes that file anew, on purpose

Times say how fast a machine is, and jump; these numbers say what it is asked to do: operations of
the traced graphs, by kind, for a block and for the rest of the model; kernels and copies that XLA
compiles for one block; operators of exported files, and their bytes beyond the weights; how often
a step is traced. `tests/benchmarks/test_counts.py` compares them on every run of the tests.

The numbers belong to the versions of the libraries that are written beside them. With those, a
test fails on any change: on more, because something became slower, and on less, so that the gain
is written down and cannot be lost again unseen. With others, only sums count, and only a growth
by more than a quarter fails.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import pathlib
import re
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from machine import require

import keras_vit

FILE = pathlib.Path(__file__).parents[1] / "docs/benchmarks/counts.json"
LIBRARIES = ("tensorflow", "keras", "tf2onnx", "onnx")
SIZE = {"patch_size": 8, "width": 32, "num_heads": 4, "mlp_dim": 64, "image_size": 32}
# Nodes that take no time.
_FREE = {"Const", "Identity", "IdentityN", "NoOp", "Placeholder", "StopGradient"}
_FREE_IN_XLA = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple"}
# Names of nodes are numbered through all models of a process, and so take more or fewer bytes.
_BYTES_SLACK = 0.03
_OTHER_VERSIONS_SLACK = 0.25


def build(depth, policy="float32"):
    """A ViT of so many blocks, small but with every operation of a large one.

    Its weights are random throughout: converters leave out what adds zeros.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = keras_vit.build_vit(keras_vit.make_config(**SIZE, depth=depth, classes=10))
    finally:
        keras.config.set_dtype_policy(before)
    random = np.random.default_rng(0)
    model.set_weights([random.normal(0, 0.2, weight.shape) for weight in model.weights])
    return model


def specs(model, batch=None):
    """Types of a batch of images and labels."""
    images = tf.TensorSpec((batch, *model.input_shape[1:]))
    return images, tf.TensorSpec((batch,), tf.int32)


def per_block(count):
    """Counts of one block, and of what is there once, from models of one and of two blocks."""
    one, two = (collections.Counter(count(depth)) for depth in (1, 2))
    block, rest = collections.Counter(two), collections.Counter(one)
    block.subtract(one)
    rest.subtract(block)
    parts = {"block": block, "rest": rest}
    return {
        f"{part}/{kind}": number
        for part, counts in parts.items()
        for kind, number in sorted(counts.items())
        if number
    }


def operations(concrete):
    """Kinds of the nodes that a call of a concrete function runs, and how many there are."""
    found, open_ends = {}, [t.op for t in concrete.graph.outputs] + concrete.graph.control_outputs
    while open_ends:
        operation = open_ends.pop()
        if operation.name not in found:
            found[operation.name] = operation.type
            open_ends += [tensor.op for tensor in operation.inputs] + operation.control_inputs
    kinds = list(found.values())
    for function in concrete.graph.as_graph_def().library.function:
        kinds += [node.op for node in function.node_def]
    return collections.Counter(kind for kind in kinds if kind not in _FREE)


def inference(policy="float32"):
    """Nodes of the graph that predicts."""

    def count(depth):
        model = build(depth, policy)
        function = tf.function(lambda images: model(images, training=False), autograph=False)
        return operations(function.get_concrete_function(specs(model)[0]))

    return per_block(count)


def half_inference():
    """The same in mixed bfloat16, for its casts."""
    return inference("mixed_bfloat16")


def compiled_for_training(depth):
    """A model with a loss and the plainest optimizer."""
    model = build(depth)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def training():
    """Nodes of the graph of a training step: forward, backward, update."""

    def count(depth):
        model = compiled_for_training(depth)
        function = tf.function(lambda *data: model.train_step(data), autograph=False)
        return operations(function.get_concrete_function(*specs(model)))

    return per_block(count)


def kernels(function, *arguments):
    """What XLA compiles: kernels by kind, and copies and transposes inside them too."""
    function = tf.function(function, jit_compile=True, autograph=False)
    text = function.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
    entry = text[text.index("\nENTRY ") :]
    counts = {f"kernel/{kind}": n for kind, n in opcodes(entry).items() if kind not in _FREE_IN_XLA}
    anywhere = opcodes(text)
    counts |= {f"anywhere/{kind}": anywhere[kind] for kind in ("copy", "transpose")}
    return dict(sorted(counts.items()))


def opcodes(text):
    """Kinds of the instructions of a program of XLA, in its own notation."""
    lines = re.findall(r"^\s+(?:ROOT )?%[^\s]+ = (.*)$", text, flags=re.MULTILINE)
    # After the type, which may be a tuple of types with layouts and comments in them.
    words = (re.search(r"(?:^|[\s)}\]])([a-z][a-z0-9-]*)\(", line) for line in lines)
    return collections.Counter(word.group(1) for word in words if word)


def compiled_inference():
    """XLA's kernels for the prediction of a model of one block."""
    model = build(1)
    return kernels(lambda x: model(x, training=False), tf.zeros(specs(model, 4)[0].shape))


def compiled_training():
    """XLA's kernels for a training step of a model of one block."""
    model = compiled_for_training(1)
    data = [tf.zeros(spec.shape, spec.dtype) for spec in specs(model, 4)]
    return kernels(lambda *data: model.train_step(data), *data)


def traces():
    """How often steps are traced by two calls of `fit` and `predict`, with a smaller last batch."""
    model = compiled_for_training(1)
    counts: collections.Counter[str] = collections.Counter()
    for name in ("train_step", "test_step", "predict_step"):
        setattr(model, name, _counted(getattr(model, name), name, counts))
    images, labels = np.zeros((10, *model.input_shape[1:]), "float32"), np.zeros(10, "int32")
    for _ in range(2):
        model.fit(
            images, labels, batch_size=4, epochs=2, validation_data=(images, labels), verbose=0
        )
        model.predict(images, batch_size=4, verbose=0)
    return dict(counts)


def _counted(function, name, counts):
    def run(*arguments):
        counts[name] += 1  # in Python, and so once a trace
        return function(*arguments)

    return run


def onnx():
    """Operators of the ONNX file."""

    def count(depth):
        with tempfile.TemporaryDirectory() as folder:
            path = keras_vit.export_onnx(build(depth), f"{folder}/model.onnx").path
            return onnx_operators(path)

    return per_block(count)


def onnx_operators(path):
    """Kinds of the nodes of an ONNX file."""
    import onnx

    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


def litert():
    """Operators of the LiteRT file of two blocks, and its bytes beyond the weights."""
    model = build(2)
    with tempfile.TemporaryDirectory() as folder:
        return litert_operators(
            keras_vit.export_litert(model, f"{folder}/model", batch_size=1).path, model
        )


def litert_operators(path, model):
    """Kinds of the operators of a LiteRT file, and its bytes beyond the weights."""
    from ai_edge_litert.interpreter import Interpreter

    operators = Interpreter(model_path=str(path))._get_ops_details()
    counts = collections.Counter(operator["op_name"] for operator in operators)
    size = pathlib.Path(path).stat().st_size
    return {**dict(sorted(counts.items())), "bytes": size - 4 * model.count_params()}


def saved_model():
    """Nodes and bytes of the SavedModel of two blocks."""
    model = build(2)
    labels = [str(index) for index in range(10)]
    with tempfile.TemporaryDirectory() as folder:
        return saved_model_size(keras_vit.export_saved_model(model, folder, labels).path, model)


def saved_model_size(path, model):
    """Nodes in all functions of a SavedModel, and the bytes of its files beyond the weights."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (path / "saved_model.pb").read_bytes()
    graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def
    weights = sum(file.stat().st_size for file in path.glob("variables/*"))
    return {
        "nodes": len(graph.node) + sum(len(f.node_def) for f in graph.library.function),
        "graph bytes": len(content),
        "variables bytes": weights - 4 * model.count_params(),
    }


GROUPS = {
    "inference": inference,
    "half_inference": half_inference,
    "training": training,
    "compiled_inference": compiled_inference,
    "compiled_training": compiled_training,
    "traces": traces,
    "onnx": onnx,
    "litert": litert,
    "saved_model": saved_model,
}


def versions():
    """Versions of the libraries that decide the counts, `None` where one is not installed."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def changes(group, found, committed=None):
    """What has changed in one group of counts: a line each, none where nothing has.

    Args:
        group: A name of `GROUPS`.
        found: Its counts now.
        committed: What the file holds, `{"versions": ..., "counts": {group: counts}}`.
    """
    committed = committed or json.loads(FILE.read_text())
    before = committed["counts"][group]
    if committed["versions"] != versions():
        before, found = sums(before), sums(found)
        return [
            f"{group}: {name} grew from {before[name]} to {found[name]}, with {versions()} in "
            f"place of {committed['versions']}."
            for name in before
            if found.get(name, 0) > before[name] * (1 + _OTHER_VERSIONS_SLACK)
        ]
    return [
        line(group, name, before.get(name, 0), found.get(name, 0))
        for name in sorted({*before, *found})
        if not is_same(name, before.get(name, 0), found.get(name, 0))
    ]


def is_same(name, before, after):
    """Whether a count is what it was."""
    return abs(after - before) <= (_BYTES_SLACK * before if name.endswith("bytes") else 0)


def line(group, name, before, after):
    """A changed count in words."""
    if after > before:
        return f"{group}: {name} grew from {before} to {after}."
    keep = "keep it, python benchmarks/counts.py --write."
    return f"{group}: {name} shrank from {before} to {after}: {keep}"


def sums(counts):
    """Counts added up: of bytes, and of all else that has the same first part of its name."""
    total: collections.Counter[str] = collections.Counter()
    for name, number in counts.items():
        total[name if name.endswith("bytes") else name.rpartition("/")[0] or "all"] += number
    return dict(total)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"rewrite {FILE.name}")
    options = parser.parse_args()
    require("onnxruntime", "tf2onnx", "ai-edge-litert")
    counts = {name: count() for name, count in GROUPS.items()}
    lines = []
    if FILE.exists():
        lines = [text for name in GROUPS for text in changes(name, counts[name])]
        print("\n".join(lines or ["Nothing has changed."]))
    if options.write:
        FILE.write_text(json.dumps({"versions": versions(), "counts": counts}, indent=1) + "\n")
        lines = []
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
