"""A served model under load: requests per second, latencies, and memory over many requests.

    python benchmarks/serving_load.py --clients 1 8 64 >> docs/benchmarks/serving_load.jsonl
    python benchmarks/serving_load.py --requests 50000 >> docs/benchmarks/serving_load.jsonl

Exports a model (by default one of two blocks of width 32, so that the server is what is measured)
and serves it with batching: by `tensorflow_model_server` where it is on the PATH, or else by the
server in Python of the tests, whose figures are a lower bound of it. Clients are threads of this
process that send one JPEG after the other by gRPC. The first form prints a JSON line for each
number of clients: requests per second, median and 99th percentile of the latency. The second sends
that many requests from eight clients and prints the memory of the server at eleven points. Takes a
minute each.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grpc
import numpy as np
import tensorflow as tf
from machine import describe_machine
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
SIZES = (1, 2, 4, 8, 16, 32)
TINY = keras_vit.make_config(
    image_size=32, patch_size=8, width=32, depth=2, num_heads=4, mlp_dim=64, classes=10
)


def prepare(variant: str | None, folder: pathlib.Path) -> None:
    """Exports the model and writes the configuration of the server."""
    model = keras_vit.create_model(variant) if variant else keras_vit.build_vit(TINY)
    keras_vit.export_saved_model(model, folder / "model", warmup_batch_sizes=SIZES)
    paths = {"model": str(folder / "model")}
    keras_vit.export.write_server_config(folder, paths, SIZES, batch_timeout_micros=1000)


def start(folder: pathlib.Path) -> tuple[subprocess.Popen[bytes], str, str]:
    """Starts a server; returns its process, its name and its gRPC address."""
    with socket.socket() as grpc_port, socket.socket() as rest_port:
        grpc_port.bind(("127.0.0.1", 0))
        rest_port.bind(("127.0.0.1", 0))
        ports = grpc_port.getsockname()[1], rest_port.getsockname()[1]
    name = "tensorflow_model_server"
    command = [name] if shutil.which(name) else [sys.executable, "-m", "tests.export.model_server"]
    command += [f"--port={ports[0]}", f"--rest_api_port={ports[1]}", "--enable_batching"]
    command += [f"--model_config_file={folder / 'models.config'}"]
    command += [f"--batching_parameters_file={folder / 'batching.config'}"]
    served_by = name if command[0] == name else "tests.export.model_server"
    return subprocess.Popen(command, cwd=ROOT), served_by, f"127.0.0.1:{ports[0]}"


def make_request(size: int) -> predict_pb2.PredictRequest:
    """A request with a JPEG of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), "uint8")
    request = predict_pb2.PredictRequest(output_filter=["classes", "scores"])
    request.model_spec.name = "model"
    image = tf.io.encode_jpeg(pixels).numpy()
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([image]))
    return request


def send(address: str, request: predict_pb2.PredictRequest, end: float, most: int) -> list[float]:
    """Sends requests one after the other; returns their latencies in seconds."""
    latencies = []
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        while time.monotonic() < end and len(latencies) < most:
            begin = time.monotonic()
            stub.Predict(request, timeout=60, wait_for_ready=True)
            latencies.append(time.monotonic() - begin)
    return latencies


def load(address: str, request: predict_pb2.PredictRequest, clients: int, seconds: float) -> dict:
    """Requests per second and latencies of clients that send at the same time."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        parts = [
            pool.submit(send, address, request, begin + seconds, sys.maxsize)
            for _ in range(clients)
        ]
        latencies = [x for part in parts for x in part.result()]
    wall = time.monotonic() - begin
    median, p99 = np.percentile(latencies, [50, 99]) * 1e3
    return {
        "clients": clients,
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / wall, 1),
        "median_ms": round(float(median), 2),
        "p99_ms": round(float(p99), 2),
    }


def memory_mb(process: subprocess.Popen[bytes]) -> float:
    """Resident memory of a process."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


def watch_memory(
    process: subprocess.Popen[bytes],
    address: str,
    request: predict_pb2.PredictRequest,
    count: int,
    clients: int = 8,
) -> Iterator[dict]:
    """Memory of the server after each tenth of `count` requests."""
    yield {"requests": 0, "memory_mb": memory_mb(process)}
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for tenth in range(1, 11):
            each = count // 10 // clients
            parts = [
                pool.submit(send, address, request, time.monotonic() + 3600, each)
                for _ in range(clients)
            ]
            for part in parts:
                part.result()
            yield {"requests": tenth * each * clients, "memory_mb": memory_mb(process)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--variant", help="such as vit_ti16; by default a tiny model")
    parser.add_argument("--clients", nargs="+", type=int, default=[])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--requests", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(options.variant, folder)
        process, server, address = start(folder)
        facts = {"model": options.variant or "tiny", "server": server, **describe_machine()}
        try:
            request = make_request(32 if options.variant is None else 256)
            send(address, request, time.monotonic() + 120, 20)
            for clients in options.clients:
                row = load(address, request, clients, options.seconds)
                print(json.dumps({**row, **facts}), flush=True)
            if options.requests:
                rows = list(watch_memory(process, address, request, options.requests))
                print(json.dumps({"memory": rows, **facts}), flush=True)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
