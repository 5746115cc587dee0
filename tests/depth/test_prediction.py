"""Depth of pictures is that of transformers; losses and metrics are those of the papers."""

from __future__ import annotations

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.cli.main import main
from keras_vit.data.preview import write_png
from keras_vit.depth.prediction import encode_depth, network_size, paint_depth, predict_depth
from scripts.golden.network_formula import chosen_values
from scripts.golden.pictures import picture_of
from tests.networks.cases import network_folder
from tests.official import GOLDEN

CASES = json.loads((GOLDEN / "depth.json").read_text())


@pytest.fixture
def network(tmp_path):
    folder = network_folder("depth anything", tmp_path / "network")
    (folder / "preprocessor_config.json").write_text(json.dumps(CASES["processor"]))
    return keras_vit.from_pretrained(folder)


def differs(found, expected):
    theirs = np.array(expected["values"])
    found = chosen_values(np.asarray(found))
    assert found["shape"] == expected["shape"]
    return np.abs(np.array(found["values"]) - theirs).max() / np.abs(theirs).max()


@pytest.mark.parametrize("name", CASES["pictures"])
def test_pictures_have_the_depth_of_transformers(name, network):
    picture, case = picture_of(name), CASES["pictures"][name]
    assert list(network_size(network.published, picture.shape[:2])) == case["size"]
    (depth,) = predict_depth(network, [picture])
    assert depth.shape == picture.shape[:2] and depth.dtype == np.float32
    assert differs(depth, case["depth"]) < 2e-5  # the largest of tensors of 100 x 100 pixels


def test_sizes_are_those_of_transformers():
    processor = {**CASES["processor"], "size": {"height": 518, "width": 518}}
    facts = {"config": {"architectures": ["DepthAnythingForDepthEstimation"]}}
    for size, expected in CASES["sizes"]:
        assert list(network_size({**facts, "processor": processor}, size)) == expected
        assert list(network_size({**facts, "processor": {}}, size)) == expected  # by the class


def test_dpt_on_dinov2_pads_images_of_their_own_size(tmp_path, monkeypatch):
    """As the published files ask, whose mean and deviation are of pixels in [0, 255]."""
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    processor = {"do_resize": False, "do_rescale": False, "do_pad": True, "size_divisor": 14}
    folder = network_folder("dpt on dinov2", tmp_path)
    processor |= {"rescale_factor": 1 / 255, "image_mean": mean, "image_std": std}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    model, given = keras_vit.from_pretrained(folder), []
    assert model.published["transformer"]["fields"]["preprocessing"]["mean"] == mean
    run = model.predict_on_batch
    monkeypatch.setattr(model, "predict_on_batch", lambda x: given.append(x) or run(x))
    (depth,) = predict_depth(model, [picture_of("noise")])
    expected = np.full((98, 70, 3), mean, "float32")
    expected[3:94, 5:65] = picture_of("noise")
    np.testing.assert_array_equal(given[0][0], expected)
    assert depth.shape == (91, 60)


def depth_maps(seed=0, shape=(3, 20, 31)):
    random = np.random.default_rng(seed)
    true, found = random.uniform(0.5, 9, shape), random.uniform(0.5, 9, shape)
    true[random.random(shape) < 0.2] = 0
    true[0, 0, :3] = np.nan, np.inf, -1
    return true.astype("float32"), found.astype("float32")


def known(depth):
    return np.isfinite(depth) & (depth > 0)


