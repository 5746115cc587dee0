"""Keypoints in photographs: those of transformers, and what does not fit."""

from __future__ import annotations

import json

import numpy as np
import PIL.Image
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.pose import (
    crop_boxes,
    decode_heatmaps,
    estimate_poses,
    heatmap_targets,
    keypoints_in_heatmaps,
)
from keras_vit.runtime.model import Model
from tests.networks.cases import network_folder
from tests.official import GOLDEN

THEIRS = json.loads((GOLDEN / "poses.json").read_text())
PERSON = [[20, 10, 120, 190]]


@pytest.fixture(scope="module")
def photographs():
    data = pytest.importorskip("skimage.data")
    return [getattr(data, name)() for name in THEIRS["boxes"]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}
    for name in {case["network"] for case in THEIRS["cases"]}:
        folder = network_folder(name, tmp_path_factory.mktemp("pose") / "network")
        arrays = safetensors.numpy.load_file(folder / "model.safetensors")
        arrays["head.conv.bias"] += THEIRS["raised"]
        safetensors.numpy.save_file(arrays, folder / "model.safetensors")
        made[name] = keras_vit.from_pretrained(folder)
    return made


@pytest.mark.parametrize("number", range(len(THEIRS["cases"])))
def test_keypoints_are_those_of_transformers(models, photographs, number):
    case = THEIRS["cases"][number]
    pairs = THEIRS["flip_pairs"] if case["flips"] else None
    boxes = list(THEIRS["boxes"].values())
    found = estimate_poses(models[case["network"]], photographs, boxes, pairs)
    for poses, theirs in zip(found, case["poses"], strict=True):
        keypoints = np.array([each["keypoints"] for each in theirs])
        scores = np.array([each["scores"] for each in theirs])
        np.testing.assert_allclose(poses.keypoints, keypoints, rtol=0, atol=0.01)
        np.testing.assert_allclose(poses.scores, scores, rtol=0, atol=1e-5)


