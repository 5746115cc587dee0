"""The scripts in `export/`: clients against the official messages, and a real server if any."""

from __future__ import annotations

import base64
import concurrent.futures
import http.server
import importlib.util
import json
import pathlib
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.serving import write_server_config

SCRIPTS = pathlib.Path(__file__).parents[2] / "export"
LABELS = [f"class {letter}" for letter in "abcdefghij"]


def script(name):
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "tiny"
    return export_saved_model(model, path, labels=LABELS).path


@pytest.fixture(scope="module")
def images(pixels):
    return [tf.io.encode_png(image.astype("uint8")).numpy() for image in pixels]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def grpc_server(served):
    """The official service, answered by the exported version; its first answer is a refusal."""
    grpc = pytest.importorskip("grpc")
    predict = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    services = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
    loaded = tf.saved_model.load(str(served))
    calls = []

    class Service(services.PredictionServiceServicer):
        def Predict(self, request, context):
            calls.append(request)
            if len(calls) == 1:
                context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            outputs = loaded.signatures[request.model_spec.signature_name](
                **{name: tf.constant(value) for name, value in inputs.items()}
            )
            response = predict.PredictResponse()
            for name in request.output_filter or outputs:
                response.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name].numpy()))
            return response

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    services.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", calls
    server.stop(None).wait()


def test_the_grpc_client_speaks_the_official_protocol(grpc_server, images, model, pixels):
    address, calls = grpc_server
    client = script("tf_serving/grpc_client")
    found = client.classify(client.connect(address), images, model="tiny")
    assert len(calls) == 2  # one refusal, one answer
    assert calls[1].model_spec.name == "tiny"
    best = np.argmax(model(pixels), axis=1)
    assert [row[0].decode() for row in found["classes"]] == [LABELS[i] for i in best]
    assert set(found) == {"classes", "scores"}


class RestHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.calls.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(self.server.calls) == 1:
            return self.answer(503, {"error": "loading"})
        try:
            files = [base64.b64decode(row["image_bytes"]["b64"]) for row in body["instances"]]
            outputs = self.server.loaded.signatures[body["signature_name"]](
                image_bytes=tf.constant(files)
            )
        except tf.errors.InvalidArgumentError as error:
            return self.answer(400, {"error": str(error)})
        rows = [
            {
                "classes": [label.decode() for label in outputs["classes"][i].numpy()],
                "scores": outputs["scores"][i].numpy().tolist(),
            }
            for i in range(len(files))
        ]
        return self.answer(200, {"predictions": rows})

    def answer(self, code, value):
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def rest_server(served):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RestHandler)
    server.calls, server.loaded = [], tf.saved_model.load(str(served))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", server.calls
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_rest_client_sends_b64_and_tries_again(rest_server, images, model, pixels):
    address, calls = rest_server
    client = script("tf_serving/rest_client")
    found = client.classify(images, "tiny", address)
    assert calls == ["/v1/models/tiny:predict"] * 2  # one refusal, one answer
    best = np.argmax(model(pixels), axis=1)
    assert [row["classes"][0] for row in found] == [LABELS[i] for i in best]
    with pytest.raises(RuntimeError, match="400"):
        client.classify([b"not an image"], "tiny", address)
    assert len(calls) == 3  # a request that is wrong is not repeated


def test_no_server(images):
    client = script("tf_serving/rest_client")
    with pytest.raises(ConnectionError, match="refused"):
        client.classify(images[:1], address=f"http://127.0.0.1:{free_port()}", attempts=1)


def test_the_scripts_export_and_classify(model, images, tmp_path, capsys):
    model.save(tmp_path / "tiny.keras")
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for index, image in enumerate(images):
        (photographs / f"{index}.png").write_bytes(image)
    keras_file, picture = str(tmp_path / "tiny.keras"), str(photographs / "0.png")
    script("tf_serving/export").main([keras_file, "--to", str(tmp_path / "serving")])
    assert (tmp_path / "serving" / "models.config").is_file()
    script("litert/export").main(
        [keras_file, "--images", str(photographs), "--to", str(tmp_path / "litert")]
    )
    assert "steps: FULLY_CONNECTED" in capsys.readouterr().out
    logits = np.sort(np.asarray(model(np.stack([tf.io.decode_png(images[0])]))))[0][::-1]
    best = script("litert/classify").classify(str(tmp_path / "litert" / "float32.tflite"), picture)
    np.testing.assert_allclose([logit for _, logit in best], logits[:5], rtol=0, atol=1e-4)
    keras_vit.export_onnx(model, tmp_path / "tiny.onnx")
    best = script("onnxruntime/classify").classify(str(tmp_path / "tiny.onnx"), picture)
    np.testing.assert_allclose([logit for _, logit in best], logits[:5], rtol=0, atol=1e-4)


def test_a_real_server_with_batching_changes_versions_under_load(model, images, tmp_path):
    server = find_server(tmp_path)
    if server is None:
        pytest.skip("neither tensorflow_model_server nor its Docker image: no real server tested")
    base = tmp_path / "serving" / "tiny"
    export_saved_model(model, base, labels=LABELS, warmup_batch_sizes=(1, 2, 4, 8))
    write_server_config(tmp_path / "serving", {"tiny": str(base)}, (1, 2, 4, 8))
    grpc_port, rest_port = free_port(), free_port()
    command = [*server, f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--enable_batching"]
    command += [f"--model_config_file={tmp_path / 'serving' / 'models.config'}"]
    command += [f"--batching_parameters_file={tmp_path / 'serving' / 'batching.config'}"]
    address = f"http://127.0.0.1:{rest_port}"
    rest, grpc_client = script("tf_serving/rest_client"), script("tf_serving/grpc_client")
    with subprocess.Popen([*command, "--file_system_poll_wait_seconds=1"]) as process:
        try:
            first = rest.classify(images, "tiny", address, attempts=9)
            stub = grpc_client.connect(f"127.0.0.1:{grpc_port}")
            found = grpc_client.classify(stub, images, "tiny")
            assert [row["classes"][0].encode() for row in first] == [
                row[0] for row in found["classes"]
            ]
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                load = [pool.submit(rest.classify, images, "tiny", address) for _ in range(200)]
                export_saved_model(model, base, labels=LABELS)
                assert all(len(answer.result()) == len(images) for answer in load)
            assert wait_for_version(address, "2")
        finally:
            process.terminate()


def find_server(folder):
    """The command of a TensorFlow Serving that sees `folder`, or `None` where there is none."""
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


def wait_for_version(address, version, seconds=30):
    for _ in range(seconds):
        with urllib.request.urlopen(f"{address}/v1/models/tiny") as response:
            states = json.load(response)["model_version_status"]
        if {"version": version, "state": "AVAILABLE"}.items() <= {
            **next((row for row in states if row["version"] == version), {}),
        }.items():
            return True
        time.sleep(1)
    return False
