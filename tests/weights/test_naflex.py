"""SigLIP 2 NaFlex: images of any aspect ratio, against transformers' image processor and model."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from keras_vit.config import Preprocessing, make_config
from keras_vit.create import build, create_model
from keras_vit.data.any_aspect import fit_patches
from keras_vit.data.input_transform import transform_of
from keras_vit.errors import CheckpointError
from keras_vit.evaluate.counting import count_parameters
from keras_vit.families.siglip import SIGLIP2_NAFLEX
from keras_vit.models.feature_extraction import features_of
from keras_vit.models.naflex import build_naflex
from keras_vit.models.resizing import resize_model
from keras_vit.pretrained import from_pretrained
from keras_vit.resize import resize_positions
from keras_vit.train.masked_patches import masked_patch_model
from keras_vit.train.new_head import adapt_model
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import save_weights
from scripts.golden.eval_cases import is_scale, values

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent.parent / "golden" / "naflex.json").read_text("utf-8")
)
GRIDS = np.asarray(GOLDEN["grids"], "int32")
LIMIT = 20
SIZES = {"patch_size": 4, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "image_size": 16}
TINY = make_config(
    **{**SIGLIP2_NAFLEX, **SIZES, "max_num_patches": LIMIT}, classes=None,
    include_preprocessing=False,
)  # fmt: skip
PROCESSOR = {
    "image_processor_type": "Siglip2ImageProcessor", "patch_size": 4, "max_num_patches": LIMIT,
    "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_resize": True,
}  # fmt: skip


def patches():
    i = np.arange(len(GRIDS) * LIMIT * 48, dtype="int64")
    return (((3 * i**2 + 101 * i) % 509) / 254 - 1).astype("float32").reshape(-1, LIMIT, 48)


def inputs():
    return {"patches": patches(), "grid": GRIDS}


def arrays():
    names = enumerate(sorted(GOLDEN["shapes"]))
    shapes = {name: tuple(shape) for name, shape in GOLDEN["shapes"].items()}
    return {n: values(shapes[n], i, is_scale(n, shapes[n])) for i, n in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("naflex")
    safetensors.numpy.save_file(arrays(), folder / "model.safetensors")
    config = {"model_type": "siglip2_vision_model", **GOLDEN["config"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return from_pretrained(folder / "model.safetensors", include_preprocessing=False)


def test_outputs_and_gradient_are_those_of_transformers(model):
    assert model.config.max_num_patches == LIMIT and model.config.pooling == "map"
    assert model.config.preprocessing == Preprocessing(
        (127.5,) * 3, (127.5,) * 3, library="transformers"
    )
    expected = np.asarray(GOLDEN["outputs"])
    x = tf.constant(patches())
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = model({"patches": x, "grid": tf.constant(GRIDS)})
        weights = tf.cos(tf.range(tf.size(outputs), dtype=tf.float32))
        total = tf.reduce_sum(outputs * tf.reshape(weights, outputs.shape))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    slope = tape.gradient(total, x).numpy()[:, ::3, ::7]
    expected = np.asarray(GOLDEN["gradient"])
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_padding_does_not_count_and_the_grid_does(model):
    before = model(inputs()).numpy()
    changed = patches()
    for image, (rows, columns) in zip(changed, GRIDS, strict=True):
        image[rows * columns :] = 1e3
    np.testing.assert_array_equal(model({"patches": changed, "grid": GRIDS}), before)
    turned = model({"patches": patches(), "grid": GRIDS[:, ::-1].copy()}).numpy()
    assert np.abs(turned - before)[:4].max(axis=1).min() > 1e-3  # all but the square


@pytest.mark.parametrize("height, width, limit, rows, columns", GOLDEN["sizes"])
def test_sizes_are_those_of_transformers(height, width, limit, rows, columns):
    from keras_vit.data.any_aspect import _fitting_grid

    grid = _fitting_grid((height, width), (16, 16), limit)
    assert (grid.numpy() * 16).tolist() == [rows, columns]


def test_patches_are_those_of_transformers_in_a_data_set():
    i = np.arange(23 * 61 * 3, dtype="int64")
    image = ((7 * i**2 + 13 * i) % 256).astype("uint8").reshape(23, 61, 3)
    images = tf.data.Dataset.from_tensors(image).map(lambda image: fit_patches(image, TINY))
    batch = next(iter(images.batch(1)))
    assert batch["grid"].numpy()[0].tolist() == GOLDEN["image_grid"]
    count = np.prod(GOLDEN["image_grid"])
    pixels = np.rint((batch["patches"].numpy()[0] * 0.5 + 0.5) * 255)
    np.testing.assert_array_equal(pixels[:count], np.asarray(GOLDEN["image_patches"])[:count])
    assert not batch["patches"].numpy()[0, count:].any()


def test_files_are_written_back(model, tmp_path):
    path = save_weights(model, tmp_path / "x.safetensors", "transformers")
    written = safetensors.numpy.load_file(path)
    expected = arrays()
    assert {name.removeprefix("vision_model.") for name in written} == expected.keys()
    for name, value in written.items():
        np.testing.assert_array_equal(value, expected[name.removeprefix("vision_model.")])
    with pytest.raises(ValueError, match="take images of one size"):
        save_weights(model, tmp_path / "y.npz", "big_vision")


def test_files_of_timm_are_written_and_read(model, tmp_path):
    """Its NaFlex models of SigLIP compute the same: `scripts/sweep` compares them with timm."""
    path = save_weights(model, tmp_path / "model.safetensors", "timm")
    shapes = {name: x.shape for name, x in safetensors.numpy.load_file(path).items()}
    assert shapes["embeds.pos_embed"] == (1, 4, 4, 32) and shapes["embeds.proj.weight"] == (32, 48)
    with pytest.raises(CheckpointError, match=r"NaFlex model of timm, and neither config\.json"):
        from_pretrained(path, include_preprocessing=False, num_heads=4)
    config = {"architecture": "naflexvit_base_patch16_siglip", "model_args": {"num_heads": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = from_pretrained(path, include_preprocessing=False, max_num_patches=LIMIT)
    np.testing.assert_array_equal(again(inputs()), model(inputs()))
    small = from_pretrained(
        path, include_preprocessing=False, max_num_patches=None, input_shape=(12, 12, 3)
    )
    table = model.get_layer("position_embedding").embedding.numpy()
    np.testing.assert_allclose(  # timm's bilinear kernel is antialiased
        small.get_layer("position_embedding").embedding.numpy(),
        resize_positions(table, (4, 4), (3, 3), "linear"),
        atol=1e-6,
    )
    oblong = build_naflex(make_config(**{**TINY.to_dict(), "image_size": (16, 20)}))
    with pytest.raises(ValueError, match="have a square table"):
        save_weights(oblong, tmp_path / "x.safetensors", "timm")


def test_variants_have_the_published_sizes():
    config = create_model_config("google/siglip2-base-patch16-naflex")
    assert count_parameters(config) == 92_930_304  # of `Siglip2VisionModel` in transformers
    config = create_model_config("google/siglip2-so400m-patch16-naflex")
    assert count_parameters(config) == 427_888_064


def create_model_config(name):
    from keras_vit.variants import configure

    return configure(name, include_top=False, pooling="map")


@pytest.mark.slow
def test_models_train_and_predict_from_arrays():
    changes = {"classes": 3, "pooling": "gap", "depth": 1}
    head = build_naflex(make_config(**{**TINY.to_dict(), **changes}))
    head.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = head.get_layer("position_embedding").embedding.numpy()
    assert np.isfinite(
        head.fit(inputs(), np.arange(5) % 3, epochs=2, verbose=0).history["loss"]
    ).all()
    assert (head.get_layer("position_embedding").embedding.numpy() != before).any()
    assert head.predict(inputs(), verbose=0).shape == (5, 3)


def test_what_has_no_grid_is_refused(model, folder, tmp_path):
    with pytest.raises(ValueError, match="any aspect ratio"):
        features_of(model, ["block_0"], grids=True)
    with pytest.raises(ValueError, match="any aspect ratio"):
        features_of(model, ["block_0/attention_scores"])
    with pytest.raises(ValueError, match="fit_patches"):
        transform_of(model)
    with pytest.raises(ValueError, match="max_num_patches"):
        resize_model(model, 32)
    with pytest.raises(ValueError, match="Pass another `max_num_patches`"):
        adapt_model(model, classes=3, image_size=16)
    with pytest.raises(ValueError, match="max_num_patches=20"):
        masked_patch_model(build_naflex(dataclasses.replace(TINY, include_preprocessing=True)))
    with pytest.raises(ValueError, match="two inputs"):
        build(TINY, input_tensor=model.inputs[1])
    with pytest.raises(ValueError, match="images of one size"):
        fit_patches(np.zeros((8, 8, 3)), make_config(**SIZES))
    with pytest.raises(CheckpointError, match="leave input_shape"):
        from_pretrained(folder / "model.safetensors", input_shape=(32, 32, 3))
    fixed = build(make_config(**{**TINY.to_dict(), "max_num_patches": None}))
    with pytest.raises(CheckpointError, match=r"embeddings\.patch_embedding\.weight"):
        load_weights(fixed, folder / "model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"rope": {}},
        {"class_token": True},
        {"rematerialize": True},
        {"num_registers": 1},
        {"num_merged_tokens": 2},
        {"patch_dropout_rate": 0.5},
        {"any_size": True},
        {"window_size": 2},
    ],
)
def test_what_needs_every_patch_in_its_place_is_refused(changes):
    (field,) = changes
    with pytest.raises(
        ValueError, match=f"max_num_patches=20.* {field}=|{field}=.* max_num_patches=20"
    ):
        make_config(**{**TINY.to_dict(), **changes})


def test_a_processor_of_another_kind_is_refused(folder, tmp_path):
    weights = arrays()
    weights["embeddings.patch_embedding.weight"] = weights[
        "embeddings.patch_embedding.weight"
    ].reshape(32, 3, 4, 4)
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(CheckpointError, match="the arrays are for images of one size"):
        from_pretrained(tmp_path / "model.safetensors")


def test_a_name_takes_a_file(folder):
    model = create_model(
        "google/siglip2-base-patch16-naflex", include_top=False, pooling="map",
        weights=folder / "model.safetensors", include_preprocessing=False,
        input_shape=(16, 16, 3), **{k: v for k, v in SIZES.items() if k != "image_size"},
    )  # fmt: skip
    expected = np.asarray(GOLDEN["outputs"])
    np.testing.assert_allclose(model(inputs()), expected, rtol=0, atol=1e-5)
