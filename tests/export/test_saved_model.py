"""SavedModel exports: signatures, XLA, precision, versions."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.errors import ExportMismatchError
from keras_vit.export import freeze
from keras_vit.export.inference import prepare
from keras_vit.export.runners import load_saved_model
from keras_vit.export.saved_model import ServingModule, export_saved_model
from keras_vit.models.naflex import build_naflex
from keras_vit.models.vit import build_vit
from keras_vit.segmentation.model import build_segmenter
from tests.counts import check_counts, script
from tests.data.kinds import claim
from tests.export.conftest import LABELS
from tests.fixtures import tiny_config

pytestmark = pytest.mark.xdist_group("saved_model")


def encode(image, kind="png"):
    encoder = {"png": tf.io.encode_png, "jpeg": tf.io.encode_jpeg}[kind]
    return encoder(image.astype("uint8")).numpy()


def test_the_report_holds_sizes_and_latencies(exported):
    assert exported.path.name == "1"
    assert exported.max_difference < 1e-5
    assert exported.top1_agreement == 1.0
    assert exported.size == sum(f.stat().st_size for f in exported.path.rglob("*") if f.is_file())
    assert exported.latency_ms > 0 and exported.processor_ms > 0


def test_sizes_of_graph_and_files_are_unchanged(exported, model):
    check_counts("saved_model", script()["saved_model_size"](exported.path, model))


def test_pixels_give_the_models_logits(exported, model, pixels):
    outputs = load_saved_model(exported.path)(pixels)
    np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        outputs["probabilities"], tf.nn.softmax(model(pixels)), rtol=0, atol=1e-6
    )
    order = np.argsort(-outputs["logits"], axis=1)[:, :5]
    assert outputs["classes"].tolist() == np.array(LABELS, "S")[order].tolist()
    np.testing.assert_array_equal(
        outputs["scores"], np.take_along_axis(outputs["probabilities"], order, 1)
    )


def test_encoded_images_of_the_models_size_give_the_logits_of_their_pixels(loaded, model, pixels):
    image_bytes = tf.constant([encode(image) for image in pixels])
    for name in ("serving_default", "tolerant"):
        outputs = loaded.signatures[name](image_bytes=image_bytes)
        np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-5)


def test_an_unreadable_image_fails_the_batch_only_in_serving_default(loaded, model, pixels):
    image_bytes = tf.constant([encode(pixels[0]), b"not an image", encode(pixels[1])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Image 1 is no JPEG, PNG, GIF, BMP"):
        loaded.signatures["serving_default"](image_bytes=image_bytes)
    outputs = loaded.signatures["tolerant"](image_bytes=image_bytes)
    assert outputs["valid"].numpy().tolist() == [True, False, True]
    np.testing.assert_allclose(outputs["logits"][::2], model(pixels[:2]), rtol=0, atol=1e-5)
    assert not outputs["probabilities"][1].numpy().any()
    assert not any(outputs["classes"][1].numpy())


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "bmp", "webp"])
def test_a_small_file_that_claims_to_be_large_is_refused(kind, loaded, model, pixels):
    images = tf.constant([encode(pixels[0]), claim(kind, 13_000, 11_000)])
    reason = r"Image 1 has 11000 x 13000 pixels, more than max_pixels=33554432"
    for name in ("serving_default", "features"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
            loaded.signatures[name](image_bytes=images)
    tolerant = loaded.signatures["tolerant"]
    tolerant(image_bytes=images[:1])  # the first call prepares the graph
    start = time.process_time()
    outputs = tolerant(image_bytes=images)
    assert time.process_time() - start < 1
    assert outputs["valid"].numpy().tolist() == [True, False]
    np.testing.assert_allclose(outputs["logits"][:1], model(pixels[:1]), rtol=0, atol=1e-5)


def test_the_limit_of_pixels_is_exported(model, pixels):
    images = tf.constant([encode(pixels[0]), encode(pixels[0, :, :31])])
    with pytest.raises(ValueError, match="max_pixels"):
        export_saved_model(model, "anywhere", max_pixels=0)
    module = ServingModule(prepare(model, "float32"), LABELS, 5, max_pixels=32 * 31)
    outputs = module.signatures()["tolerant"](image_bytes=images)
    assert outputs["valid"].numpy().tolist() == [False, True]


def functions_of(path):
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    message.ParseFromString((path / "saved_model.pb").read_bytes())
    return message.meta_graphs[0].graph_def.library.function


def test_variables_of_equal_shape_are_one_and_their_slices_no_copies(exported, model):
    """Otherwise each of many functions has an input for each of the model's variables."""
    shapes = {(weight.shape, weight.dtype) for weight in model.weights}
    inputs = [len(function.signature.input_arg) for function in functions_of(exported.path)]
    many = [count for count in inputs if count > len(shapes) + 2]  # a saver has two more
    assert len(shapes) < len(model.weights) / 2 and len(many) == 1  # the graph of the model
    kernels = [tf.Variable(tf.random.normal((16, 16))) for _ in range(3)]
    small = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0]), tf.Variable(5)]
    odd = [tf.Variable(tf.random.normal((1025,))) for _ in range(2)]
    weights = [*kernels, *odd, *small]
    saved, read = freeze.stack_equal(weights[::-1])
    assert len(saved) == 5
    for weight, value in zip(weights[::-1], read(), strict=True):
        np.testing.assert_array_equal(value, weight)
    (stack,) = (np.asarray(memoryview(v.read_value())) for v in saved if v.shape == (3, 16, 16))
    parts = [np.asarray(memoryview(value)) for value in read() if value.shape == (16, 16)]
    assert len(parts) == 3 and all(np.shares_memory(stack, part) for part in parts)


