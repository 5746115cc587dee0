"""Model repositories of NVIDIA Triton and OpenVINO Model Server, from our own exports."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.checks import check_choice, check_positive
from keras_vit.export.formats import FORMATS, SERVERS
from keras_vit.export.inference import check_labels, prepare
from keras_vit.export.runners import Runner
from keras_vit.export.search import time_in_turns
from keras_vit.export.serving import check_batch_sizes, encode_png, golden_image
from keras_vit.export.verify import ExportReport
from keras_vit.files import local_or_remote, publish_version, write_atomically, write_text
from keras_vit.reading import read_json
from keras_vit.runtime.processors import count_cores

_SIGNATURE = "tolerant"  # an unreadable image does not fail the batch, which clients share
_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "bool": "BOOL", "object": "STRING"}
_PAYS = 0.95  # of the highest speed; a larger batch is not worth the wait


def export_for_server(
    model: keras.Model,
    path: str | os.PathLike[str],
    server: str,
    format: str | None = None,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    batch_timeout_micros: int = 2000,
    **options: Any,
) -> ExportReport:
    """Exports a model into the repository of a model server, with its configuration.

    The last part of `path` is the name of the model, and its folder is the repository of all
    models. The export goes into a numbered version, as `PATH/1`, and is compared with the model. It
    is then timed here in each batch size, in the runtime of its format, not in the server:
    `PATH/README.md` has the table.

    - `"triton"` (NVIDIA Triton Inference Server): `PATH/config.pbtxt` with dynamic batching,
      warm-up in every batch size, and `PATH/labels.txt`. Requests wait for others only if a larger
      batch was faster: the preferred batch size is the smallest within 5 % of the highest speed.
      The format `"onnx"` takes `pixels`. `"saved_model"` takes `image_bytes`, encoded images, by
      its signature `tolerant`; Triton 25.02 is the last with TensorFlow.
    - `"ovms"` (OpenVINO Model Server): an entry of the model in `config.json` of the repository.
      Other entries are kept. It computes in float32, as in the check. This server merges no
      requests.

    Args:
        model: A functional model, as for the export of the format.
        path: Directory of the model in the repository, on a local disk.
        server: `"triton"` or `"ovms"`.
        format: One of `SERVERS`: ONNX or SavedModel for Triton, OpenVINO's for its server; `None`
            takes the first.
        batch_sizes: Batch sizes that are timed and warmed up, in ascending order; the last is the
            largest batch of Triton.
        batch_timeout_micros: Longest wait of a request for others in Triton, in microseconds.
        **options: Arguments of the export, such as `precision`, `labels` and `images`.

    Returns:
        The `ExportReport` of the export, with the path of the version.

    Raises:
        OSError: If `path` cannot be written.
        ValueError: If a name or number is not as described, `path` is remote, `config.json` is no
            configuration of the server, or the model cannot be exported.
        ExportMismatchError: If the outputs differ from the model's. No version is left then.

    Example:

    >>> report = keras_vit.export.export_for_server(model, "serving/pets", "triton", labels=names)
    """
    check_choice("server", server, tuple(SERVERS))
    format = SERVERS[server][0] if format is None else format
    if format not in SERVERS[server]:
        raise ValueError(
            f"Formats of the server {server!r}: {', '.join(SERVERS[server])}. Received: {format!r}."
        )
    sizes = check_batch_sizes("batch_sizes", batch_sizes)
    check_positive("batch_timeout_micros", batch_timeout_micros)
    base = local_or_remote(path)
    if isinstance(base, str):
        raise ValueError(
            f"A model repository is written to a local disk. Received: {base!r}. Copy it there."
        )
    base = base.absolute()
    listed = _read_config(base.parent) if server == "ovms" else {}
    inference = prepare(model, "float32", options.get("preprocessing"), options.get("activation"))
    labels = check_labels(options.get("labels"), inference.classes, model)
    image = golden_image(inference)
    encoded = encode_png(image) if format == "saved_model" else None
    with write_atomically(base / "version") as unfinished:
        unfinished.mkdir()
        file = unfinished / _file(format)
        if format == "saved_model":
            report = FORMATS[format].export(model, unfinished, version=0, **options)
            (unfinished / "0").rename(file)
        else:
            report = FORMATS[format].export(model, file, **options)
        signature = () if encoded is None else (_SIGNATURE,)
        runner = FORMATS[format].load(file, *signature)
        example = image if encoded is None else np.array(encoded, object)
        speeds = {size: _speed(runner, np.stack([example] * size)) for size in sizes}
        if server == "triton":
            outputs = runner(example[None])
            wait = _preferred_size(speeds), batch_timeout_micros
            config = _triton_config(base.name, format, example, outputs, labels, sizes, *wait)
            write_text(base / "config.pbtxt", config)
            if labels:
                write_text(base / "labels.txt", "".join(f"{label}\n" for label in labels))
            if encoded is not None:  # a string has its length before it, in four bytes
                with write_atomically(base / "warmup/image_bytes", replace=True) as warmup:
                    warmup.write_bytes(struct.pack("<I", len(encoded)) + encoded)
        write_text(base / "README.md", _readme(base.name, server, format, report, speeds))
        version = publish_version(unfinished, base)
    if server == "ovms":
        write_text(base.parent / "config.json", _ovms_config(listed, base.name))
    return dataclasses.replace(report, path=version)


def _file(format: str) -> str:
    """The name of the exported file in a version; Triton's of a SavedModel is fixed."""
    return "model.savedmodel" if format == "saved_model" else FORMATS[format].file


