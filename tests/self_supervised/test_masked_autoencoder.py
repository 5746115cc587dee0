"""Masked autoencoders: those of transformers, trained, saved, and what is refused."""

from __future__ import annotations

import json
import pathlib

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import keras_vit
from keras_vit.resume.callback import ResumeTraining
from keras_vit.self_supervised import build_masked_autoencoder, load_masked_autoencoder
from keras_vit.self_supervised.reconstructions import draw_reconstructions
from scripts.golden.network_formula import chosen_values, images_of, network_arrays, noise_of
from tests.workers import run, run_workers

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[1] / "golden/masked_autoencoder.json").read_text()
)
IMAGES, NOISE = images_of((32, 32)), noise_of(2, 16)
# Variables by the names of their arrays in files.
VARIABLES = {
    "vit.embeddings.cls_token": "class_token/token",
    "vit.embeddings.patch_embeddings.projection.weight": "patch_encoder/projection/kernel",
    "vit.encoder.layer.0.attention.attention.query.weight": "block_0/attention/qkv/kernel",
    "decoder.mask_token": "mask_token/token",
    "decoder.decoder_layers.1.output.dense.weight": "decoder_block_1/mlp/output/kernel",
    "decoder.decoder_pred.bias": "decoder_pixels/bias",
}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225], "resample": 3, "size": {"height": 32, "width": 32},
}  # fmt: skip
TINY = {"patch_size": 8, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "image_size": 32}


def write(folder, name):
    case = GOLDEN[name]
    (folder / "config.json").write_text(json.dumps(case["config"]))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    arrays = network_arrays(case["shapes"])
    if name == "normalized":  # as in published files
        other = ("decoder_encoder.layer.", "decoder_layers.")
        arrays = {key.replace(*other): value for key, value in arrays.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return arrays


def check(found, expected, tolerance=2e-6):
    assert list(found.shape) == expected["shape"]
    values = np.array(expected["values"])
    errors = np.abs(chosen_values(found)["values"] - values)
    assert errors.max() <= tolerance * np.abs(values).max()


def tiny(**options):
    encoder = keras_vit.build_vit(keras_vit.make_config(**TINY, classes=None, **options))
    return build_masked_autoencoder(encoder, 24, 2, 3, seed=1)


@pytest.mark.parametrize("name", GOLDEN)
def test_pixels_losses_and_gradients_are_theirs(tmp_path, name):
    write(tmp_path, name)
    model = load_masked_autoencoder(tmp_path, include_preprocessing=False)
    patches, mask = model.reconstruct(IMAGES, NOISE)
    assert mask.astype(int).tolist() == GOLDEN[name]["mask"]
    check(patches, GOLDEN[name]["patches"])
    with tf.GradientTape() as tape:
        loss = model.loss(IMAGES, NOISE)
    assert float(loss) == pytest.approx(GOLDEN[name]["loss"], rel=2e-6)
    paths = [variable.path for variable in model.trainable_variables]
    gradients = dict(zip(paths, tape.gradient(loss, model.trainable_variables), strict=True))
    assert not [path for path in paths if "position" in path]
    assert len(gradients) == len([x for x in gradients.values() if x is not None])
    for key, expected in GOLDEN[name]["gradients"].items():
        found = np.asarray(gradients[VARIABLES[key]])
        if key.endswith("query.weight"):
            found = found[:, :32].T
        elif key.endswith("projection.weight"):
            found = found.transpose(3, 2, 0, 1)
        elif key.endswith("dense.weight"):
            found = found.T
        check(found, expected, 1e-5)


@pytest.mark.parametrize("name", GOLDEN)
def test_files_are_written_as_they_were(tmp_path, name):
    arrays = write(tmp_path, name)
    model = load_masked_autoencoder(tmp_path)
    assert model.model.load_report.fresh == ()
    found = safetensors.numpy.load_file(
        model.save_pretrained(tmp_path / "again") / "model.safetensors"
    )
    assert found.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array, key)
    encoder = keras_vit.from_pretrained(tmp_path, include_top=False)
    images = np.abs(images_of((32, 32))) * 100
    np.testing.assert_array_equal(encoder(images), model.encoder(images))


def test_positions_are_resized(tmp_path):
    write(tmp_path, "pixels")
    model = load_masked_autoencoder(tmp_path, (48, 32, 3))
    patches, mask = model.reconstruct(np.zeros((1, 48, 32, 3)), noise_of(1, 24))
    assert patches.shape == (1, 24, 192) and mask.sum() == 18


