"""Checks the folders of `keras_vit.export.export_for_server`; see `scripts/check-servers`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

import keras_vit
import keras_vit.export
from keras_vit.export.serving import encode_png
from tests.fixtures import fill_random, images_for

README = pathlib.Path(__file__).parents[2] / "export" / "model_servers" / "README.md"
LABELS = [f"class {letter}" for letter in "abcdefghij"]
SIZES = (1, 2, 4, 8)
# Runs an exported file in Triton's backend for Python, in place of the backend of its format.
STAND_IN = """
import json, os, pathlib
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        version = pathlib.Path(args["model_repository"]) / args["model_version"]
        self.input = config["input"][0]["name"]
        self.outputs = {each["name"]: each["data_type"] for each in config["output"]}
        if (version / "model.onnx").exists():
            import onnxruntime
            session = onnxruntime.InferenceSession(version / "model.onnx")
            names = [each.name for each in session.get_outputs()]
            self.run = lambda x: dict(zip(names, session.run(names, {self.input: x})))
        else:
            import tensorflow as tf
            self.loaded = tf.saved_model.load(str(version / "model.savedmodel"))
            signature = config["parameters"]["TF_SIGNATURE_DEF"]["string_value"]
            call = self.loaded.signatures[signature]
            self.run = lambda x: {k: v.numpy() for k, v in call(tf.constant(x)).items()}

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(each, self.input).as_numpy() for each in requests]
        ends = np.cumsum([len(each) for each in inputs])[:-1]
        found = self.run(np.concatenate(inputs))
        assert found.keys() == self.outputs.keys(), (found.keys(), self.outputs.keys())
        for name, values in found.items():
            assert np.dtype(pb.triton_string_to_numpy(self.outputs[name])) == values.dtype, name
        parts = {name: np.split(values, ends) for name, values in found.items()}
        return [
            pb.InferenceResponse([pb.Tensor(name, parts[name][i]) for name in parts])
            for i in range(len(requests))
        ]
"""


def main(schema: str | None = None) -> None:
    model = keras_vit.create_model("vit_ti16", input_shape=(64, 64, 3), classes=10)
    fill_random(model, stddev=0.05)
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder)
        kinds = [("triton", "onnx"), ("triton", "saved_model"), ("ovms", "openvino")]
        for server, format in kinds:
            path = repository / server / format
            arguments = (path, server, format, SIZES)
            keras_vit.export.export_for_server(model, *arguments, labels=LABELS, verbose=False)
        pixels = np.round(images_for(model, count=6))
        logits = np.asarray(model(pixels))
        check_triton_schema(repository / "triton")
        check_triton(repository / "triton", pixels, logits)
        check_ovms(repository / "ovms", pixels, logits, schema)


def check_triton_schema(repository: pathlib.Path) -> None:
    """Parses every `config.pbtxt` as the published message."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    for path in sorted(repository.glob("*/config.pbtxt")):
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        assert config.name == path.parent.name and config.max_batch_size == SIZES[-1]
        assert (
            path.parent / "1" / {"onnx": "model.onnx"}.get(config.name, "model.savedmodel")
        ).exists()
        version = importlib.metadata.version("tritonclient")
        print(f"{path.parent.name}/config.pbtxt is a ModelConfig of tritonclient {version}")


def check_triton(repository: pathlib.Path, pixels: np.ndarray, logits: np.ndarray) -> None:
    """Runs Triton with the stand-in, and sends it requests, several at once."""
    for path in repository.glob("*/config.pbtxt"):
        text = re.sub("(?m)^platform: .*", 'backend: "python"', path.read_text())
        path.write_text(text)
        (path.parent / "1" / "model.py").write_text(STAND_IN)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        **command_of_triton(repository, port), stderr=subprocess.PIPE, text=True
    )
    try:
        requests(f"127.0.0.1:{port}", process, pixels, logits)
    finally:
        process.terminate()
        process.wait()