def test_integers_and_files_give_the_same_keypoints_as_arrays(models, photographs, tmp_path):
    path = tmp_path / "a.png"
    PIL.Image.fromarray(photographs[0]).save(path)
    boxes = [THEIRS["boxes"]["astronaut"]]
    model = models["vitpose"]
    for each, other in zip(
        estimate_poses(model, [path], boxes), estimate_poses(model, photographs[:1], boxes),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(each.keypoints, other.keypoints)
    alone = estimate_poses(model, str(path), boxes)[0]
    np.testing.assert_array_equal(alone.scores, other.scores)


def test_images_may_have_no_people(models):
    images = np.zeros((3, 200, 150, 3), "uint8")
    found = estimate_poses(models["vitpose"], images, [[], PERSON, np.zeros((0, 4))])
    assert [each.keypoints.shape for each in found] == [(0, 6, 2), (1, 6, 2), (0, 6, 2)]
    assert [each.scores.shape for each in found] == [(0, 6), (1, 6), (0, 6)]
    (found,) = estimate_poses(models["vitpose"], images[:1], [[]])
    assert found.keypoints.shape == (0, 6, 2)


def test_crops_are_widened_and_black_outside():
    image = np.full((100, 80, 3), 200, "uint8")
    whole, tall = crop_boxes(image, [[20, 30, 40, 50], [0, 0, 80, 100]], (64, 48))
    np.testing.assert_array_equal(whole, 200)  # 25 x 33 pixels within the image
    assert (tall == 0).any() and set(np.unique(tall)) == {0, 200}
    ramp = np.tile(np.arange(80.0)[None, :, None], (100, 1, 1))
    (crop,) = crop_boxes(ramp, [[20, 30, 44, 62]], (64, 48))  # 30 x 40 pixels around (32, 46)
    np.testing.assert_allclose(crop[:, :, 0], np.tile(np.linspace(17, 47, 48), (64, 1)), atol=1e-4)


def test_maxima_of_gaussians_are_found_between_positions():
    points = np.random.default_rng(0).uniform(8, 38, (4, 5, 2))
    targets, _ = heatmap_targets(points, np.ones((4, 5)), (64, 48))
    found, values = decode_heatmaps(targets)
    np.testing.assert_allclose(found, points, rtol=0, atol=2e-3)
    assert np.abs(found - found.round()).max() > 0.4
    assert ((values > 0.9) & (values <= 1)).all()


def test_maps_without_positive_values_have_scores_of_zero_or_less():
    maps = np.full((1, 2, 16, 12), -1, "float32")
    maps[0, 0, 5, 7] = -0.5
    found, scores = decode_heatmaps(maps)
    np.testing.assert_array_equal(found[0, 0], (7, 5))
    np.testing.assert_array_equal(scores, [[-0.5, -1]])


def test_keypoints_come_back_from_the_heatmaps_of_their_boxes(models):
    """A model that gives the targets: the positions of training and of estimation are the same."""
    boxes = np.array([[20, 10, 120, 190], [60.5, 40, 100, 220]])
    random = np.random.default_rng(0)
    points = np.stack([random.uniform(box[:2], box[2:], (6, 2)) for box in boxes])
    positions = keypoints_in_heatmaps(points, boxes, (64, 48))
    targets, _ = heatmap_targets(positions, np.ones((2, 6)), (64, 48))

    class Fixed(Model):
        def predict(self, x, *args, **kwargs):
            return {"heatmaps": targets}

    model = models["vitpose"]
    fixed = Fixed(model.inputs[0], {"heatmaps": model.output["heatmaps"]})
    (found,) = estimate_poses(fixed, np.zeros((1, 256, 256, 3), "uint8"), [boxes])
    np.testing.assert_allclose(found.keypoints, points, rtol=0, atol=0.01)


def test_boxes_that_do_not_fit_are_listed_with_image_and_box(models):
    images = np.zeros((2, 200, 150, 3), "uint8")
    boxes = [[[20, 10, 20, 90], PERSON[0], [150, 0, 180, 20]], [[0, -30, 20, np.nan]]]
    with pytest.raises(ValueError, match="has 3 problems") as error:
        estimate_poses(models["vitpose"], images, boxes)
    for part in (
        "image 0, box 0: (20.0, 10.0, 20.0, 90.0) has no finite area",
        "image 0, box 2: (150.0, 0.0, 180.0, 20.0) lies outside the image of 150 x 200 pixels",
        "image 1, box 0: (0.0, -30.0, 20.0, nan) has no finite area",
    ):
        assert part in str(error.value)
    with pytest.raises(ValueError, match=r"image 0, boxes of shape \(1, 3\): expected"):
        estimate_poses(models["vitpose"], images[:1], [[[1, 2, 3]]])
    with pytest.raises(ValueError, match=r"each of the 2 images\. Received: 1"):
        estimate_poses(models["vitpose"], images, [PERSON])


def test_images_that_do_not_fit_are_errors(models, tmp_path):
    with pytest.raises(ValueError, match=r"Image 0 must have the shape \(height, width, 3\)"):
        estimate_poses(models["vitpose"], [np.zeros((20, 20), "uint8")], [PERSON])
    with pytest.raises(ValueError, match=r"values in \[0, 255\]"):
        estimate_poses(models["vitpose"], [np.ones((20, 20, 3))], [PERSON])
    with pytest.raises(OSError, match=r"none\.jpg"):
        estimate_poses(models["vitpose"], [tmp_path / "none.jpg"], [PERSON])


def test_models_that_do_not_fit_are_errors(tmp_path):
    images = np.zeros((1, 200, 150, 3), "uint8")
    folder = network_folder("vitpose", tmp_path)
    for options in ({"include_preprocessing": False}, {"input_shape": (None, None, 3)}):
        model = keras_vit.from_pretrained(folder, **options)
        with pytest.raises(ValueError, match="images of one size with pixels in"):
            estimate_poses(model, images, [PERSON])
    other = keras_vit.ViTTi16(weights=None, include_top=False, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match="and have an output `heatmaps`"):
        estimate_poses(other, images, [PERSON])
