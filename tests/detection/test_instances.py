"""Pixels of photographs and of objects in them are those of transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import skimage.data

import keras_vit
from keras_vit.config import IMAGENET_STATISTICS
from keras_vit.detection.instances import predict_instances
from keras_vit.detection.prediction import _pixels_of, predict_boxes
from scripts.golden.network_formula import chosen_values
from tests.networks.cases import network_folder
from tests.official import GOLDEN

CASES = json.loads((GOLDEN / "instances.json").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = network_folder("rf-detr segmentation", tmp_path_factory.mktemp("network"))
    return keras_vit.from_pretrained(folder, input_shape=(56, 56, 3))


def test_pixels_of_photographs_are_theirs(model):
    for case in CASES:
        pixels, _ = _pixels_of(model, getattr(skimage.data, case["name"])(), "image")
        pixels = (pixels - np.array(IMAGENET_STATISTICS.mean)) / np.array(IMAGENET_STATISTICS.std)
        found = chosen_values(pixels)
        assert found["shape"] == case["pixels"]["shape"]
        np.testing.assert_allclose(found["values"], case["pixels"]["values"], rtol=0, atol=1e-5)


def test_objects_in_photographs_are_theirs(model):
    images = [getattr(skimage.data, case["name"])() for case in CASES]
    results = predict_instances(model, images, threshold=0.6, mask_threshold=0.1)
    assert [len(case["segments"]) for case in CASES] == [4, 4, 1]
    for case, found in zip(CASES, results, strict=True):
        for own, theirs in zip(found["segments_info"], case["segments"], strict=True):
            assert {**own, "score": 0} == {**theirs, "score": 0}
            assert own["score"] == pytest.approx(theirs["score"], abs=2e-6)
        counts = np.bincount(found["segmentation"].reshape(-1) + 1)
        np.testing.assert_allclose(counts, case["counts"], rtol=0, atol=3)  # pixels on an edge
        values = np.array(chosen_values(found["segmentation"])["values"])
        assert (values != case["values"]["values"]).sum() <= 1


def test_nothing_above_the_threshold_is_an_empty_image(model):
    image = skimage.data.rocket()
    (found,) = predict_instances(model, [image], threshold=1.0)
    assert found["segments_info"] == [] and (found["segmentation"] == -1).all()
    assert found["segmentation"].shape == image.shape[:2]
    assert len(predict_boxes(model, [image], threshold=0.0)[0].labels) == 6


def test_models_without_masks_are_an_error(tmp_path):
    model = keras_vit.from_pretrained(network_folder("rf-detr", tmp_path))
    with pytest.raises(ValueError, match="takes a RealTimeDetector with masks"):
        predict_instances(model, [])
