"""SavedModels as a server runs them, without the Python code of the model."""

from __future__ import annotations

import base64
import io
import json
import os
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from PIL import Image
from tensorflow.python.tools import saved_model_cli

from keras_vit.export.inference import check_labels, prepare
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.serving import write_server_config, write_version_files
from keras_vit.models.vit import build_vit
from tests.export.conftest import LABELS
from tests.fixtures import tiny_config

pytestmark = pytest.mark.xdist_group("saved_model")


@pytest.fixture
def version(exported):
    return exported.path


def quiet_environment():
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


@pytest.mark.parametrize("fixture", ["version", pytest.param("compiled", marks=pytest.mark.slow)])
def test_the_c_api_loads_it_in_a_process_without_python_tensorflow(
    fixture, request, model, pixels, tmp_path
):
    version = request.getfixturevalue(fixture)
    png = tmp_path / "image.png"
    png.write_bytes(tf.io.encode_png(pixels[0].astype("uint8")).numpy())
    signature = _signature(version, "serving_default")
    library = pathlib.Path(tf.__file__).parent / "libtensorflow_cc.so.2"
    names = [signature.inputs["image_bytes"].name, signature.outputs["logits"].name]
    script = pathlib.Path(__file__).with_name("bare_process.py")
    result = subprocess.run(
        [sys.executable, "-I", script, library, version, png, *names],
        env=quiet_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    np.testing.assert_allclose(
        json.loads(result.stdout), np.asarray(model(pixels[:1]))[0], rtol=0, atol=1e-5
    )


_CALLS = """
import sys
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
images = np.load(sys.argv[2])
calls = [images[:1], images[1:4], images, images[1:2], images[2:5]]
results = [loaded.signatures["pixels"](pixels=tf.constant(x))["logits"] for x in calls]
np.save(sys.argv[3], np.concatenate(results))
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_servers_may_assume_that_weights_do_not_change(precision, model, pixels, tmp_path):
    # the setting of compose.yaml: oneDNN arranges the weights once, whatever the batches
    version = export_saved_model(model, tmp_path / "m", precision=precision).path
    np.save(tmp_path / "pixels.npy", pixels)
    found = []
    for setting in "01":
        variables = {"TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": setting, "TF_ENABLE_ONEDNN_OPTS": "1"}
        words = [sys.executable, "-c", _CALLS, version, tmp_path / "pixels.npy", tmp_path / "o.npy"]
        subprocess.run(words, env=quiet_environment() | variables, check=True)
        found.append(np.load(tmp_path / "o.npy"))
    # rounding: oneDNN's kernels for arranged weights add up in another order
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-6 * np.abs(found[0]).max())


def _signature(version, name):
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    message.ParseFromString((version / "saved_model.pb").read_bytes())
    return message.meta_graphs[0].signature_def[name]


def test_saved_model_cli_runs_it(version, model, pixels, tmp_path, monkeypatch):
    np.save(tmp_path / "pixels.npy", pixels)
    words = ["saved_model_cli", "run", "--dir", str(version), "--tag_set", "serve"]
    words += ["--signature_def", "pixels", "--outdir", str(tmp_path)]
    words += ["--inputs", f"pixels={tmp_path / 'pixels.npy'}"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a process of its own
        saved_model_cli.main()
    assert not stop.value.code
    logits = np.load(tmp_path / "logits.npy")
    np.testing.assert_allclose(logits, model(pixels), rtol=0, atol=1e-5)


def test_warm_up_requests_are_official_messages_and_run(version, loaded):
    protos = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = version / "assets.extra" / "tf_serving_warmup_requests"
    sizes = []
    for record in tf.data.TFRecordDataset(str(path)):
        request = protos.PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        outputs = loaded.signatures[request.model_spec.signature_name](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        assert np.isfinite(outputs["logits"]).all()
        sizes.append(len(outputs["logits"]))
    assert sizes == [1, 4]


def test_the_file_computes_the_golden_outputs_of_the_model_card(version, loaded):
    card = json.loads((version / "assets.extra" / "model_card.json").read_text())
    assert card["labels"] == LABELS
    assert card["input_shape"] == [32, 32, 3]
    assert card["preprocessing"]["mean"] == [127.5]
    assert card["max_pixels"] == 2**25
    image = tf.constant([base64.b64decode(card["golden"]["png"])])
    outputs = loaded.signatures["serving_default"](image_bytes=image)
    for name in ("logits", "probabilities", "features"):
        np.testing.assert_allclose(outputs[name][0], card["golden"][name], rtol=0, atol=1e-5)
    labels = (version / "assets.extra" / "labels.txt").read_text().splitlines()
    assert labels == LABELS


def test_the_server_configuration_parses_as_official_messages(tmp_path):
    protos = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    write_server_config(tmp_path, {"tiny": "/models/tiny"}, (1, 4, 16))
    config = protos.ModelServerConfig()
    text_format.Parse((tmp_path / "models.config").read_text(), config)
    assert config.model_config_list.config[0].name == "tiny"
    assert config.model_config_list.config[0].base_path == "/models/tiny"
    batching = (tmp_path / "batching.config").read_text()
    assert "max_batch_size { value: 16 }" in batching
    assert [line for line in batching.splitlines() if line.startswith("allowed")] == [
        "allowed_batch_sizes: 1",
        "allowed_batch_sizes: 4",
        "allowed_batch_sizes: 16",
    ]


def test_batch_sizes_must_be_ascending(tmp_path):
    with pytest.raises(ValueError, match="must be ascending positive integers"):
        write_server_config(tmp_path, {"tiny": "/models/tiny"}, (4, 2))


def test_base_paths_must_be_absolute(tmp_path):
    with pytest.raises(ValueError, match=r"needs absolute paths.*'models/tiny'"):
        write_server_config(tmp_path, {"tiny": "models/tiny"})


def test_corrupted_image_files_never_crash_the_process(loaded, pixels):
    rng = np.random.default_rng(0)
    image = pixels[0].astype("uint8")
    files = [tf.io.encode_png(image).numpy(), tf.io.encode_jpeg(image).numpy()]
    files += [b"GIF89a" + bytes(40), b"BM" + bytes(60), b"RIFF\x10\0\0\0WEBPVP8 " + bytes(20)]
    files += [_file(kind, image, 255 - image) for kind in ("gif", "webp")]  # animated
    broken = [b"", b"\0", b"\xff\xd8\xff", files[0][:-20], files[1][: len(files[1]) // 2]]
    for _ in range(60):
        data = bytearray(files[rng.integers(len(files))])
        for position in rng.integers(0, len(data), rng.integers(1, 12)):
            data[position] = rng.integers(256)
        broken.append(bytes(data))
    outputs = loaded.signatures["tolerant"](image_bytes=tf.constant(broken))
    valid = outputs["valid"].numpy()
    assert not valid[:3].any()
    assert np.isfinite(outputs["logits"]).all()
    assert not outputs["logits"].numpy()[~valid].any()


def test_a_gif_and_a_webp_file_are_decoded(loaded):
    stripes = np.zeros((32, 32, 3), "uint8")
    stripes[::4] = (255, 0, 0)
    kinds = {"png": {}, "webp": {"lossless": True}, "gif": {}}
    files = {kind: _file(kind, stripes, **options) for kind, options in kinds.items()}
    files["animated gif"] = _file("gif", stripes, 255 - stripes)
    run = loaded.signatures["tolerant"]
    outputs = run(image_bytes=tf.constant(list(files.values())))
    valid = dict(zip(files, outputs["valid"].numpy().tolist(), strict=True))
    assert valid == {"png": True, "webp": _reads(files["webp"]), "gif": True, "animated gif": True}
    for row in outputs["logits"].numpy()[outputs["valid"].numpy()]:
        np.testing.assert_allclose(row, outputs["logits"][0], rtol=0, atol=1e-5)


def _reads(data):
    """Whether this TensorFlow decodes a file: older versions lack WebP."""
    try:
        return bool(len(tf.io.decode_image(data)))
    except tf.errors.InvalidArgumentError:
        return False


def _file(kind, *frames, **options):
    images = [Image.fromarray(frame) for frame in frames]
    file = io.BytesIO()
    animation = {"save_all": True, "append_images": images[1:]} if images[1:] else {}
    images[0].save(file, kind, **animation, **options)
    return file.getvalue()


def test_images_of_any_size_and_kind(loaded):
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (40, 90, 3), "uint8")
    grey = rng.integers(0, 256, (1, 1, 1), "uint8")
    transparent = rng.integers(0, 256, (16, 16, 4), "uint8")
    deep = rng.integers(0, 65536, (20, 20, 3), "uint16")
    files = [tf.io.encode_png(image).numpy() for image in (wide, grey, transparent, deep)]
    files.append(tf.io.encode_jpeg(wide, quality=100).numpy())
    outputs = loaded.signatures["tolerant"](image_bytes=tf.constant(files))
    assert outputs["valid"].numpy().all()
    np.testing.assert_allclose(outputs["scores"][0], outputs["scores"][4], rtol=0, atol=0.1)


def test_labels_are_one_line_each_in_utf8(tmp_path):
    labels = [*"abcdefgh", "Äpfel", "犬"]
    write_version_files(tmp_path, prepare(build_vit(tiny_config())), labels, "float32", (), 1000)
    text = (tmp_path / "assets.extra" / "labels.txt").read_bytes()
    assert text.decode("utf-8").split("\n") == [*labels, ""]
    with pytest.raises(ValueError, match=r"must be one line.*'two\\nlines'"):
        check_labels([*"abcdefgh", "two\nlines", "a\0"], 10)
    with pytest.raises(ValueError, match=r"must be one line of UTF-8.*'\\udcff'"):
        check_labels(["\udcff"], 1)
    named = build_vit(tiny_config(classes=2))
    named.class_names = ["cat", "dog"]
    assert check_labels(None, 2, named) == ["cat", "dog"]
    assert check_labels(["a", "b"], 2, named) == ["a", "b"]
    assert check_labels(None, 2, build_vit(tiny_config(classes=2))) == ["0", "1"]
    with pytest.warns(UserWarning, match=r"same label.*\['a'\]"):
        assert check_labels(["a", "b", "a"], 3) == ["a", "b", "a"]
