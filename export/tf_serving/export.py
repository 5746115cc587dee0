"""Exports a model for TensorFlow Serving, with the server's configuration.

    python export/tf_serving/export.py model.keras --name pets --labels labels.txt --to serving

Writes `serving/pets/1`, `serving/models.config` and `serving/batching.config`, which `compose.yaml`
in this folder serves. Takes seconds for a B/16 on two cores, including the check.
"""

from __future__ import annotations

import argparse
import pathlib

import keras

import keras_vit

BATCH_SIZES = (1, 2, 4, 8, 16, 32)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .keras file")
    parser.add_argument("--name", default="model", help="name of the model for clients")
    parser.add_argument("--labels", help="text file with one class per line")
    parser.add_argument("--to", default="serving", help="directory of the models")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--jit-compile",
        action=argparse.BooleanOptionalAction,
        help="let XLA compile the model in the server; default: in float32",
    )
    options = parser.parse_args(arguments)

    compiles = options.jit_compile
    path = options.labels and pathlib.Path(options.labels)
    labels = path.read_text(encoding="utf-8-sig").splitlines() if path else None
    report = keras_vit.export_saved_model(
        keras.saving.load_model(options.model),
        pathlib.Path(options.to) / options.name,
        labels=labels,
        precision=options.precision,
        warmup_batch_sizes=BATCH_SIZES,
        jit_compile=options.precision == "float32" if compiles is None else compiles,
    )
    # /models is where compose.yaml mounts the directory.
    base_paths = {options.name: f"/models/{options.name}"}
    keras_vit.export.write_server_config(options.to, base_paths, BATCH_SIZES)
    print(report)


if __name__ == "__main__":
    main()
