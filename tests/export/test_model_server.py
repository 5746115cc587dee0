"""The clients against a server: TensorFlow Serving if it is installed, or else that of tests."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.serving import write_server_config
from keras_vit.models.vit import build_vit
from tests.export.conftest import LABELS
from tests.export.test_deployments import free_port, script
from tests.fixtures import fill_random, tiny_config

grpc = pytest.importorskip("grpc")
pytest.importorskip("tensorflow_serving")
pytestmark = pytest.mark.xdist_group("saved_model")
OTHERS = [f"other {label}" for label in LABELS]
SIZES = (1, 2, 4, 8)


def find_server(folder):
    """Command of a TensorFlow Serving that can read `folder`, or `None` if there is none."""
    if shutil.which("tensorflow_model_server"):
        return ["tensorflow_model_server"]
    image = "tensorflow/serving:latest"
    inspect = ["docker", "image", "inspect", image]
    if (
        shutil.which("docker") is None
        or subprocess.run(inspect, capture_output=True, check=False).returncode
    ):
        return None
    mount = ["-v", f"{folder}:{folder}:ro", "--entrypoint", "tensorflow_model_server"]
    return ["docker", "run", "--rm", "--init", "--network", "host", *mount, image]


@contextlib.contextmanager
def serve(folder, batching=False):
    """Serves the models of a folder; yields the addresses of REST and gRPC, and our own server."""
    config, batches = folder / "models.config", folder / "batching.config"
    command = find_server(folder)
    if command is None:
        from tests.export.model_server import ModelServer

        server = ModelServer(config, batches if batching else None)
        try:
            yield f"http://127.0.0.1:{server.rest_port}", f"127.0.0.1:{server.port}", server
        finally:
            server.close()
        return
    ports = free_port(), free_port()
    command += [f"--port={ports[0]}", f"--rest_api_port={ports[1]}"]
    command += [f"--model_config_file={config}", "--file_system_poll_wait_seconds=1"]
    if batching:
        command += ["--enable_batching", f"--batching_parameters_file={batches}"]
    with subprocess.Popen(command) as process:
        try:
            address = f"http://127.0.0.1:{ports[1]}"
            wait_for_version(address, "1")
            yield address, f"127.0.0.1:{ports[0]}", None
        finally:
            process.terminate()


def wait_for_version(address, version, model="tiny", seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            states = {row["version"]: row["state"] for row in get(f"{address}/v1/models/{model}")}
            if states.get(version) == "AVAILABLE":
                return states
        time.sleep(0.1)
    raise TimeoutError(f"version {version} is not served")


def get(url):
    with urllib.request.urlopen(url) as response:
        return json.load(response)["model_version_status"]


def post(url, body):
    """The answer of a server, and its status."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def images(pixels):
    return [tf.io.encode_png(image.astype("uint8")).numpy() for image in pixels]


@pytest.fixture
def folder(exported, tmp_path):
    """Two models and the configuration of the server."""
    shutil.copytree(exported.path, tmp_path / "tiny" / "1")
    backbone = build_vit(tiny_config(depth=1, classes=None))
    fill_random(backbone)
    export_saved_model(backbone, tmp_path / "backbone")
    paths = {name: str(tmp_path / name) for name in ("tiny", "backbone")}
    write_server_config(tmp_path, paths, SIZES, batch_timeout_micros=20_000)
    return tmp_path


@pytest.mark.slow
def test_clients_shapes_labels_and_errors(folder, images, model, pixels, monkeypatch):
    rest, remote = script("tf_serving/rest_client"), script("tf_serving/grpc_client")
    expected = np.asarray(model(pixels))
    best = [LABELS[i] for i in expected.argmax(-1)]
    with serve(folder) as (address, target, own):
        # Both clients.
        rows = rest.classify(images, "tiny", address)
        assert [row["classes"][0] for row in rows] == best
        np.testing.assert_allclose([row["logits"] for row in rows], expected, rtol=0, atol=1e-5)
        stub = remote.connect(target)
        found = remote.classify(stub, images, "tiny")
        assert [row[0].decode() for row in found["classes"]] == best
        assert set(found) == {"classes", "scores"}

        # Columns, one output, numbers, and an unreadable image.
        url = f"{address}/v1/models/tiny:predict"
        encoded = [{"b64": base64.b64encode(image).decode()} for image in images]
        status, answer = post(url, {"inputs": {"image_bytes": encoded}})
        np.testing.assert_allclose(answer["outputs"]["logits"], expected, rtol=0, atol=1e-5)
        one = [{"image_bytes": encoded[0]}]
        status, answer = post(url, {"signature_name": "features", "instances": one})
        assert status == 200 and np.shape(answer["predictions"]) == (1, 32)
        body = {"signature_name": "pixels", "instances": pixels[:2].tolist()}
        status, answer = post(url, body)
        logits = [row["logits"] for row in answer["predictions"]]
        np.testing.assert_allclose(logits, expected[:2], rtol=0, atol=1e-5)
        mixed = [*one, {"image_bytes": {"b64": base64.b64encode(b"no image").decode()}}]
        status, answer = post(url, {"signature_name": "tolerant", "instances": mixed})
        assert [row["valid"] for row in answer["predictions"]] == [True, False]

        # Errors: a request that is wrong is not sent again.
        status, answer = post(url, {"instances": mixed})
        assert status == 400 and "Image 1 is no JPEG, PNG, GIF, BMP or WebP" in answer["error"]
        waits = []
        monkeypatch.setattr(time, "sleep", waits.append)
        with pytest.raises(RuntimeError, match="400"):
            rest.classify([b"no image"], "tiny", address)
        with pytest.raises(RuntimeError, match=r"404 .*Servable not found"):
            rest.classify(images[:1], "nobody", address)
        with pytest.raises(grpc.RpcError, match="Image 0 is no JPEG"):
            remote.classify(stub, [b"no image"], "tiny")
        monkeypatch.undo()
        assert not waits
        status, answer = post(url, {"signature_name": "nothing", "instances": one})
        assert status == 400 and "nothing" in answer["error"]
        assert post(url, b"{")[0] == 400

        # The other model, and what the server says of both.
        body = {"signature_name": "features", "instances": one}
        status, answer = post(f"{address}/v1/models/backbone:predict", body)
        assert np.shape(answer["predictions"]) == (1, 32)
        assert wait_for_version(address, "1", "backbone") == {"1": "AVAILABLE"}
        with urllib.request.urlopen(f"{address}/v1/models/tiny/metadata") as response:
            known = json.load(response)["metadata"]["signature_def"]["signature_def"]
        assert {"serving_default", "tolerant", "images", "pixels", "features"} <= set(known)
        if own is not None:
            assert own.models.find("tiny").warmed == 2  # requests of 1 and 4 images


