"""A small TensorFlow Serving for tests: its REST and gRPC interfaces, flags and configuration.

    python -m tests.export.model_server --port=8500 --rest_api_port=8501 \
        --model_config_file=serving/models.config

It has what the deployments of this repository use: predictions by signature in row and column
format, status and metadata, several models, warm-up, the switch to a newer version, and batching
as `batching.config` sets it. Answers, errors and their codes follow the documentation and sources
of TensorFlow Serving 2.x; SavedModels are loaded in Python, by the same loader in C++.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import http.server
import json
import pathlib
import re
import signal
import threading

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.export.served_models import INVALID, NOT_FOUND, SHAPES, Batching, Models, RefusedError

PREDICT = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+))?:predict")
LOOK = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+))?(/metadata)?")
HTTP_CODES = {NOT_FOUND: 404, INVALID: 400, SHAPES: 400}


def predict_request(version, request):
    """Answers a `PredictRequest`."""
    name = request.model_spec.signature_name or "serving_default"
    inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
    outputs = version.run(name, inputs)
    response = predict_pb2.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = version.number
    for key in request.output_filter or outputs:
        if key not in outputs:
            raise RefusedError(INVALID, f"output tensor alias not found in signature: {key}")
        response.outputs[key].CopyFrom(tf.make_tensor_proto(outputs[key]))
    return response


def metadata(version, name):
    """The signatures of a version, as a `GetModelMetadataResponse`."""
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = name
    response.model_spec.version.value = version.number
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for key, function in version._loaded.signatures.items():
        for input_name, spec in function.structured_input_signature[1].items():
            signatures.signature_def[key].inputs[input_name].dtype = spec.dtype.as_datatype_enum
        for output_name, tensor in function.structured_outputs.items():
            signatures.signature_def[key].outputs[output_name].dtype = tensor.dtype.as_datatype_enum
    response.metadata["signature_def"].Pack(signatures)
    return response


class Grpc(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    def __init__(self, models):
        self._models = models

    def Predict(self, request, context):
        return self._answer(context, lambda: predict_request(self._find(request), request))

    def GetModelMetadata(self, request, context):
        name = request.model_spec.name
        return self._answer(context, lambda: metadata(self._find(request), name))

    def GetModelStatus(self, request, context):
        return self._answer(context, lambda: self._status(request.model_spec.name))

    def _find(self, request):
        spec = request.model_spec
        return self._models.find(
            spec.name, spec.version.value if spec.HasField("version") else None
        )

    def _status(self, name):
        response = get_model_status_pb2.GetModelStatusResponse()
        for number, state in self._models.states(name):
            status = response.model_version_status.add(version=number)
            status.state = get_model_status_pb2.ModelVersionStatus.State.Value(state)
        return response

    def _answer(self, context, function):
        try:
            return function()
        except RefusedError as error:
            return context.abort(error.code, str(error))


class Rest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(lambda: self._predict(body))

    def do_GET(self):
        self._answer(self._look)

    def _predict(self, body):
        found = PREDICT.fullmatch(self.path)
        if found is None:
            raise RefusedError(NOT_FOUND, f"Malformed request: POST {self.path}")
        version = self.server.models.find(found[1], found[2] and int(found[2]))
        try:
            body = json.loads(body, object_hook=_from_base64)
        except ValueError as error:
            raise RefusedError(INVALID, f"JSON Parse error: {error}") from error
        name = body.get("signature_name", "serving_default")
        names = list(version.specs(name))
        if "instances" in body:
            rows = [row if isinstance(row, dict) else {names[0]: row} for row in body["instances"]]
            inputs = {key: _array([row[key] for row in rows]) for key in rows[0]}
            outputs = _to_json(version.run(name, inputs))
            values = [
                dict(zip(outputs, each, strict=True))
                for each in zip(*outputs.values(), strict=True)
            ]
            return {"predictions": [_alone(value) for value in values]}
        columns = body["inputs"]
        columns = columns if isinstance(columns, dict) else {names[0]: columns}
        outputs = version.run(name, {key: _array(value) for key, value in columns.items()})
        return {"outputs": _alone(_to_json(outputs))}

    def _look(self):
        found = LOOK.fullmatch(self.path)
        if found is None:
            raise RefusedError(NOT_FOUND, f"Malformed request: GET {self.path}")
        if found[3]:
            version = self.server.models.find(found[1], found[2] and int(found[2]))
            message = metadata(version, found[1])
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        states = self.server.models.states(found[1])
        status = {"error_code": "OK", "error_message": ""}
        return {
            "model_version_status": [
                {"version": str(number), "state": state, "status": status}
                for number, state in states
            ]
        }

    def _answer(self, function):
        try:
            code, value = 200, function()
        except RefusedError as error:
            code, value = HTTP_CODES[error.code], {"error": str(error)}
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def _from_base64(value):
    return base64.b64decode(value["b64"]) if set(value) == {"b64"} else value


def _array(values):
    """An array; of bytes as objects, since NumPy's own bytes lose zeros at the end."""
    return np.array(values, object if isinstance(values[0], bytes) else None)


def _to_json(outputs):
    """Outputs as lists; texts are texts, as their names do not end in `_bytes`."""
    return {
        key: (np.char.decode(x.astype("S"), "utf-8") if x.dtype == "O" else x).tolist()
        for key, x in outputs.items()
    }


def _alone(outputs):
    """An only output has no name in JSON."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


class HttpServer(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class ModelServer:
    """Serves both interfaces until `close`."""

    def __init__(self, config, batching=None, port=0, rest_port=0, poll_seconds=0.2, threads=64):
        batching = Batching(pathlib.Path(batching).read_text()) if batching else None
        self.models = Models(config, batching, poll_seconds)
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._grpc = grpc.server(concurrent.futures.ThreadPoolExecutor(threads), options=options)
        service = Grpc(self.models)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, self._grpc)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, self._grpc)
        self.port = self._grpc.add_insecure_port(f"127.0.0.1:{port}")
        self._rest = HttpServer(("127.0.0.1", rest_port), Rest)
        self._rest.models, self.rest_port = self.models, self._rest.server_port
        self._grpc.start()
        self._thread = threading.Thread(target=self._rest.serve_forever)
        self._thread.start()

    def close(self):
        self._grpc.stop(None).wait()
        self._rest.shutdown()
        self._thread.join()
        self._rest.server_close()
        self.models.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8500)
    parser.add_argument("--rest_api_port", type=int, default=8501)
    parser.add_argument("--model_config_file", required=True)
    parser.add_argument("--enable_batching", action="store_true")
    parser.add_argument("--batching_parameters_file")
    parser.add_argument("--file_system_poll_wait_seconds", type=float, default=1.0)
    flags = parser.parse_args()
    server = ModelServer(  # gRPC stops serving when nothing refers to it
        flags.model_config_file,
        flags.batching_parameters_file if flags.enable_batching else None,
        flags.port,
        flags.rest_api_port,
        flags.file_system_poll_wait_seconds,
    )
    signal.pause()
    server.close()


if __name__ == "__main__":
    main()
