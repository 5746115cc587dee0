"""One model for images of every size: the same as the models that are resized to each of them."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import ResNetStem, RotaryPositions, replace_fields
from keras_vit.export.formats import FORMATS
from keras_vit.models import feature_maps, resize_model
from keras_vit.variants import VARIANTS
from tests.checks import quick
from tests.fixtures import fill_random, tiny_config, tiny_vit
from tests.workers import python

CASES = {
    "learned": {},
    "timm": {"position_resize": "bicubic", "num_registers": 2, "position_on_class_token": False},
    "dinov2": {"position_resize": "bicubic_plain", "pooling": "token_gap"},
    "flexi": {"position_resize": "linear", "pooling": "map", "class_token": False},
    "bilinear": {"position_resize": "bilinear", "distillation_token": True},
    "learned_2d": {"position_embedding": "learned_2d", "position_resize": "bicubic"},
    "sincos": {"position_embedding": "sincos_2d", "pooling": "gap", "norm_after_pooling": True},
    "dinov3": {
        "position_embedding": "none",
        "num_registers": 1,
        "rope": RotaryPositions("centered", 100.0, interleaved=False),
    },
    "eva": {"rope": RotaryPositions(reference_grid=(4, 4), order="wh"), "norm_patches": True},
    "vit5": {"rope": RotaryPositions(register_base=100.0), "num_registers": 4},
    "hybrid": {"stem": ResNetStem((1,)), "patch_size": 2},
}
SIZES = [(32, 32), (24, 48), (56, 16)]
RNG = np.random.default_rng(0)


def pixels(size, count=2):
    return RNG.uniform(0, 255, (count, *size, 3)).astype("float32")


def pair_of(case):
    fixed = tiny_vit(**CASES[case])
    return fixed, resize_model(fixed, None)


def close(found, expected):
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", quick(list(CASES), "timm", "eva"))
def test_one_model_equals_the_resized_model_of_every_size(case):
    fixed, flexible = pair_of(case)
    assert flexible.input_shape == (None, None, None, 3)
    assert [w.path for w in flexible.weights] == [w.path for w in fixed.weights]
    graph = tf.function(flexible, input_signature=[tf.TensorSpec((None, None, None, 3))])
    for size in SIZES:
        images = pixels(size)
        expected = resize_model(fixed, size)(images)
        close(flexible(images), expected)
        close(graph(images), expected)
    np.testing.assert_array_equal(flexible(pixels((32, 32)) * 0), fixed(pixels((32, 32)) * 0))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["timm", "dinov3"])
def test_xla_compiles_each_size_and_training_steps_run(case):
    fixed, flexible = pair_of(case)
    compiled = tf.function(
        flexible, input_signature=[tf.TensorSpec((None, None, None, 3))], jit_compile=True
    )
    for size in SIZES[1:]:
        images = pixels(size)
        close(compiled(images), resize_model(fixed, size)(images))
    flexible.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = flexible.get_weights()
    for size in SIZES[:2]:
        flexible.train_on_batch(pixels(size), np.array([1, 2]))
    assert all(
        np.isfinite(new).all() and (old != new).any()
        for old, new in zip(before, flexible.get_weights(), strict=True)
        if old.size > 96  # biases of keys have no gradient
    )


COMPILED = """
import glob, json, os, sys

os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} --xla_dump_hlo_as_text"
import numpy as np
import tensorflow as tf
import keras_vit
from keras_vit.models import resize_model
from tests.fixtures import tiny_config

flexible = resize_model(keras_vit.build_vit(tiny_config(depth=1)), None)
spec = tf.TensorSpec((None, None, None, 3))
call = tf.function(flexible, input_signature=[spec], jit_compile=True)
flexible.compile("sgd", "mse", jit_compile=True)
found = []
for compute in (call, flexible.predict_on_batch):
    for size in ((32, 32), (24, 48), (32, 32), (24, 48), (56, 16), (32, 32)):
        compute(np.zeros((2, *size, 3), "float32"))
        found.append(len(glob.glob(f"{sys.argv[1]}/*before_optimizations.txt")))