@pytest.mark.slow
def test_a_client_waits_for_a_server_that_starts(folder, images):
    if find_server(folder) is not None:
        pytest.skip("its ports are chosen when it starts")
    from tests.export.model_server import ModelServer

    rest, remote = script("tf_serving/rest_client"), script("tf_serving/grpc_client")
    port, rest_port = free_port(), free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        address = f"http://127.0.0.1:{rest_port}"
        first = pool.submit(rest.classify, images[:1], "tiny", address, attempts=9)
        stub = remote.connect(f"127.0.0.1:{port}")
        second = pool.submit(remote.classify, stub, images[:1], "tiny", attempts=9)
        time.sleep(0.3)
        assert not first.done() and not second.done()
        server = ModelServer(folder / "models.config", port=port, rest_port=rest_port)
        try:
            assert first.result()[0]["classes"][0].encode() == second.result()["classes"][0][0]
        finally:
            server.close()


@pytest.mark.slow
def test_versions_switch_under_load_without_a_failed_request(folder, images, model):
    rest, remote = script("tf_serving/rest_client"), script("tf_serving/grpc_client")
    ended, found = threading.Event(), []

    def ask_rest(address):
        while not ended.is_set():
            found.append(rest.classify(images[:2], "tiny", address, attempts=1)[0]["classes"][0])

    def ask_grpc(target):
        stub = remote.connect(target)
        while not ended.is_set():
            answer = remote.classify(stub, images[:2], "tiny", attempts=1)
            found.append(answer["classes"][0][0].decode())

    with serve(folder) as (address, target, _), concurrent.futures.ThreadPoolExecutor(4) as pool:
        load = [pool.submit(ask_rest, address) for _ in range(2)]
        load += [pool.submit(ask_grpc, target) for _ in range(2)]
        try:
            report = export_saved_model(model, folder / "tiny", labels=OTHERS)
            assert report.path.name == "2"
            states = wait_for_version(address, "2")
            time.sleep(0.3)
        finally:
            ended.set()
        for each in load:
            each.result()  # no request failed, and none was repeated
        assert states["1"] in ("UNLOADING", "END")
        best = LABELS.index(found[0])
        assert set(found) == {LABELS[best], OTHERS[best]} and found[-1] == OTHERS[best]
        one = [{"image_bytes": {"b64": base64.b64encode(images[0]).decode()}}]
        url = f"{address}/v1/models/tiny/versions"
        assert post(f"{url}/2:predict", {"instances": one})[0] == 200
        assert post(f"{url}/1:predict", {"instances": one})[0] == 404


@pytest.mark.slow
def test_batches_of_several_requests(folder, images, model, pixels):
    remote = script("tf_serving/grpc_client")
    expected = np.asarray(model(pixels))

    def ask(index, signature="serving_default", image=None):
        data = [images[index] if image is None else image]
        outputs = ("logits",) if signature == "serving_default" else ("logits", "valid")
        return remote.classify(stub, data, "tiny", signature, outputs)

    with serve(folder, batching=True) as (_, target, own):
        stub = remote.connect(target)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, [i % 6 for i in range(24)]))
            for index, answer in enumerate(answers):
                wanted = expected[index % 6]
                np.testing.assert_allclose(answer["logits"][0], wanted, rtol=0, atol=1e-5)
            if own is not None:
                sizes = own.models.find("tiny").batchers["serving_default"].sizes[2:]
                assert set(sizes) <= set(SIZES) and len(sizes) < 24
            # One unreadable image fails the requests in its batch, but not in `tolerant`.
            good = [pool.submit(ask, index, "tolerant") for index in range(6)]
            bad = pool.submit(ask, 0, "tolerant", b"no image")
            assert not bad.result()["valid"][0]
            assert all(answer.result()["valid"][0] for answer in good)
            alone = pool.submit(ask, 0, image=b"no image")
            with pytest.raises(grpc.RpcError, match="is no JPEG"):
                alone.result()
        with pytest.raises(grpc.RpcError, match="larger than maximum"):
            remote.classify(stub, images * 2, "tiny")


@pytest.mark.slow
def test_the_server_starts_from_the_command_line(folder, images):
    port, rest_port = free_port(), free_port()
    command = [sys.executable, "-m", "tests.export.model_server", f"--port={port}"]
    command += [f"--rest_api_port={rest_port}", f"--model_config_file={folder}/models.config"]
    with subprocess.Popen(command) as process:
        try:
            address = f"http://127.0.0.1:{rest_port}"
            wait_for_version(address, "1")
            assert len(script("tf_serving/rest_client").classify(images, "tiny", address)) == 6
        finally:
            process.terminate()
