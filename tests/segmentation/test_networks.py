"""Published networks for segmentation: class maps of transformers, and all of a segmenter."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.cli.main import main
from keras_vit.segmentation import as_segmenter, evaluate_masks, predict_masks, read_mask_arrays
from scripts.golden.pictures import picture_of
from tests.networks.cases import network_folder
from tests.official import GOLDEN

CASES = json.loads((GOLDEN / "segmentation.json").read_text())


def load(name, folder):
    network_folder(name, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(CASES[name]["processor"]))
    return keras_vit.from_pretrained(folder)


@pytest.mark.parametrize("name", CASES)
def test_class_maps_are_those_of_transformers(name, tmp_path):
    network = load(name, tmp_path)
    for picture, expected in CASES[name]["pictures"].items():
        found = predict_masks(network, picture_of(picture))
        counts = np.bincount(found.ravel(), minlength=5).tolist()
        rows = [int((found[i::7] * np.arange(1, found.shape[1] + 1)).sum()) for i in range(7)]
        assert sum(map(abs, np.subtract(counts, expected["counts"]))) <= expected["unsure"]
        assert np.allclose(rows, expected["rows"], atol=4 * found.shape[1] * expected["unsure"])


def test_dpt_has_the_size_of_its_processor(tmp_path):
    """The published file has positions for 384 pixels, and images are resized to 480."""
    folder = network_folder("dpt segmentation", tmp_path)
    assert keras_vit.from_pretrained(folder).input_shape == (None, 64, 64, 3)
    for size in (96, {"height": 96, "width": 96}):
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": size}))
        assert keras_vit.from_pretrained(folder).input_shape == (None, 96, 96, 3)
    small = keras_vit.from_pretrained(folder, input_shape=(32, 32, 3))
    assert small.input_shape == (None, 32, 32, 3)
    (folder / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 96}}')
    with pytest.raises(keras_vit.CheckpointError, match="height and width"):
        keras_vit.from_pretrained(folder)


def test_a_network_is_a_segmenter(tmp_path, monkeypatch, capsys):
    network = load("beit segmentation", tmp_path / "network")
    model = as_segmenter(network)
    assert model.output_shape == (None, 96, 96, 5) and model.class_names[4] == "kind 4"
    assert as_segmenter(model) is model
    images = np.random.default_rng(0).integers(0, 256, (4, 96, 96, 3)).astype("uint8")
    labels = (images[..., 0] > 127).astype("uint8")
    masks = read_mask_arrays(images, labels, model.class_names)
    found = evaluate_masks(network, masks)
    assert found.confusion.sum() == labels.size
    windows = predict_masks(network, picture_of("noise"), mode="slide", logits=True)
    assert windows.shape == (91, 60, 5) and np.isfinite(windows).all()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(images.astype("float32"), labels, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    report = keras_vit.segmentation.export_segmenter(network, tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(report.path)).signatures["image"]
    class_map = served(image=tf.constant(picture_of("noise")))["class_map"].numpy()
    assert (class_map == predict_masks(network, picture_of("noise"))).mean() > 0.97
    tf.io.write_file(str(tmp_path / "a.png"), tf.io.encode_png(picture_of("noise")))
    monkeypatch.chdir(tmp_path)
    assert main(["segment", "predict", "network", "a.png", "--output", "out"]) == 0
    shares = capsys.readouterr().out
    assert "kind 2" in shares and (tmp_path / "out/a_overlay.png").exists()
