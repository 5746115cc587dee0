"""The scripts in `export/`: clients with official messages, and a real server if there is one."""

from __future__ import annotations

import base64
import concurrent.futures
import dataclasses
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
from PIL import Image

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.serving import write_server_config
from keras_vit.models.vit import build_vit
from tests.export.conftest import LABELS
from tests.fixtures import fill_random, tiny_config

SCRIPTS = pathlib.Path(__file__).parents[2] / "export"
pytestmark = pytest.mark.xdist_group("saved_model")


def script(name):
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def images(pixels):
    return [tf.io.encode_png(image.astype("uint8")).numpy() for image in pixels]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def grpc_server(loaded):
    """The official service on the SavedModel; it refuses the first request."""
    grpc = pytest.importorskip("grpc")
    predict = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    services = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
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
def rest_server(loaded):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RestHandler)
    server.calls, server.loaded = [], loaded
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", server.calls
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_rest_client_sends_base64_and_retries(rest_server, images, model, pixels):
    address, calls = rest_server
    client = script("tf_serving/rest_client")
    found = client.classify(images, "tiny", address)
    assert calls == ["/v1/models/tiny:predict"] * 2  # one refusal, one answer
    best = np.argmax(model(pixels), axis=1)
    assert [row["classes"][0] for row in found] == [LABELS[i] for i in best]
    with pytest.raises(RuntimeError, match="400"):
        client.classify([b"not an image"], "tiny", address)
    assert len(calls) == 3  # a request that is wrong is not repeated


def test_the_rest_client_reports_a_missing_server(images):
    client = script("tf_serving/rest_client")
    with pytest.raises(ConnectionError, match="refused"):
        client.classify(images[:1], address=f"http://127.0.0.1:{free_port()}", attempts=1)


@pytest.fixture
def photographs(images, tmp_path):
    """A folder of image files."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for index, image in enumerate(images):
        (folder / f"{index}.png").write_bytes(image)
    return folder


@pytest.fixture(scope="module")
def small():
    """A model of one block: the scripts convert it in every precision."""
    model = build_vit(tiny_config(depth=1))
    fill_random(model)
    return model


@pytest.fixture
def files(small, tmp_path):
    """Files of a model and its labels, as command line arguments."""
    small.save(tmp_path / "tiny.keras")
    (tmp_path / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return [str(tmp_path / "tiny.keras"), "--labels", str(tmp_path / "labels.txt")]


def test_the_serving_script_writes_model_and_configuration(files, tmp_path, capsys):
    options = ["--to", str(tmp_path / "serving"), "--name", "tiny", "--no-jit-compile"]
    script("tf_serving/export").main([*files, *options])
    assert "(saved_model float32)" in capsys.readouterr().out
    assert "/models/tiny" in (tmp_path / "serving" / "models.config").read_text()
    assert (tmp_path / "serving" / "tiny" / "1" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    ("name", "suffix", "precisions"),
    [
        pytest.param(
            *("litert", "tflite", ("float32", "float16", "dynamic", "int8")), marks=pytest.mark.slow
        ),
        ("onnxruntime", "onnx", ("float32", "float16", "int8")),
    ],
)
def test_the_scripts_export_and_classify(
    name, suffix, precisions, files, photographs, small, tmp_path, capsys
):
    folder = tmp_path / "exported"
    script(f"{name}/export").main([*files, "--images", str(photographs), "--to", str(folder)])
    printed = capsys.readouterr().out
    assert printed.count("(6 images)") == len(precisions)
    assert ("steps: FULLY_CONNECTED" in printed) == (name == "litert")
    assert {path.stem for path in folder.iterdir()} == set(precisions)
    exact = str(folder / f"float32.{suffix}")
    classify = script("classify")
    logits = np.asarray(small(keras_vit.data.read_images(photographs)[0][None]))[0]
    best = classify.classify(exact, photographs / "0.png")
    assert [label for label, _ in best] == [LABELS[i] for i in np.argsort(-logits)[:5]]
    np.testing.assert_allclose([x for _, x in best], np.sort(logits)[:-6:-1], rtol=0, atol=1e-4)
    classify.main([exact, str(photographs / "0.png"), "--check"])
    difference, row = capsys.readouterr().out.splitlines()
    assert float(difference.split()[1]) < 1e-5
    assert row.startswith(f"{photographs / '0.png'}\t{best[0][0]} ")


@pytest.mark.slow
def test_the_table_of_all_formats(files, photographs, tmp_path):
    folder = tmp_path / "table"
    script("compare").main([files[0], "--images", str(photographs), "--to", str(folder)])
    rows = json.loads((folder / "table.json").read_text())
    assert len(rows) == 9 and {row["images"] for row in rows} == {6}
    assert (folder / "table.md").read_text().count("\n| ") == 10
    assert (folder / "compare.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("size", [(32, 32), (20, 50), (75, 40)])
@pytest.mark.parametrize("crop_ratio", [None, 0.875, 1.0])
@pytest.mark.parametrize(
    ("interpolation", "tolerance"),
    [("bilinear", 1e-3), ("bicubic", 1.01), ("area", 1.01), ("nearest", 0.0)],
)
def test_the_client_preprocesses_as_in_evaluation(interpolation, tolerance, crop_ratio, size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
    preprocessing = Preprocessing(interpolation=interpolation, crop_ratio=crop_ratio)
    card = {
        "input_shape": [32, 24, 3],
        "preprocessing": {"interpolation": interpolation, "crop_ratio": crop_ratio},
    }
    pixels = script("classify").eval_transform(Image.fromarray(image), card)
    expected = eval_transform(image, preprocessing, (32, 24))
    np.testing.assert_allclose(pixels[0], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [(32, 32), (20, 51), (75, 40)])
@pytest.mark.parametrize(
    "fields",
    [
        {"library": "timm", "crop_ratio": 0.9, "interpolation": "bicubic"},
        {"library": "timm", "crop_ratio": 0.9, "crop_mode": "border", "mean": (120.0, 90.0, 70.0)},
        {"library": "transformers", "crop_ratio": 0.7, "crop_mode": "squash"},
        {"library": "transformers", "crop_ratio": None},
    ],
)
@pytest.mark.parametrize("image_size", [(32, 24), (31, 31)])
def test_the_client_follows_timm_and_transformers_to_the_pixel(fields, size, image_size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
    preprocessing = Preprocessing(**{"mean": (127.5,) * 3, "std": (127.5,) * 3, **fields})
    card = {"input_shape": [*image_size, 3], "preprocessing": dataclasses.asdict(preprocessing)}
    pixels = script("classify").eval_transform(Image.fromarray(image), card)
    np.testing.assert_array_equal(pixels[0], eval_transform(image, preprocessing, image_size))


def test_a_real_server_switches_versions_under_load(model, images, tmp_path):
    server = find_server(tmp_path)
    if server is None:
        pytest.skip("tensorflow_model_server and its Docker image are missing")
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


def test_the_client_refuses_a_small_file_that_claims_to_be_large(tmp_path, monkeypatch):
    classify, bomb = script("classify"), tmp_path / "bomb.png"
    monkeypatch.setattr(classify, "open_model", lambda path: ({}, None))
    Image.new("1", (8_000, 6_000)).save(bomb)
    with pytest.raises(ValueError, match="has 6000 x 8000 pixels, more than 33,554,432"):
        classify.classify("a.onnx", bomb)
