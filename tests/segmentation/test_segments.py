"""Segments from queries: those of transformers, on photographs of several sizes."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import skimage
import tensorflow as tf

import keras_vit
from keras_vit.segmentation import (
    as_segmenter,
    evaluate_masks,
    export_segmenter,
    predict_masks,
    predict_segments,
    read_mask_arrays,
)
from scripts.golden.network_formula import SCALES, SEGMENT_TASKS, photographs_of
from tests.networks.cases import network_folder
from tests.official import GOLDEN

EXPECTED = np.load(GOLDEN / "eomt_segments.npz")
DATA = pathlib.Path(skimage.__file__).parent / "data"
LAYERS = {"query.weight": ("queries", 0), "class_predictor.weight": ("class_head", 0)}


def load(folder, splits=False, name="eomt", changes=None, **options):
    network_folder(name, folder, **(changes or {}))
    size = {"shortest_edge": 64, "longest_edge": None if splits else 64}
    processor = {"do_split_image": splits, "do_pad": not splits, "size": size, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    model = keras_vit.from_pretrained(folder, **options)
    for name, factor in SCALES.items():
        layer, index = LAYERS[name]
        weight = model.get_layer(layer).weights[index]
        weight.assign(weight * factor)
    return model


@pytest.fixture(scope="module")
def photographs():
    return photographs_of(lambda name: skimage.io.imread(DATA / name)[..., :3])


@pytest.mark.parametrize("name", SEGMENT_TASKS)
def test_segments_are_those_of_transformers(name, photographs, tmp_path):
    case = SEGMENT_TASKS[name]
    model = load(tmp_path, case["splits"])
    found = predict_segments(model, list(photographs.values()), case["task"], **case["ours"])
    for photograph, result in zip(photographs, found, strict=True):
        expected = EXPECTED[f"{name}/{photograph}"]
        infos = json.loads(str(EXPECTED[f"{name}/{photograph}/segments"]))
        if case["task"] == "semantic":
            assert len(np.unique(expected)) > 1
        else:
            result, segments = result["segmentation"], result["segments_info"]
            for info, ours in zip(infos, segments, strict=True):
                assert ours["score"] == pytest.approx(info.pop("score"), abs=2e-6)
                assert {key: ours[key] for key in info} == info
        assert result.shape == expected.shape
        # Of at least 147,200 pixels: two queries are as likely within the rounding of the network.
        assert (result != expected).sum() <= 2


def test_images_are_files_or_pixels(photographs, tmp_path):
    model, path = load(tmp_path), DATA / "coffee.png"
    calls = [photographs["coffee"], path, str(path)]
    first, *others = (x["segmentation"] for x in predict_segments(model, calls, threshold=0.4))
    assert first.shape == (400, 600) and first.dtype == "int32"
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_eomt_is_a_segmenter(photographs, tmp_path):
    model, image = load(tmp_path / "a"), photographs["astronaut"]
    (expected,) = predict_segments(model, [image], "semantic")
    assert len(np.unique(expected)) > 2
    found = predict_masks(model, image)
    assert (found != expected).mean() < 1e-4
    segmenter = as_segmenter(model)
    assert segmenter.output_shape == (None, 64, 64, 5) and as_segmenter(model) is segmenter
    assert segmenter.class_names == model.class_names and len(model.class_names) == 5
    for train in (segmenter.fit, segmenter.train_on_batch):
        with pytest.raises(ValueError, match="build_mask_trainer"):
            train(image[None], expected[None])
    windows = predict_masks(model, image, "slide", logits=True)
    assert windows.shape == (512, 512, 5)
    masks = read_mask_arrays([image], [expected.astype("uint8")], model.class_names)
    assert evaluate_masks(model, masks).pixel_accuracy > 0.998
    report = export_segmenter(model, tmp_path / "b", verbose=False)
    served = tf.saved_model.load(str(report.path)).signatures["image"]
    assert (served(image=tf.constant(image))["class_map"].numpy() == found).mean() > 0.99


@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_an_image_may_have_no_segments(task, photographs, tmp_path):
    (found,) = predict_segments(load(tmp_path), [photographs["coffee"]], task, threshold=1.0)
    assert found["segments_info"] == [] and (found["segmentation"] == -1).all()
    assert found["segmentation"].shape == (400, 600)


def test_padding_is_no_part_of_a_class_map(tmp_path):
    """transformers stretches it over the image."""
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype="uint8")
    image[32:] = 0
    model = load(tmp_path)
    (whole,) = predict_segments(model, [image], "semantic")
    (half,) = predict_segments(model, [image[:32]], "semantic")
    np.testing.assert_array_equal(half, whole[:32])


def test_wrong_calls_say_what_to_do(photographs, tmp_path):
    model, image = load(tmp_path, splits=True), photographs["coffee"]
    with pytest.raises(ValueError, match='task="semantic"'):
        predict_segments(model, [image], "panoptic")
    with pytest.raises(ValueError, match="Pass \\[image\\]"):
        predict_segments(model, image)
    with pytest.raises(ValueError, match="`task` must be"):
        predict_segments(model, [image], "boxes")
    with pytest.raises(ValueError, match="load a checkpoint of EoMT"):
        predict_segments(keras_vit.ViTTi16(weights=None), [image])
    normalised = load(tmp_path, include_preprocessing=False)
    with pytest.raises(ValueError, match="include_preprocessing=True"):
        predict_segments(normalised, [image])
    wide = load(tmp_path, input_shape=(64, 96, 3))
    with pytest.raises(ValueError, match="square images"):
        predict_segments(wide, [image])
