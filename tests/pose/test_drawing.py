"""Pictures of poses, and the skeletons of checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

import keras_vit
from keras_vit.pose import COCO_EDGES, COCO_FLIP_PAIRS, draw_poses, find_edges
from tests.networks.cases import network_folder

POINTS = np.array([[[10.0, 10.0], [50.0, 10.0], [10.0, 40.0]]])


def test_joints_and_lines_are_drawn_where_scores_are_high():
    image = np.full((60, 80, 1), 7, "uint8")
    drawn = draw_poses(image, POINTS, [[0.9, 0.9, 0.1]], [(0, 1), (0, 2)])
    assert drawn.shape == (60, 80, 3) and drawn.dtype == "uint8"
    changed = (drawn != 7).any(-1)
    assert changed[10, 10:51].all()  # the line and its ends
    assert not changed[15:].any()  # the joint that is not sure, and its line
    everything = draw_poses(image, POINTS, [[0.9, 0.9, 0.1]], [(0, 1), (0, 2)], threshold=0)
    assert (everything != 7).any(-1)[10:41, 10].all()
    np.testing.assert_array_equal(image, 7)
    np.testing.assert_array_equal(draw_poses(drawn, POINTS[:0], np.zeros((0, 3)), ()), drawn)


def test_joints_outside_of_the_image_are_no_error():
    drawn = draw_poses(np.zeros((20, 20, 3)), POINTS * 10, np.ones((1, 3)), [(0, 1)])
    np.testing.assert_array_equal(drawn, 0)


def test_shapes_and_edges_that_do_not_fit_are_errors():
    image = np.zeros((20, 20, 3), "uint8")
    with pytest.raises(ValueError, match=r"must have the shape \(n, joints, 2\)"):
        draw_poses(image, POINTS[0], [[1, 1, 1]])
    with pytest.raises(ValueError, match="pairs of joints from 0 to 2"):
        draw_poses(image, POINTS, [[1, 1, 1]])  # COCO's


def test_skeletons_are_those_of_the_checkpoint(tmp_path):
    model = keras_vit.from_pretrained(network_folder("vitpose", tmp_path / "a"))
    assert find_edges(model) == ()
    assert model.class_names == tuple(f"joint {number}" for number in range(6))
    edges = [[0, 1], [4, 5]]
    folder = network_folder("vitpose", tmp_path / "b", edges=edges)
    assert find_edges(keras_vit.from_pretrained(folder)) == ((0, 1), (4, 5))


def test_coco_has_17_joints():
    assert {joint for edge in COCO_EDGES for joint in edge} == set(range(17))
    assert {joint for pair in COCO_FLIP_PAIRS for joint in pair} == set(range(1, 17))
