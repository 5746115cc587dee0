"""Classifies image files by TensorFlow Serving's gRPC interface.

pip install "keras-vision-transformer[serving]"
python export/tf_serving/grpc_client.py cat.jpg dog.png --model pets
"""

from __future__ import annotations

import argparse
import pathlib
import time

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
LARGEST_MESSAGE = 64 * 2**20  # bytes; gRPC's own limit of 4 MiB is below a batch of photographs


def connect(
    address: str = "localhost:8500",
) -> prediction_service_pb2_grpc.PredictionServiceStub:
    """Returns a stub of the prediction service; create it once for many requests."""
    sizes = [("grpc.max_send_message_length", LARGEST_MESSAGE)]
    sizes += [("grpc.max_receive_message_length", LARGEST_MESSAGE)]
    return prediction_service_pb2_grpc.PredictionServiceStub(
        grpc.insecure_channel(address, options=sizes)
    )


def classify(
    stub: prediction_service_pb2_grpc.PredictionServiceStub,
    images: list[bytes],
    model: str = "model",
    signature: str = "serving_default",
    outputs: tuple[str, ...] = ("classes", "scores"),
    attempts: int = 5,
    timeout: float = 30.0,
) -> dict[str, np.ndarray]:
    """Returns the requested outputs by name; the server sends no others."""
    request = predict_pb2.PredictRequest(output_filter=outputs)
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto(images))
    for attempt in range(attempts):
        try:
            response = stub.Predict(request, timeout=timeout)
            return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}
        except grpc.RpcError as error:
            if error.code() not in RETRIED or attempt == attempts - 1:
                raise
        time.sleep(0.2 * 2**attempt)
    raise ValueError(f"`attempts` must be 1 or more. Received: {attempts}.")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--model", default="model")
    parser.add_argument("--address", default="localhost:8500")
    options = parser.parse_args(arguments)
    images = [pathlib.Path(file).read_bytes() for file in options.files]
    found = classify(connect(options.address), images, options.model)
    for file, labels, scores in zip(options.files, found["classes"], found["scores"], strict=True):
        best = zip(labels, scores, strict=True)
        print(file, *(f"{label.decode()} {score:.3f}" for label, score in best), sep="\t")


if __name__ == "__main__":
    main()