def test_what_is_built_is_saved_as_theirs(tmp_path):
    model = tiny(gelu="exact")
    images = np.abs(IMAGES) * 100
    again = load_masked_autoencoder(model.save_pretrained(tmp_path))
    for ours, theirs in zip(
        model.reconstruct(images, NOISE), again.reconstruct(images, NOISE), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["ViTMAEForPreTraining"] and config["mask_ratio"] == 0.75
    table = safetensors.numpy.load_file(tmp_path / "model.safetensors")["decoder.decoder_pos_embed"]
    angle = 3 * 10_000 ** (-np.arange(6) / 6)  # of column 3; rows after it
    np.testing.assert_allclose(table[0, 4, :12], [*np.sin(angle), *np.cos(angle)], atol=1e-6)
    assert not table[0, 0].any()


def test_training_lowers_the_loss_and_moves_the_encoder():
    keras.utils.set_random_seed(0)
    model = tiny()
    before = model.encoder.get_layer("block_0").get_weights()[0].copy()
    model.model.compile(keras.optimizers.Adam(3e-3), jit_compile=True)
    bright = np.random.default_rng(0).uniform(50, 150, (16, 1, 1, 1))
    images = bright + np.linspace(0, 60, 32)[:, None, None] * np.ones((32, 32, 3))
    history = model.model.fit(images.astype("float32"), epochs=12, batch_size=8, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert np.abs(model.encoder.get_layer("block_0").get_weights()[0] - before).max() > 1e-3


def test_a_killed_run_hides_the_same_patches(tmp_path):
    images = tf.data.Dataset.from_tensor_slices(np.abs(IMAGES) * 100).batch(1)

    def train(epochs, folder):
        keras.utils.set_random_seed(0)
        model = tiny()
        model.model.compile(keras.optimizers.Adam(1e-3))
        model.model.fit(
            images, epochs=epochs, callbacks=[ResumeTraining(folder)], shuffle=False, verbose=0
        )
        return model.model.get_weights()

    train(1, tmp_path / "killed")
    for ours, whole in zip(
        train(3, tmp_path / "killed"), train(3, tmp_path / "whole"), strict=True
    ):
        np.testing.assert_array_equal(ours, whole)


def test_a_trained_encoder_keeps_its_positions():
    encoder = keras_vit.build_vit(keras_vit.make_config(**TINY, classes=None))
    before = encoder.get_weights()
    build_masked_autoencoder(encoder, 24, 2, 3)
    for ours, own in zip(encoder.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, own)
    assert encoder.get_layer("position_embedding").trainable


def test_a_keras_file_gives_the_same(tmp_path):
    model = tiny().model
    model.save(tmp_path / "mae.keras")
    again = keras.saving.load_model(tmp_path / "mae.keras")
    images = np.abs(IMAGES) * 100
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(images, verbose=0)["targets"],
                                  model.predict(images, verbose=0)["targets"])  # fmt: skip


def test_pictures_show_what_is_seen():
    model = tiny()
    images = np.full((2, 32, 32, 3), 200.0)
    sheet = draw_reconstructions(model, images, NOISE)
    assert sheet.shape == (64, 96, 3) and (sheet[:, :32] == 200).all()
    seen = (sheet[:, 32:64] == 200).all(-1).reshape(2, 4, 8, 4, 8).all((2, 4))
    assert seen.sum() == 8 and (sheet[:, 32:64] == 128).all(-1).sum() == 24 * 64
    _, mask = model.reconstruct(images, NOISE)
    np.testing.assert_array_equal(seen.reshape(2, 16), mask == 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"position_embedding": "none"}, "position_embedding='none'"),
        ({"num_merged_tokens": 1}, "num_merged_tokens=1"),
        ({"patch_dropout_rate": 0.5}, "patch_dropout_rate=0.5"),
    ],
)
def test_encoders_that_need_all_patches_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        tiny(**options)


def test_wrong_arguments_say_what_to_do(tmp_path):
    encoder = tiny().encoder
    with pytest.raises(ValueError, match=r"mask_rate=0\.99"):
        build_masked_autoencoder(encoder, 24, 2, 3, mask_rate=0.99)
    with pytest.raises(ValueError, match="create_model"):
        build_masked_autoencoder(keras.Sequential([keras.Input((8, 8, 3))]))
    (tmp_path / "config.json").write_text('{"architectures": ["ViTModel"], "model_type": "vit"}')
    safetensors.numpy.save_file({"a": np.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="is no ViTMAEForPreTraining"):
        load_masked_autoencoder(tmp_path)


@pytest.mark.slow
def test_two_replicas_and_two_workers_with_xla_end_as_one_process(tmp_path):
    module = "tests.self_supervised.autoencoder_process"
    assert "losses" in run(module, "check_replicas")
    run_workers(module, "check_workers", tmp_path, count=2)
    assert run(module, "check_alone", tmp_path).count("losses") == 2
