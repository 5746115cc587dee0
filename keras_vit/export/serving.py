"""Files for TensorFlow Serving: warm-up requests, server configuration, model card."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.decode import DECODED_CHANNELS
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import Inference
from keras_vit.export.verify import synthetic_images
from keras_vit.files import local_or_remote, write_text

EXTRA = "assets.extra"
_MAX_GOLDEN = 10**6  # values of an output, which take 20 bytes each in the card


def write_version_files(
    version: pathlib.Path,
    inference: Inference,
    labels: Sequence[str],
    precision: str,
    warmup_batch_sizes: Sequence[int],
    max_pixels: int,
) -> None:
    """Writes warm-up requests, labels and the model card into a SavedModel.

    Args:
        version: Directory of the SavedModel.
        inference: The exported model.
        labels: Class names in order.
        precision: Precision of the file.
        warmup_batch_sizes: Batch sizes of the requests that a server runs at start.
        max_pixels: Height times width above which the signatures refuse an encoded image.
    """
    extra = version / EXTRA
    extra.mkdir()
    image = golden_image(inference)
    encoded = encode_png(image)
    with tf.io.TFRecordWriter(os.fspath(extra / "tf_serving_warmup_requests")) as writer:
        for size in warmup_batch_sizes:
            if encoded is None:
                inputs = {"images": tf.make_tensor_proto(np.stack([image] * size), tf.float32)}
            else:
                inputs = {"image_bytes": tf.make_tensor_proto([encoded] * size, tf.string)}
            writer.write(prediction_log("serving_default", inputs))
    if labels:
        text = "".join(f"{label}\n" for label in labels)
        (extra / "labels.txt").write_text(text, encoding="utf-8", newline="\n")
    card = {**model_card(inference, "saved_model", precision, labels), "max_pixels": max_pixels}
    (extra / "model_card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")


def model_card(
    inference: Inference,
    format: str,
    precision: str,
    labels: Sequence[str],
    batch_size: int | None = None,
) -> dict[str, Any]:
    """Model card of an export: preprocessing, labels, versions and a golden input with outputs.

    Args:
        inference: The exported model.
        format: Format of the file, a key of `FORMATS`.
        precision: Precision of the file.
        labels: Class names in order.
        batch_size: Images per call that the file takes; `None` is any number.

    Returns:
        Plain values for JSON. `golden` holds a fixed image, as `png` in base64 if an image file can
        have its channels and as shape and bytes of `pixels` otherwise, and the outputs of
        `inference` for it, without maps of more than a million values; `tolerance` is the largest
        difference from them that the export allows.
    """
    image = golden_image(inference)
    outputs = {name: value[0] for name, value in inference.run(image[None]).items()}
    small = {name: value for name, value in outputs.items() if value.size <= _MAX_GOLDEN}
    encoded = encode_png(image)
    golden: dict[str, Any] = {"shape": list(image.shape)}
    if encoded is None:
        golden["pixels"] = base64.b64encode(image.astype("uint8").tobytes()).decode()
    else:
        golden["png"] = base64.b64encode(encoded).decode()
    calibration, abstention = inference.calibration, inference.abstention
    own_name = {"output": next(iter(inference.names))} if inference.names else {}
    return {
        "name": inference.model.name,
        "precision": precision,
        "tolerance": FORMATS[format].tolerances[precision],
        "input_shape": list(inference.input_shape),
        "batch_size": batch_size,
        "preprocessing": dataclasses.asdict(inference.preprocessing),
        "activation": inference.activation,
        "calibration": None if calibration is None else dataclasses.asdict(calibration),
        "abstention": None if abstention is None else abstention.thresholds(),
        "labels": list(labels),
        **own_name,
        "versions": library_versions(),
        "golden": {**golden, **{name: value.tolist() for name, value in small.items()}},
    }


def library_versions() -> dict[str, str]:
    """Versions of Keras and TensorFlow."""
    return {"keras": keras.__version__, "tensorflow": tf.__version__}


def write_server_config(
    directory: str | os.PathLike[str],
    base_paths: Mapping[str, str],
    allowed_batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    batch_timeout_micros: int = 2000,
) -> None:
    """Writes `models.config` and `batching.config` for `tensorflow_model_server`.

    A running server that polls a file never sees half of it: each replaces the old one at once.

    Args:
        directory: Output directory, created if it is missing.
        base_paths: Base path of each model as the server sees it, or its remote address, by model
            name.
        allowed_batch_sizes: Batch sizes to which the server pads, in ascending order; the last is
            the largest batch.
        batch_timeout_micros: Longest wait of a request for others, in microseconds.

    Raises:
        ValueError: If the batch sizes are not ascending, or a path is not absolute.
    """
    sizes = check_batch_sizes("allowed_batch_sizes", allowed_batch_sizes)
    for name, path in base_paths.items():
        if not os.path.isabs(path) and isinstance(local_or_remote(path), pathlib.Path):
            raise ValueError(
                "TensorFlow Serving needs absolute paths. Received: "
                f"{path!r} for the model {name!r}."
            )
    models = [
        f"  config {{ name: {json.dumps(name)} base_path: {json.dumps(path)} "
        'model_platform: "tensorflow" }'
        for name, path in base_paths.items()
    ]
    lines = [f"max_batch_size {{ value: {sizes[-1]} }}"]
    lines.append(f"batch_timeout_micros {{ value: {batch_timeout_micros} }}")
    lines.append(f"num_batch_threads {{ value: {os.cpu_count()} }}")
    lines.append("pad_variable_length_inputs: false")
    lines.extend(f"allowed_batch_sizes: {size}" for size in sizes)
    texts = {"batching.config": lines, "models.config": ["model_config_list {", *models, "}"]}
    for name, rows in texts.items():
        write_text(pathlib.Path(directory) / name, "".join(f"{row}\n" for row in rows))


def check_batch_sizes(argument: str, batch_sizes: Sequence[int]) -> list[int]:
    """Returns batch sizes as a list.

    Raises:
        ValueError: If they are not ascending positive integers.
    """
    sizes = list(batch_sizes)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
        raise ValueError(
            f"`{argument}` must be ascending positive integers. Received: {tuple(batch_sizes)}."
        )
    return sizes


def prediction_log(signature: str, inputs: Mapping[str, Any]) -> bytes:
    """Serialises one request as a `tensorflow.serving.PredictionLog`.

    The message is encoded here, so that exports do not need the package tensorflow-serving-api. The
    field numbers are from `prediction_log.proto`, `predict.proto` and `model.proto`.

    Args:
        signature: Name of the signature to call.
        inputs: `TensorProto`s by name.

    Returns:
        The bytes of the message.
    """
    request = _field(1, _field(3, signature.encode()))  # model_spec { signature_name }
    for name, tensor in inputs.items():
        request += _field(2, _field(1, name.encode()) + _field(2, tensor.SerializeToString()))
    return _field(6, _field(1, request))  # predict_log { request }


def _field(number: int, payload: bytes) -> bytes:
    """Encodes a field of a protocol buffer that holds bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    """Encodes an integer as a protocol buffer does."""
    result = b""
    while value > 127:
        result += bytes([value & 127 | 128])
        value >>= 7
    return result + bytes([value])


def golden_image(inference: Inference) -> np.ndarray:
    """A fixed image of the model's size: pixels of shape `(H, W, C)`, integers in [0, 255]."""
    return synthetic_images(inference.input_shape, count=1)[0]


def encode_png(image: np.ndarray) -> bytes | None:
    """Encodes an image as PNG; `None` if an image file cannot have its channels."""
    if image.shape[-1] not in DECODED_CHANNELS:
        return None
    return tf.io.encode_png(image.astype("uint8")).numpy()
