"""The clients in `export/` against TensorFlow Serving, or a small server that answers alike."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import http.server
import json
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export.serving import write_server_config
from tests.export.conftest import LABELS
from tests.export.test_deployments import free_port, script

grpc = pytest.importorskip("grpc")
serving = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
pytestmark = [pytest.mark.xdist_group("saved_model"), pytest.mark.slow]
REST_CODES = {grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.NOT_FOUND: 404}


class RefusedError(Exception):
    """An answer with an error code of gRPC."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Server(serving.PredictionServiceServicer):
    """Predictions of one SavedModel, with the errors and codes of TensorFlow Serving 2.x."""

    def __init__(self, folder, port, rest_port):
        (version,) = (folder / "tiny").iterdir()
        self.signatures = tf.saved_model.load(str(version)).signatures
        self.rest = http.server.ThreadingHTTPServer(("127.0.0.1", rest_port), Rest)
        self.rest.owner = self
        self.grpc = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        serving.add_PredictionServiceServicer_to_server(self, self.grpc)
        self.grpc.add_insecure_port(f"127.0.0.1:{port}")
        self.grpc.start()
        threading.Thread(target=self.rest.serve_forever, daemon=True).start()

    def close(self):
        self.grpc.stop(None).wait()
        self.rest.shutdown()
        self.rest.server_close()

    def answer(self, model, signature, inputs):
        if model != "tiny":
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"Servable not found: {model}")
        try:
            outputs = self.signatures[signature](**{k: tf.constant(x) for k, x in inputs.items()})
        except tf.errors.InvalidArgumentError as error:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        return {name: x.numpy() for name, x in outputs.items()}

    def Predict(self, request, context):
        inputs = {name: tf.make_ndarray(x) for name, x in request.inputs.items()}
        spec = request.model_spec
        try:
            outputs = self.answer(spec.name, spec.signature_name, inputs)
        except RefusedError as error:
            return context.abort(error.code, str(error))
        response = predict_pb2.PredictResponse()
        for name in request.output_filter:  # it sends no others
            response.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name]))
        return response


class Rest(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        images = [base64.b64decode(row["image_bytes"]["b64"]) for row in body["instances"]]
        model = self.path.removeprefix("/v1/models/").removesuffix(":predict")
        try:
            found = self.server.owner.answer(model, body["signature_name"], {"image_bytes": images})
            found["classes"] = np.char.decode(found["classes"].astype("S"), "utf-8")
            columns = [x.tolist() for x in found.values()]
            rows = [dict(zip(found, row, strict=True)) for row in zip(*columns, strict=True)]
            code, content = 200, {"predictions": rows}
        except RefusedError as error:
            code, content = REST_CODES[error.code], {"error": str(error)}
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serve(folder, port, rest_port):
    name = "tensorflow_model_server"
    if shutil.which(name) is None:
        server = Server(folder, port, rest_port)
        yield
        server.close()
        return
    write_server_config(folder, {"tiny": str(folder / "tiny")})
    command = [name, f"--port={port}", f"--rest_api_port={rest_port}"]
    with subprocess.Popen([*command, f"--model_config_file={folder}/models.config"]) as process:
        yield
        process.terminate()


@pytest.fixture(scope="module")
def images(pixels):
    return [tf.io.encode_png(image.astype("uint8")).numpy() for image in pixels]


@pytest.fixture
def folder(exported, tmp_path):
    shutil.copytree(exported.path, tmp_path / "tiny" / "1")
    return tmp_path


def test_clients_wait_for_the_server_and_classify(folder, images, model, pixels, monkeypatch):
    rest, remote = script("tf_serving/rest_client"), script("tf_serving/grpc_client")
    port, rest_port = free_port(), free_port()
    address, stub = f"http://127.0.0.1:{rest_port}", remote.connect(f"127.0.0.1:{port}")
    expected = np.asarray(model(pixels))
    best = [LABELS[i] for i in expected.argmax(-1)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool, contextlib.ExitStack() as stack:
        first = pool.submit(rest.classify, images, "tiny", address, attempts=9)
        second = pool.submit(remote.classify, stub, images, "tiny", attempts=9)
        time.sleep(0.3)
        assert not first.done() and not second.done()
        stack.enter_context(serve(folder, port, rest_port))
        rows, found = first.result(), second.result()
        assert [row["classes"][0] for row in rows] == best
        np.testing.assert_allclose([row["logits"] for row in rows], expected, rtol=0, atol=1e-5)
        assert [row[0].decode() for row in found["classes"]] == best
        assert set(found) == {"classes", "scores"}
        # Many clients at once.
        asked = [pool.submit(rest.classify, [images[i % 6]], "tiny", address) for i in range(24)]
        assert [each.result()[0]["classes"][0] for each in asked] == best * 4
        # A request that is wrong is not sent again.
        waits = []
        monkeypatch.setattr(time, "sleep", waits.append)
        with pytest.raises(RuntimeError, match=r"400 .*Image 1 is no JPEG, PNG, GIF, BMP or WebP"):
            rest.classify([images[0], b"no image"], "tiny", address)
        with pytest.raises(RuntimeError, match=r"404 .*Servable not found"):
            rest.classify(images[:1], "nobody", address)
        with pytest.raises(grpc.RpcError, match="Image 0 is no JPEG"):
            remote.classify(stub, [b"no image"], "tiny")
        monkeypatch.undo()
        assert not waits