def command_of_triton(repository: pathlib.Path, port: int) -> dict:
    """The arguments of `subprocess.Popen` that run the server of the wheel nvidia-pytriton."""
    import pytriton

    package = pathlib.Path(pytriton.__file__).parent
    server = repository.parent / "tritonserver"
    shutil.copytree(package / "tritonserver", server)
    version = ".".join(map(str, sys.version_info[:2]))
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, server / "backends" / "python")
    words = [server / "bin/tritonserver", f"--model-repository={repository}"]
    words += [f"--backend-directory={server / 'backends'}", f"--http-port={port}"]
    words += ["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
    words += ["--backend-config=python,shm-region-prefix-name=check_servers"]
    libraries = [str(package.parent / "nvidia_pytriton.libs"), str(server / "external_libs")]
    python = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": python, "LD_LIBRARY_PATH": ":".join(libraries)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # of this environment
    return {"args": words, "env": environment}


def requests(
    address: str, process: subprocess.Popen, pixels: np.ndarray, logits: np.ndarray
) -> None:
    import tritonclient.http as triton

    client = triton.InferenceServerClient(address, concurrency=6)
    end = time.monotonic() + 120
    while True:
        try:
            if client.is_server_ready():
                break
        except ConnectionRefusedError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            process.terminate()
            raise SystemExit(process.stderr and process.stderr.read()[-6000:])
        time.sleep(0.5)
    about = client.get_server_metadata()
    images = {"onnx": pixels, "saved_model": encode(pixels)}

    def ask(name: str, values: np.ndarray, **options):  # an answer that comes later
        kind = "BYTES" if values.dtype == object else "FP32"
        tensor = triton.InferInput({"onnx": "pixels"}.get(name, "image_bytes"), values.shape, kind)
        tensor.set_data_from_numpy(values)
        outputs = [triton.InferRequestedOutput("logits", **options)]
        return client.async_infer(name, [tensor], outputs=outputs)

    (client_code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {}
    exec(client_code, names)
    found = names["ask"](address, "onnx", pixels)
    assert np.abs(found - logits).max() < 1e-4 * np.abs(logits).max()
    for name, values in images.items():
        answers = [ask(name, values[i : i + 1]) for i in range(len(values))]  # at once
        found = np.concatenate([each.get_result().as_numpy("logits") for each in answers])
        difference = np.abs(found - logits).max() / np.abs(logits).max()
        assert difference < 1e-4, difference
        best = ask(name, values[:1], class_count=1).get_result().as_numpy("logits")
        best = best.item().decode().split(":")  # logit, index and label
        assert best[-1] == LABELS[logits[0].argmax()], best
        statistics = client.get_inference_statistics(name)["model_stats"][0]["batch_stats"]
        sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in statistics}
        print(
            f"{name} in {about['name']} {about['version']}, run by a stand-in: difference "
            f"{difference:.1e} of the largest logit; batches (size: count) {sizes}"
        )


def encode(pixels: np.ndarray) -> np.ndarray:
    """PNG files of shape `(B, 1)`."""
    return np.array([[encode_png(image)] for image in pixels], object)


def check_ovms(repository: pathlib.Path, pixels, logits, schema: str | None) -> None:
    """Checks `config.json` by the server's schema, and runs the model as it says."""
    import jsonschema
    import openvino

    config = json.loads((repository / "config.json").read_text())
    if schema is None:
        print("config.json was not checked by the server's schema: src/schema.cpp was not given")
    else:
        rules = read_schema(pathlib.Path(schema).read_text())
        jsonschema.Draft4Validator(rules).validate(config)
        config["model_config_list"][0]["config"]["basepath"] = ""
        assert not jsonschema.Draft4Validator(rules).is_valid(config)  # so the schema can refuse
        print("config.json follows the schema of OpenVINO Model Server")
    entry = config["model_config_list"][0]["config"]
    graph = repository / entry["base_path"] / "1" / "model.xml"
    device = entry["target_device"], entry["plugin_config"]
    compiled = openvino.Core().compile_model(graph, *device)
    difference = np.abs(compiled(pixels)["logits"] - logits).max() / np.abs(logits).max()
    assert difference < 1e-4, difference
    print(
        f"openvino in OpenVINO {openvino.__version__.split('-')[0]} with the configuration: "
        f"difference {difference:.1e} of the largest logit"
    )


def read_schema(source: str) -> dict:
    """The schema of `config.json` in `src/schema.cpp`: raw strings, put together by `+`."""
    source = re.sub(r"(?m)^#(if|endif).*$", "", source)
    texts: dict[str, str] = {}
    definition = r'const std::string (\w+) = (R"\(.*?\)"(?:\s*\+.*?)?);\n'
    for name, value in re.findall(definition, source, re.DOTALL):
        parts = re.findall(r'R"\((.*?)\)"|\+\s*([A-Z_]{2,})', value, re.DOTALL)
        texts[name] = "".join(text or texts.get(other, "") for text, other in parts)
    return json.loads(texts["MODELS_CONFIG_SCHEMA"])


if __name__ == "__main__":
    main(*sys.argv[1:])
