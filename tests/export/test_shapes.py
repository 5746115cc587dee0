"""Files refuse inputs of other shapes than the model's: all formats, all signatures."""

from __future__ import annotations

import json
import zipfile

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.adapters import export_adapters
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.runners import _interpreter, load_onnx, load_openvino
from keras_vit.export.saved_model import export_saved_model
from keras_vit.families.siglip import SIGLIP2_NAFLEX
from keras_vit.segmentation.export import export_segmenter
from keras_vit.segmentation.model import build_segmenter
from tests.checks import quick
from tests.fixtures import tiny_config

# As many pixels as one image, or some, rows that patches leave out, channels that broadcast.
OTHERS = (
    *((1, 64, 64, 3), (2, 16, 32, 3), (4, 16, 16, 3), (1, 16, 64, 3), (1, 32, 64, 3)),
    *((32, 32, 3), (1, 33, 32, 3), (1, 32, 33, 3), (1, 32, 32, 1), (1, 32, 32, 6), (1, 3, 32, 32)),
)


def check_shapes(run, wrong=OTHERS, right=((1, 32, 32, 3),)):
    for shape in right:
        run(np.zeros(shape, "float32"))
    for shape in wrong:
        try:
            answer = run(np.zeros(shape, "float32"))
        except Exception:  # each runtime has its own
            continue
        pytest.fail(f"{shape} is answered: {answer}")


@pytest.mark.slow
def test_every_format_has_the_class_names_of_the_model(tmp_path):
    model = keras_vit.build_vit(tiny_config(depth=1, classes=2))
    model.class_names = names = ("cat", "dog")
    served = export_saved_model(model, tmp_path / "served").path
    answer = tf.saved_model.load(str(served)).signatures["pixels"](tf.zeros((1, 32, 32, 3)))
    assert {name.decode() for name in answer["classes"].numpy()[0]} == set(names)
    lite = export_litert(model, tmp_path / "m.tflite").path
    with zipfile.ZipFile(lite) as archive:
        assert archive.read("labels.txt").decode().split() == list(names)
    graph = onnx.load(export_onnx(model, tmp_path / "m.onnx").path)
    (card,) = (x.value for x in graph.metadata_props if x.key == "model_card")
    assert json.loads(card)["labels"] == list(names)
    export_openvino(model, tmp_path / "m.xml")
    assert "cat" in (tmp_path / "m.xml").read_text()
    segmenter = build_segmenter(model, classes=2)
    segmenter.class_names = ("sky", "sea")
    export_segmenter(segmenter, tmp_path / "maps")
    assert (tmp_path / "maps/1/assets.extra/labels.txt").read_text() == "sky\nsea\n"


def signatures_of(path):
    """The signatures of a SavedModel by name, each as a function of one array."""
    loaded = tf.saved_model.load(str(path))
    for name, signature in loaded.signatures.items():
        ((key, spec),) = signature.structured_input_signature[1].items()
        yield name, lambda x, s=signature, k=key, d=spec.dtype: s(**{k: tf.cast(x, d)})


def test_every_signature_of_a_saved_model(compiled):
    signatures = dict(signatures_of(compiled))
    for name in ("pixels", "plain_pixels"):
        check_shapes(signatures[name])
    for name in ("images", "float_images"):  # of any size
        wrong = [(32, 32, 3), (1, 32, 32, 1), (1, 32, 32, 6), (1, 1, 32, 32, 3)]
        check_shapes(signatures[name], wrong, right=[(2, 20, 40, 3)])
    loaded = tf.saved_model.load(str(compiled))
    for name in ("serving_default", "tolerant", "features", "plain"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            loaded.signatures[name](image_bytes=tf.constant([[b"image"]]))


def test_the_error_of_a_signature_names_both_shapes(loaded):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1,64,64,3\].*\[\?,32,32,3\]"):
        loaded.signatures["pixels"](pixels=tf.zeros((1, 64, 64, 3)))


def test_a_model_of_any_size_refuses_other_channels_only(tmp_path):
    model = keras_vit.build_vit(tiny_config(depth=1, image_size=16, any_size=True))
    path = export_saved_model(model, tmp_path).path
    right = [(1, 64, 64, 3), (2, 16, 32, 3), (1, 33, 32, 3)]
    check_shapes(dict(signatures_of(path))["pixels"], [(32, 32, 3), (1, 32, 32, 1)], right)


@pytest.mark.slow
def test_a_model_of_patches(tmp_path):
    sizes = tiny_config(depth=1, patch_size=4, image_size=16)
    names = ("patch_size", "width", "depth", "num_heads", "mlp_dim", "image_size")
    fields = {name: sizes.to_dict()[name] for name in names}
    config = keras_vit.make_config(**{**SIGLIP2_NAFLEX, **fields, "max_num_patches": 16})
    path = export_litert(keras_vit.models.build_naflex(config), tmp_path / "m.tflite").path

    def run(shape):
        interpreter = _interpreter(path)
        values = {"patches": np.zeros(shape, "float32"), "grid": np.full((1, 2), 4, "int32")}
        interpreter.get_signature_runner("serving_default")(**values)

    run((1, 16, 48))
    for shape in ((1, 12, 48), (1, 16, 32), (1, 12, 64), (1, 48, 16), (16, 48)):
        with pytest.raises((RuntimeError, ValueError)):
            pytest.fail(f"{shape} is answered: {run(shape)}")


def test_a_segmenter(tmp_path):
    model = build_segmenter(keras_vit.build_vit(tiny_config(depth=1, classes=None)), 3)
    signatures = dict(signatures_of(export_segmenter(model, tmp_path).path))
    check_shapes(signatures["pixels"])
    wrong = [(1, 32, 32, 3), (32, 32, 1), (32, 32, 6)]
    check_shapes(signatures["image"], wrong, right=[(20, 40, 3)])


@pytest.mark.slow
def test_adapters(model, tmp_path):
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    path = export_adapters({"pets": model, "birds": twin}, tmp_path)["pets"].path
    signatures = dict(signatures_of(path))
    for name in ("pets_pixels", "birds_pixels"):
        check_shapes(signatures[name])


def litert_runner(path):
    def run(pixels):
        interpreter = _interpreter(path)
        index = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(index, pixels.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(index, pixels)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return run


LITERT = [("float32", 1), ("float32", None), ("dynamic", 1), ("int8", 1)]


@pytest.mark.parametrize(("precision", "batch_size"), quick(LITERT, ("float32", None), ("int8", 1)))
def test_litert_files_that_are_resized(precision, batch_size, model, pixels, tmp_path):
    calibration = pixels if precision == "int8" else None
    path = tmp_path / "m.tflite"
    options = {"calibration": calibration, "tolerance": float("inf")}
    export_litert(model, path, precision, batch_size=batch_size, **options)
    batches = [(2, 32, 32, 3), (3, 32, 32, 3)]
    if batch_size is None:
        check_shapes(litert_runner(path), right=batches)
    else:
        check_shapes(litert_runner(path), wrong=[*OTHERS, *batches])


@pytest.mark.parametrize(
    ("export", "load", "suffix"),
    [(export_onnx, load_onnx, "onnx"), (export_openvino, load_openvino, "xml")],
)
def test_onnx_and_openvino(export, load, suffix, model, tmp_path):
    path = tmp_path / f"m.{suffix}"
    export(model, path)
    check_shapes(load(path), right=[(1, 32, 32, 3), (3, 32, 32, 3)])