def compiled_functions(path):
    """Counts the functions of a SavedModel that XLA must compile."""
    return sum(function.attr["_XlaMustCompile"].b for function in functions_of(path))


def reaches_xla(function):
    """Whether a signature calls a function that XLA must compile."""
    definitions = function.graph.as_graph_def().library.function
    return any(each.attr["_XlaMustCompile"].b for each in definitions)


def test_four_images_of_a_request_are_decoded_at_once(exported):
    """Which bounds the memory of a request: `benchmarks/image_bombs.py --batch 8` measures it."""
    nodes = [node for function in functions_of(exported.path) for node in function.node_def]
    loops = [node for node in nodes if node.op.endswith("While") and node.name.startswith("map/")]
    assert len(loops) == 3  # of float_images, images, and image files (not of `tolerant`)
    assert {node.attr["parallel_iterations"].i for node in loops} == {4}


@pytest.mark.slow
def test_jit_compile_marks_the_model_for_xla(exported, compiled, model, pixels):
    assert compiled_functions(compiled) and not compiled_functions(exported.path)
    nodes = [sum(len(f.node_def) for f in functions_of(p)) for p in (exported.path, compiled)]
    assert nodes[1] < nodes[0] + 100  # signatures with and without XLA share one model
    loaded = tf.saved_model.load(str(compiled))
    plain, twin = loaded.signatures["plain"], loaded.signatures["plain_pixels"]
    assert all(
        reaches_xla(each) == (each not in (plain, twin)) for each in loaded.signatures.values()
    )
    np.testing.assert_allclose(twin(pixels=pixels)["logits"], model(pixels), rtol=0, atol=1e-5)
    outputs = plain(image_bytes=tf.constant([encode(image) for image in pixels]))
    np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-5)
    outputs = loaded.signatures["pixels"](pixels=tf.constant(pixels[:2]))  # another batch size
    np.testing.assert_allclose(outputs["logits"], model(pixels[:2]), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_computation_has_float32_outputs(model, pixels, tmp_path):
    report = export_saved_model(model, tmp_path / "m", precision="bfloat16", images=pixels)
    assert 1e-4 < report.max_difference < 3e-2  # 8 bits: 2 ** -8 a layer, but not float32
    outputs = load_saved_model(report.path)(pixels)
    floats = ("logits", "probabilities", "features", "scores")
    assert {outputs[name].dtype.name for name in floats} == {"float32"}
    exact = ("norm", "head")  # parts that compute in float32
    read = [w for w in model.weights if not any(name in w.path for name in exact)]
    elements = sum(int(np.prod(weight.shape)) for weight in read)
    variables = tf.train.load_checkpoint(f"{report.path}/variables/variables")
    dtypes = variables.get_variable_to_dtype_map()
    shapes = variables.get_variable_to_shape_map()
    halves = [name for name, dtype in dtypes.items() if dtype == tf.bfloat16]
    assert sum(int(np.prod(shapes[name])) for name in halves) == elements
    assert set(dtypes.values()) <= {tf.bfloat16, tf.float32, tf.string}


def tiny_vit(**changes):
    return build_vit(tiny_config(depth=1, **changes))


MADE = {
    "distilled": lambda: tiny_vit(distillation_token=True, classifier_activation="softmax"),
    "norms": lambda: tiny_vit(norm_before_blocks=True, norm_patches=True),
    "any aspect": lambda: build_naflex(
        tiny_config(depth=1, max_num_patches=20, pooling="gap", class_token=False)
    ),
    "segmenter": lambda: build_segmenter(tiny_vit(), classes=3),
}


@pytest.mark.parametrize("kind", MADE)
def test_half_precision_is_that_of_the_policy(kind):
    model = MADE[kind]()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = MADE[kind]()
    finally:
        keras.config.set_dtype_policy("float32")
    prepared = prepare(model, "bfloat16", any_aspect=True).model
    inputs = keras.layers.InputLayer  # of the floats that images are
    found, expected = (
        {x.name: x.compute_dtype for x in each.layers if not isinstance(x, inputs)}
        for each in (prepared, half)
    )
    assert found == expected and found["block_0"] == "bfloat16"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_other_weights_compute_what_the_model_does(precision, model, pixels):
    inference = prepare(model, precision)
    spec = tf.TensorSpec((None, 32, 32, 3), tf.float32, "pixels")
    function = tf.function(inference).get_concrete_function(spec)
    expected = function(tf.constant(pixels))
    halves = freeze.weights_as_read(inference, function)
    assert {"float32", precision} == {weight.dtype.name for weight in halves}
    other = tf.function(freeze.with_weights(inference, halves)).get_concrete_function(spec)
    for name, value in other(tf.constant(pixels)).items():
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(value / scale, expected[name] / scale, rtol=0, atol=4e-3)


def test_versions_are_numbered_and_never_overwritten(exported, model):
    images = [np.full((20, 30 + i, 3), 40 * i, "uint8") for i in range(5)]  # of several sizes
    folder = exported.path.parent
    assert exported.path.name == "1"
    report = export_saved_model(model, folder, images=images)
    assert report.images == 5 and report.max_difference < 1e-5
    assert report.path.name == "2"
    with pytest.raises(FileExistsError, match=r"2' already exists"):
        export_saved_model(model, folder, version=2)
    assert sorted(entry.name for entry in folder.iterdir()) == ["1", "2"]


@pytest.mark.slow
def test_an_export_to_a_remote_address(model, pixels):
    report = export_saved_model(model, "ram://serving/pets")
    assert report.path == "ram://serving/pets/1"
    loaded = tf.saved_model.load(report.path)
    logits = loaded.signatures["pixels"](tf.constant(pixels))["logits"]
    np.testing.assert_allclose(logits, model(pixels), rtol=0, atol=1e-5)
    assert export_saved_model(model, "ram://serving/pets").path == "ram://serving/pets/2"


@pytest.mark.slow
def test_an_export_that_differs_leaves_no_file(model, tmp_path):
    with pytest.raises(ExportMismatchError, match="saved_model export differs from the model"):
        export_saved_model(model, tmp_path / "m", tolerance=-1.0)
    assert not list(tmp_path.iterdir())
