"""Our models through `predict`, `fit`, a compiled call and SavedModel; keras-hub's through two."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from contestants.worker import CLASSES, Run, random_batch, repeat, serve

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
# What the files of one precision are made of.
SAVED_MODELS: dict[str, dict[str, Any]] = {
    "saved_model": {},
    "saved_model_xla": {"jit_compile": True},
}
LOOSE = 100.0  # the suite compares answers itself


def load(cell: dict) -> Run:
    import keras
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != cell["threads"]:
        tf.config.threading.set_intra_op_parallelism_threads(cell["threads"])
        tf.config.threading.set_inter_op_parallelism_threads(cell["threads"])
    if not cell["who"].startswith("keras_hub"):
        import keras_vit

        keras_vit.runtime.keep_buffers()  # before TensorFlow's first operation
    images, labels = random_batch(cell)
    if cell["interface"].startswith("saved_model"):
        return call_saved_model(cell, images)
    keras.backend.clear_session()
    keras.config.set_dtype_policy(POLICIES[cell["precision"]])
    build = build_keras_hub if cell["who"].startswith("keras_hub") else build_ours
    model = build(cell)
    if cell["interface"].startswith("call"):
        return call_compiled(model, images, cell["interface"] == "call_xla")
    rule = keras_vit.train.AdamW if cell.get("own_optimizer") else keras.optimizers.AdamW
    model.compile(
        rule(1e-4, weight_decay=0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=cell.get("jit_compile", "auto"),
    )
    if cell["interface"] == "fit":
        return fit(model, images, labels)
    return repeat(lambda: model.predict(images, batch_size=len(images), verbose=0))


def fit(model, images, labels) -> Run:
    """Steps of one `fit`, on one batch that is in memory."""
    import numpy as np
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # see docs/performance.md
    batches = tf.data.Dataset.from_tensors((images, labels)).repeat().with_options(options)

    def run(calls: int):
        history = model.fit(batches, steps_per_epoch=calls, verbose=0)
        return np.array(history.history["loss"])

    return run


def call_compiled(model, images, xla: bool) -> Run:
    import tensorflow as tf

    function = tf.function(lambda pixels: model(pixels, training=False), jit_compile=xla)
    return repeat(lambda: function(tf.constant(images)).numpy())


def call_saved_model(cell: dict, images) -> Run:
    import tensorflow as tf

    path = pathlib.Path(cell["ours"], f"{cell['interface']}_{cell['precision']}", "1")
    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures["pixels"]

    def step(loaded=loaded):  # the variables live as long as what was loaded
        return signature(tf.constant(images))["logits"].numpy()

    return repeat(step)


def build_ours(cell: dict):
    """Ours with timm's weights where they are."""
    import keras_vit

    theirs = pathlib.Path(cell["timm"], "timm.safetensors")
    return keras_vit.create_model(
        cell["variant"],
        weights=theirs if theirs.exists() else None,
        classes=CLASSES,
        input_shape=(cell["size"], cell["size"], 3),
    )


def build_keras_hub(cell: dict):
    import keras
    import keras_hub

    config = cell["config"]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(cell["size"], cell["size"], 3),
        patch_size=config["patch_size"],
        num_layers=config["depth"],
        num_heads=config["num_heads"],
        hidden_dim=config["width"],
        mlp_dim=config["mlp_dim"],
        layer_norm_epsilon=1e-6,
    )
    logits = keras.layers.Dense(CLASSES, dtype="float32")(backbone.output[:, 0])
    return keras.Model(backbone.input, logits)


def export(cell: dict) -> dict:
    """Writes our files, of the weights that timm's have, and counts the model."""
    folder = pathlib.Path(cell["ours"])
    folder.mkdir(parents=True, exist_ok=True)
    describe(cell, folder / "description.json")
    model = build_ours(cell) if set(cell["files"]) != {"description.json"} else None
    failed = []
    for name in set(cell["files"]) - {"description.json"}:
        try:
            write(name, model, folder / name, cell)
        except Exception as error:  # the others are written all the same
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise RuntimeError("; ".join(failed))
    return {}


def describe(cell: dict, path: pathlib.Path) -> None:
    """What contestants without our package need to know of a model, and its counts."""
    import keras_vit
    import keras_vit.evaluate

    size = (cell["size"], cell["size"])
    config = keras_vit.find_config(cell["variant"])
    assert isinstance(config, keras_vit.ViTConfig)
    config = dataclasses.replace(config, image_size=size, classes=CLASSES)
    description = {
        "config": {
            "patch_size": config.patch_size[0],
            "width": config.width,
            "depth": config.depth,
            "num_heads": config.block.num_heads,
            "mlp_dim": config.block.mlp_dim,
        },
        "macs": keras_vit.evaluate.count_macs(config),
        "training_macs": keras_vit.evaluate.count_training_macs(config),
    }
    path.write_text(json.dumps(description))


def write(name: str, model, path: pathlib.Path, cell: dict) -> None:
    """One file, by its name: `saved_model_float32`, `float32.onnx`, `float32_8.tflite`."""
    import keras_vit

    options: dict[str, Any] = {"images": random_batch({**cell, "batch": 1})[0], "tolerance": LOOSE}
    stem = path.stem
    if name.endswith(".onnx"):
        keras_vit.export_onnx(model, path, precision=stem, **options)
    elif name.endswith(".tflite"):
        precision, batch = stem.split("_")
        if precision == "int8":
            options["calibration"] = list(options["images"])
        keras_vit.export_litert(model, path, precision, batch_size=int(batch), **options)
    else:
        kind, _, precision = name.rpartition("_")
        keras_vit.export_saved_model(
            model, path, precision=precision, **options, **SAVED_MODELS[kind]
        )


if __name__ == "__main__":
    serve(load, export)
