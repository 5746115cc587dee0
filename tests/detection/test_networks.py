"""YOLOS trains with plain `fit`, survives saving, and is read strictly."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.detection.boxes import box_batches, read_boxes
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.models.set_prediction import DetectionTransformer
from tests.networks.cases import CASES, check_outputs, images_of, network_folder


@pytest.fixture
def boxes():
    """Eight images of one square each."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 40, (8, 64, 96, 3)).astype("uint8")
    rows, labels = [], []
    for index, image in enumerate(images):
        left, top = rng.integers(0, 28, 2)
        image[top : top + 36, left : left + 36, index % 2] = 255
        rows.append([[left, top, left + 36, top + 36]])
        labels.append([index % 2])
    return read_boxes(images, rows, labels, [f"kind {n}" for n in range(5)])


def test_it_learns_boxes_with_plain_fit(boxes, tmp_path):
    keras.utils.set_random_seed(0)
    folder = network_folder("yolos", tmp_path)
    with pytest.raises(ValueError, match="load it for one size: input_shape="):
        box_batches(boxes, keras_vit.from_pretrained(folder), 8)
    model = keras_vit.from_pretrained(folder, input_shape=(64, 96, 3))
    model.compile(keras.optimizers.Adam(3e-3))
    assert model.jit_compile is False
    batches = box_batches(boxes, model, 8, training=True, flip=False)
    losses = model.fit(batches, epochs=20, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]
    loss = model.evaluate(box_batches(boxes, model, 4), verbose=0)
    assert loss < losses[0]
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again) is DetectionTransformer and again.class_names == model.class_names
    assert again.evaluate(box_batches(boxes, again, 4), verbose=0) == pytest.approx(loss, rel=1e-6)
    batches = box_batches(boxes, again, 8, training=True)
    assert again.fit(batches, shuffle=False, verbose=0).history["loss"][0] < losses[0]


def test_a_new_process_loads_its_keras_file(tmp_path):
    keras_vit.from_pretrained(network_folder("yolos", tmp_path)).save(tmp_path / "m.keras")
    code = "import keras, keras_vit; print(type(keras.saving.load_model('m.keras')).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "DetectionTransformer"


def test_sizes_between_patches_are_those_of_whole_patches(tmp_path):
    folder = network_folder("yolos without mid positions", tmp_path, image_size=[64, 101])
    size = CASES["yolos without mid positions"]["size"]
    options = {"input_shape": (*size, 3), "include_preprocessing": False}
    model = keras_vit.from_pretrained(folder, **options)
    check_outputs(model.predict(images_of(size), verbose=0), "yolos without mid positions")


@pytest.mark.parametrize("name", ["yolos of another size", "yolos without mid positions"])
def test_images_of_any_size_have_their_outputs(name, tmp_path):
    folder = network_folder(name, tmp_path)
    model = keras_vit.from_pretrained(folder, include_preprocessing=False)
    check_outputs(model.predict(images_of(CASES[name]["size"]), verbose=0), name)


def test_half_precision_keeps_boxes_in_float32(tmp_path):
    folder, before = network_folder("yolos", tmp_path), keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = keras_vit.from_pretrained(folder, include_preprocessing=False)
    finally:
        keras.config.set_dtype_policy(before)
    outputs = model.predict(images_of((64, 96)), verbose=0)
    assert {str(each.dtype) for each in outputs.values()} == {"float32"}
    check_outputs(outputs, "yolos", tolerance=0.05)


def test_files_are_read_strictly(tmp_path):
    folder = network_folder("yolos", tmp_path / "a", auxiliary_loss=True)
    with pytest.raises(CheckpointError, match="auxiliary_loss = True: losses of the blocks before"):
        keras_vit.from_pretrained(folder)
    folder = network_folder("yolos", tmp_path / "b", use_mid_position_embeddings=False)
    with pytest.raises(CheckpointMismatchError, match="mid_position_embeddings is of no layer"):
        keras_vit.from_pretrained(folder)
    folder = network_folder("yolos without mid positions", tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "use_mid_position_embeddings": True}))
    with pytest.raises(CheckpointMismatchError, match="mid_position_embeddings is missing"):
        keras_vit.from_pretrained(folder)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    longer = {**arrays, "vit.encoder.mid_position_embeddings": np.zeros((2, 1, 33, 32), "float32")}
    safetensors.numpy.save_file(longer, folder / "model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=r"\(2, 1, 33, 32\), not \(2, 1, 32, 32\)"):
        keras_vit.from_pretrained(folder)
    del arrays["bbox_predictor.layers.1.bias"]
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointMismatchError, match=r"bbox_predictor\.layers\.1\.bias is missing"
    ):
        keras_vit.from_pretrained(folder)
