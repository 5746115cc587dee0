"""Repositories of model servers; `scripts/check-servers` gives them to Triton and both schemas."""

from __future__ import annotations

import json
import struct

import numpy as np
import openvino
import pytest
import tensorflow as tf

from keras_vit.export import model_servers
from keras_vit.export.model_servers import export_for_server
from keras_vit.export.runners import load_onnx
from tests.export.conftest import LABELS
from tests.fixtures import tiny_vit

pytestmark = pytest.mark.xdist_group("saved_model")


@pytest.fixture(scope="module")
def small():
    return tiny_vit(depth=1)


@pytest.fixture
def speeds(monkeypatch):
    """Batches of four images are about as fast as of eight, in each run of the test."""
    known = {1: 100.0, 4: 196.0, 8: 200.0}
    monkeypatch.setattr(model_servers, "_speed", lambda runner, images: known[len(images)])


# `scripts/check-servers` gives such texts to the server itself.
ONNX = """\
name: "pets"
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "pixels" data_type: TYPE_FP32 dims: [32, 32, 3] }
output { name: "logits" data_type: TYPE_FP32 dims: [10] label_filename: "labels.txt" }
dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 500 }
"""
SAVED_MODEL = """\
name: "pets"
platform: "tensorflow_savedmodel"
max_batch_size: 8
input { name: "image_bytes" data_type: TYPE_STRING dims: [1] reshape { shape: [] } }
output { name: "classes" data_type: TYPE_STRING dims: [5] }
output { name: "probabilities" data_type: TYPE_FP32 dims: [10] label_filename: "labels.txt" }
output { name: "valid" data_type: TYPE_BOOL dims: [1] reshape { shape: [] } }
dynamic_batching { }
model_warmup { name: "8" batch_size: 8 inputs { key: "image_bytes" value \
{ data_type: TYPE_STRING dims: [1] input_data_file: "image_bytes" } } }
parameters { key: "TF_SIGNATURE_DEF" value { string_value: "tolerant" } }
"""


def test_onnx_for_triton(small, pixels, speeds, tmp_path):
    options = {"batch_sizes": (1, 4, 8), "labels": LABELS, "verbose": False}
    path = tmp_path / "models" / "pets"
    report = export_for_server(small, path, "triton", batch_timeout_micros=500, **options)
    assert report.path == path / "1"
    warmup = 'pixels" value { data_type: TYPE_FP32 dims: [32, 32, 3] random_data: true } } }\n'
    for size in (1, 4, 8):
        warmup_of_size = f'model_warmup {{ name: "{size}" batch_size: {size} inputs {{ key: "'
        assert (warmup_of_size + warmup) in (path / "config.pbtxt").read_text()
    assert (path / "config.pbtxt").read_text().startswith(ONNX)
    assert (path / "labels.txt").read_text().split("\n") == [*LABELS, ""]
    logits = load_onnx(path / "1" / "model.onnx")(pixels)["logits"]
    np.testing.assert_allclose(logits, small(pixels), rtol=0, atol=1e-4)
    readme = (path / "README.md").read_text()
    assert "\n| 4 | 20.4 | 196.0 | 1.96 |\n" in readme and "The server was not run here" in readme
    again = export_for_server(small, path, "triton", **options)
    assert again.path == path / "2"
    names = ["1", "2", "README.md", "config.pbtxt", "labels.txt"]
    assert sorted(each.name for each in path.iterdir()) == names


def test_the_configuration_of_a_saved_model_for_triton():
    outputs = {
        "valid": np.ones(1, bool),
        "classes": np.full((1, 5), b"a", object),
        "probabilities": np.zeros((1, 10), "float32"),
    }
    image = np.array(b"encoded", object)
    arguments = ("pets", "saved_model", image, outputs, LABELS)
    assert model_servers._triton_config(*arguments, [8], 1, 2000) == SAVED_MODEL


@pytest.mark.slow
def test_a_saved_model_for_triton(small, pixels, speeds, tmp_path):
    export_for_server(small, tmp_path / "pets", "triton", "saved_model", (1, 4), labels=LABELS)
    config = (tmp_path / "pets" / "config.pbtxt").read_text()
    assert SAVED_MODEL.splitlines()[3] in config and SAVED_MODEL.splitlines()[-1] in config
    loaded = tf.saved_model.load(str(tmp_path / "pets" / "1" / "model.savedmodel"))
    warmup = (tmp_path / "pets" / "warmup" / "image_bytes").read_bytes()
    (length,) = struct.unpack("<I", warmup[:4])
    outputs = loaded.signatures["tolerant"](tf.constant([warmup[4:], b"no image"]))
    assert length == len(warmup) - 4 and outputs["valid"].numpy().tolist() == [True, False]


def test_the_configuration_of_openvino_model_server(tmp_path):
    other = {"config": {"name": "birds", "base_path": "/elsewhere"}}
    old = {"config": {"name": "pets", "base_path": "old"}}
    written = {"model_config_list": [old, other], "monitoring": {"metrics": {"enable": True}}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = json.loads(model_servers._ovms_config(model_servers._read_config(tmp_path), "pets"))
    assert config["monitoring"] == written["monitoring"]
    assert config["model_config_list"][0] == other
    assert config["model_config_list"][1:] == [
        {
            "config": {
                "name": "pets",
                "base_path": "pets",
                "target_device": "CPU",
                "model_version_policy": {"latest": {"num_versions": 1}},
                "plugin_config": {"INFERENCE_PRECISION_HINT": "f32"},
            }
        }
    ]


@pytest.mark.slow
def test_openvino_for_its_server(small, pixels, speeds, tmp_path):
    export_for_server(small, tmp_path / "pets", "ovms", batch_sizes=(1, 4), verbose=False)
    entry = json.loads((tmp_path / "config.json").read_text())["model_config_list"][0]["config"]
    graph = tmp_path / entry["base_path"] / "1" / "model.xml"
    run = openvino.Core().compile_model(graph, entry["target_device"], entry["plugin_config"])
    np.testing.assert_allclose(run(pixels)["logits"], small(pixels), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("torchserve",), "`server` must be one of 'triton', 'ovms'"),
        (("ovms", "onnx"), "Formats of the server 'ovms': openvino. Received: 'onnx'"),
        (("triton", None, (4, 2)), "`batch_sizes` must be ascending positive"),
        (("triton", None, (1,), 0), "`batch_timeout_micros` must be a positive integer"),
    ],
)
def test_wrong_arguments_are_refused_before_the_export(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_for_server(None, tmp_path / "pets", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_remote_repository_is_refused():
    with pytest.raises(ValueError, match=r"to a local disk\. Received: 'gs://bucket/pets'\. Copy"):
        export_for_server(None, "gs://bucket/pets", "triton")


@pytest.mark.parametrize("content", ["[]", '{"model_config_list": [{}]}', '{"models": []}'])
def test_a_configuration_of_something_else_is_kept(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="no configuration of OpenVINO Model Server"):
        export_for_server(None, tmp_path / "pets", "ovms")
    assert (tmp_path / "config.json").read_text() == content