def _speed(runner: Runner, images: np.ndarray) -> float:
    """Images per second of the fastest of several calls."""
    return time_in_turns({"file": runner}, images, seconds=0)["file"]


def _preferred_size(speeds: Mapping[int, float]) -> int:
    """The smallest batch size that is about as fast as the fastest."""
    return min(size for size, speed in speeds.items() if speed >= _PAYS * max(speeds.values()))


def _triton_config(
    name: str,
    format: str,
    example: np.ndarray,
    outputs: Mapping[str, np.ndarray],
    labels: Sequence[str],
    sizes: Sequence[int],
    preferred: int,
    batch_timeout_micros: int,
) -> str:
    """The text of `config.pbtxt`, a `ModelConfig` of Triton's `model_config.proto`."""
    takes_bytes = example.ndim == 0
    own_name = "image_bytes" if takes_bytes else "pixels"
    lines = [f"name: {_quoted(name)}", f'platform: "{FORMATS[format].platform}"']
    lines += [f"max_batch_size: {sizes[-1]}", f"input {{ {_tensor(own_name, example)} }}"]
    for output, values in sorted(outputs.items()):
        of_classes = labels and output in ("logits", "probabilities")
        label_file = ' label_filename: "labels.txt"' if of_classes else ""
        lines.append(f"output {{ {_tensor(output, values[0])}{label_file} }}")
    waits = f"preferred_batch_size: [{preferred}] max_queue_delay_microseconds: "
    wait = f"{waits}{batch_timeout_micros} " if preferred > 1 else ""
    lines.append(f"dynamic_batching {{ {wait}}}")
    data = f'input_data_file: "{own_name}"' if takes_bytes else "random_data: true"
    shape = f"data_type: {_type(example)} dims: {_dims(example)} {data}"
    for size in sizes:
        inputs = f'inputs {{ key: "{own_name}" value {{ {shape} }} }}'
        lines.append(f'model_warmup {{ name: "{size}" batch_size: {size} {inputs} }}')
    if format == "saved_model":
        value = f'value {{ string_value: "{_SIGNATURE if takes_bytes else "pixels"}" }}'
        lines.append(f'parameters {{ key: "TF_SIGNATURE_DEF" {value} }}')
    return "".join(f"{line}\n" for line in lines)


def _tensor(name: str, values: np.ndarray) -> str:
    """Name, type and shape of a tensor without its batch; a single value has no empty shape."""
    scalar = " reshape { shape: [] }" if values.ndim == 0 else ""
    return f"name: {_quoted(name)} data_type: {_type(values)} dims: {_dims(values)}{scalar}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _type(values: np.ndarray) -> str:
    return f"TYPE_{_TYPES[np.asarray(values).dtype.name]}"


def _dims(values: np.ndarray) -> str:
    return str(list(np.shape(values) or (1,)))


def _read_config(repository: pathlib.Path) -> dict[str, Any]:
    """Reads `config.json` of a repository of OpenVINO Model Server, if it is there."""
    path = repository / "config.json"
    if not path.exists():
        return {"model_config_list": []}
    config = read_json(path)
    entries = config.get("model_config_list") if isinstance(config, dict) else None
    named = isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("config"), dict) for entry in entries
    )
    if not named:
        raise ValueError(
            f"{str(path)!r} is no configuration of OpenVINO Model Server: it needs a list "
            '"model_config_list" of objects with "config". Choose another folder, or remove it.'
        )
    return config


def _ovms_config(config: dict[str, Any], name: str) -> str:
    """The text of `config.json` with an entry of the model in place of an older one."""
    entry = {
        "name": name,
        "base_path": name,  # relative to the file
        "target_device": "CPU",
        "model_version_policy": {"latest": {"num_versions": 1}},
        # OpenVINO's own choice is bfloat16 on processors that can, whatever the file has.
        "plugin_config": {"INFERENCE_PRECISION_HINT": "f32"},
    }
    others = [each for each in config["model_config_list"] if each["config"].get("name") != name]
    models = [*others, {"config": entry}]
    return json.dumps({**config, "model_config_list": models}, indent=1) + "\n"


_STARTS = {
    "triton": "tritonserver --model-repository=/models",
    "ovms": "ovms --config_path /models/config.json --rest_port 8000",
}


def _readme(
    name: str, server: str, format: str, report: ExportReport, speeds: Mapping[int, float]
) -> str:
    """The text of `README.md`: what is served, and at which speed."""
    first = speeds[min(speeds)]
    rows = [
        f"| {size} | {1e3 * size / speed:.1f} | {speed:.1f} | {speed / first:.2f} |"
        for size, speed in speeds.items()
    ]
    lines = [
        f"# {name}",
        "",
        f"{dataclasses.replace(report, path=_file(format))}",
        "",
        f"Speed of the newest version in {FORMATS[format].program}, in the process that exported "
        f"it, on {count_cores()} cores. The server was not run here; its own time and that of the "
        "network come on top, and its machine may differ.",
        "",
        "| images of a call | ms | images per second | of the first row |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Start the server with this folder's parent as `/models`: `{_STARTS[server]}`.",
        "",
    ]
    return "\n".join(lines)