def test_the_loss_of_relative_depth_is_that_of_the_papers():
    true, found = depth_maps()
    losses = []
    for t, d in zip(true.astype("float64"), found.astype("float64"), strict=True):
        is_known = known(t)
        standard = []
        for values in (t, d):
            flat = np.sort(values[is_known])
            middle = flat[(len(flat) - 1) // 2]
            standard.append((values - middle) / np.abs(flat - middle).mean())
        apart = np.where(is_known, standard[1] - standard[0], np.nan)
        loss = np.nanmean(np.abs(apart))
        for step in (1, 2, 4, 8):
            part = apart[::step, ::step]
            steps = np.nansum(np.abs(np.diff(part, axis=0))) + np.nansum(np.abs(np.diff(part)))
            loss += 0.5 * steps / np.isfinite(part).sum()
        losses.append(loss)
    loss = keras_vit.train.ScaleShiftInvariantLoss()
    assert float(loss(true, found)) == pytest.approx(np.mean(losses), rel=1e-5)
    same = 3 * np.nan_to_num(true, nan=1.0, posinf=1.0) + 7
    assert float(loss(true, same)) == pytest.approx(0, abs=1e-5)  # whatever scale and shift
    assert np.isfinite(float(loss(np.zeros_like(true), found)))  # nothing is known
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    x = tf.Variable(found)
    with tf.GradientTape() as tape:
        value = loss(true, x)
    gradient = tape.gradient(value, x).numpy()
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


def test_loss_and_metrics_of_metric_depth():
    true, found = depth_maps(1)
    is_known = known(true)
    losses = []
    for t, d, part in zip(true.astype("float64"), found, is_known, strict=True):
        g = np.log(t[part]) - np.log(d[part])
        losses.append(np.sqrt((g**2).mean() - 0.85 * g.mean() ** 2))
    loss = keras_vit.train.SILogLoss(0.85)
    assert float(loss(true, found)) == pytest.approx(np.mean(losses), rel=1e-5)
    t, d = true[is_known], found[is_known]
    for metric, expected in (
        (keras_vit.train.AbsRel(), np.mean(np.abs(d - t) / t)),
        (keras_vit.train.DeltaAccuracy(), np.mean(np.maximum(d / t, t / d) < 1.25)),
    ):
        metric.update_state(true[:1], found[:1])
        metric.update_state(true[1:], found[1:])
        assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


def test_a_network_is_fine_tuned_by_plain_fit(tmp_path):
    folder = network_folder("metric depth anything", tmp_path / "network")
    network = keras_vit.from_pretrained(folder, input_shape=(56, 56, 3))
    model = keras_vit.depth.with_depth_alone(network)
    images = np.random.default_rng(0).integers(0, 256, (4, 56, 56, 3)).astype("float32")
    depth = images.mean(axis=-1) / 32 + 1
    model.compile(keras.optimizers.Adam(3e-3), keras_vit.train.SILogLoss(),
                  metrics=[keras_vit.train.AbsRel()])  # fmt: skip
    history = model.fit(images, depth, epochs=15, batch_size=4, verbose=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert {"abs_rel"} < history.keys()
    np.testing.assert_array_equal(  # one set of weights
        network.predict(images, verbose=0)["predicted_depth"], model.predict(images, verbose=0)
    )
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.published == network.published
    millimetres = encode_depth(np.full((2, 2), 1.25), network.published)
    assert millimetres.dtype == np.uint16 and (millimetres == 1250).all()


def test_the_command_writes_exact_depth_and_a_picture(network, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("photos").mkdir()
    write_png("photos/a.png", picture_of("noise"))
    assert main(["depth", "network", "photos", "--output", "out"]) == 0
    assert "photos/a.png  " in capsys.readouterr().out
    (depth,) = predict_depth(network, ["photos/a.png"])
    stored = tf.io.decode_png(tf.io.read_file("out/a.png"), dtype=tf.uint16).numpy()[..., 0]
    np.testing.assert_array_equal(stored, encode_depth(depth, network.published))
    assert stored.min() == 0 and stored.max() == 65535
    preview = tf.io.decode_png(tf.io.read_file("out/a_preview.png")).numpy()
    np.testing.assert_array_equal(preview, paint_depth(depth))
    assert tuple(preview[depth == depth.max()][0]) == (240, 249, 33)


def test_wrong_images_and_models_are_named(network, tmp_path):
    with pytest.raises(ValueError, match=r"Image 1 must have the shape \(height, width, 3\)"):
        list(predict_depth(network, [picture_of("noise"), np.zeros((8, 8), "uint8")]))
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"x\.png cannot be read as an image"):
        list(predict_depth(network, [tmp_path / "x.png"]))
    with pytest.raises(ValueError, match=r"image 0 has \(3, 900\) pixels, less than one patch"):
        list(predict_depth(network, [np.zeros((3, 900, 3), "uint8")]))
    with pytest.raises(ValueError, match="is no network for depth"):
        list(predict_depth(keras_vit.ViTTi16(weights=None), []))
    bare = keras_vit.from_pretrained(tmp_path / "network", include_preprocessing=False)
    with pytest.raises(ValueError, match="include_preprocessing=True"):
        list(predict_depth(bare, []))