traces = [x.experimental_get_tracing_count() for x in (call, flexible.predict_function)]
print(json.dumps([found, traces]))
"""


@pytest.mark.slow
def test_xla_compiles_once_for_each_size(tmp_path):
    programs, traces = json.loads(python("-c", COMPILED, tmp_path).splitlines()[-1])
    assert programs == [1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 6, 6]
    assert traces == [1, 2]  # Keras traces the first size, then all others at once


def test_gradients_reach_the_positions_of_their_own_grid():
    model = resize_model(keras_vit.build_vit(tiny_config(rematerialize=True)), None)
    fill_random(model)
    table = model.get_layer("position_embedding").embedding.value
    images = tf.constant(pixels((24, 48)))

    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 3))])
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True)[:, 0])
        return tape.gradient(loss, table)

    found = gradient(images)
    assert found.shape == table.shape
    assert (np.abs(found).max(-1) > 0).all()


def test_sides_that_are_no_whole_patches_are_filled_with_the_mean_colour():
    fixed, flexible = pair_of("dinov3")
    images = pixels((27, 41))
    mean = 127.5  # becomes 0
    filled = np.pad(images, ((0, 0), (0, 5), (0, 7), (0, 0)), constant_values=mean)
    graph = tf.function(flexible, input_signature=[tf.TensorSpec((None, None, None, 3))])
    expected = resize_model(fixed, (32, 48))(filled)
    close(flexible(images), expected)
    close(graph(images), expected)
    assert np.abs(flexible(images) - flexible(images[:, :24, :40])).max() > 1e-3


def test_it_is_saved_and_cloned_and_fixed_again(tmp_path):
    fixed, flexible = pair_of("eva")
    images = pixels((24, 48))
    expected = flexible(images)
    flexible.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == flexible.config and loaded.config.any_size
    clone = keras.models.clone_model(flexible)
    clone.set_weights(flexible.get_weights())
    for model in (loaded, clone, resize_model(loaded, (24, 48))):
        close(model(images), expected)
    flexible.save_weights(tmp_path / "model.weights.h5")
    fixed.load_weights(tmp_path / "model.weights.h5")  # the same weights


def test_half_precision_keeps_positions_in_float32():
    _, flexible = pair_of("eva")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = keras_vit.build_vit(flexible.config)
    finally:
        keras.config.set_dtype_policy(before)
    half.set_weights(flexible.get_weights())
    images = pixels((24, 48))
    graph = tf.function(half, input_signature=[tf.TensorSpec((None, None, None, 3))])
    expected = np.asarray(flexible(images))
    for found in (half(images), graph(images), resize_model(half, (24, 48))(images)):
        assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


def test_feature_maps_have_the_grid_of_every_image():
    fixed, flexible = pair_of("timm")
    maps = feature_maps(flexible, [0, 1], prefix_tokens=True)
    assert tuple(maps.output["block_1"].shape) == (None, None, None, 32)
    images = pixels((24, 48))
    graph = tf.function(maps, input_signature=[tf.TensorSpec((None, None, None, 3))])
    expected = feature_maps(resize_model(fixed, (24, 48)), [0, 1], prefix_tokens=True)(images)
    assert expected["block_0"].shape == (2, 3, 6, 32)
    for found in (maps(images), graph(images)):
        for name, value in expected.items():
            close(found[name], value)
    hybrid = resize_model(pair_of("hybrid")[0], None)
    found = feature_maps(hybrid, ["stem_stage_1", -1])(pixels((24, 40)))
    assert {name: x.shape for name, x in found.items()} == {
        "stem_stage_1": (2, 6, 10, 256),
        "block_1": (2, 3, 5, 32),
    }


def test_weights_of_a_checkpoint_keep_its_grid(tmp_path, monkeypatch):
    config = tiny_config(image_size=48, patch_size=16, depth=1)
    monkeypatch.setitem(VARIANTS, "vit_tiny", dataclasses.replace(config, image_size=224))
    fixed = keras_vit.build_vit(config)
    fill_random(fixed, 0.1)
    file = tmp_path / "small.safetensors"
    keras_vit.save_weights(fixed, file, layout="timm")
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 4}}')
    options = {"input_shape": (None, None, 3), "classes": 10}
    images = pixels((64, 32))
    later = keras_vit.build_vit(replace_fields(config, any_size=True, gelu="exact"))
    later.predict(images, verbose=0)  # traced with the method of the official code
    keras_vit.load_weights(later, file)
    for model in (
        keras_vit.create_model("vit_tiny", weights=file, **options),
        keras_vit.from_pretrained(file, "vit_tiny", **options),
        later,
    ):
        assert model.config.grid == (3, 3)
        assert model.config.position_resize == "bicubic"  # of timm
        expected = resize_model(keras_vit.from_pretrained(file, "vit_tiny"), (64, 32))(images)
        close(model(images), expected)
        close(model.predict(images, verbose=0), expected)


@pytest.mark.parametrize(
    "change",
    [
        {"num_merged_tokens": 2},
        {"patch_dropout_rate": 0.5},
        {"query_chunk_size": 4},
        {"position_embedding": "relative"},
        {
            "grid_attention": "relative_2d",
            "position_embedding": "none",
            "class_token": False,
            "pooling": "gap",
        },
    ],
)
def test_options_of_one_size_are_refused(change):
    field = next(iter(change))
    with pytest.raises(ValueError, match=f"any_size=True, {field}=|{field}=.*, any_size=True"):
        tiny_config(any_size=True, **change)


def test_what_needs_a_known_size_says_so(tmp_path):
    _, flexible = pair_of("eva")
    fix = r"resize_model\(model, \(height, width\)\)"
    with pytest.raises(ValueError, match=r"replace\(config, image_size=224, any_size=False"):
        keras_vit.evaluate.count_macs(flexible)
    with pytest.raises(ValueError, match=r"replace\(config, image_size=224, any_size=False"):
        keras_vit.evaluate.training_memory(flexible, batch_size=1)
    for refused in (
        lambda: keras_vit.models.geometry_of(flexible),
        lambda: keras_vit.models.attention_scores(flexible, pixels((32, 32))),
        lambda: keras_vit.analysis.attention_rollout(flexible, pixels((32, 32))),
        lambda: keras_vit.models.features_of(flexible, ["block_0"], grids=True),
        lambda: keras_vit.models.build_pyramid(flexible),
        lambda: keras_vit.segmentation.build_segmenter(flexible, 3),
        lambda: keras_vit.train.masked_patch_model(flexible),
        lambda: keras_vit.export_litert(flexible, tmp_path / "model.tflite"),
        lambda: keras_vit.export_onnx(flexible, tmp_path / "model.onnx"),
    ):
        with pytest.raises(ValueError, match=fix):
            refused()
    with pytest.raises(ValueError, match=r"takes images of any size\. Pass `image_size`"):
        keras_vit.data.transform_of(flexible)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "export", quick([keras_vit.export_onnx, keras_vit.export_litert], keras_vit.export_litert)
)
def test_files_of_one_size_equal_the_model_of_any_size(export, tmp_path):
    _, flexible = pair_of("timm")
    report = export(resize_model(flexible, (24, 48)), tmp_path / "file")
    images = pixels((24, 48))
    close(FORMATS[report.format].load(report.path)(images)["logits"], flexible(images))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["timm", "sincos", "dinov3"])
def test_saved_model_takes_any_size(case, tmp_path):
    _, flexible = pair_of(case)
    report = keras_vit.export_saved_model(flexible, tmp_path)
    assert report.max_difference < 1e-4
    loaded = tf.saved_model.load(str(report.path))
    for size in (*SIZES[1:], (27, 41)):
        images = pixels(size, 1)
        close(loaded.signatures["pixels"](tf.constant(images))["logits"], flexible(images))
    keras_vit.verify_export(report.path, flexible, tolerance=1e-4)
