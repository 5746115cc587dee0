"""The code of docs/dense-published.md runs, on small networks in place of the published ones."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.pretrained import NETWORKS
from scripts.golden.pictures import picture_of
from tests.networks.cases import network_folder

PAGE = (pathlib.Path(__file__).parents[2] / "docs/dense-published.md").read_text()
CASES = {"Depth": "depth anything", "beit": "beit segmentation", "eomt": "eomt", "yolos": "yolos",
         "vitpose": "vitpose"}  # fmt: skip


def test_the_page_names_every_network():
    (table,) = re.findall(r"\| class of transformers .*?\n\n", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+(?:Estimation|Segmentation|Detection))`", table)) == set(NETWORKS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture = picture_of("coffee")
    tf.io.write_file("photo.jpg", tf.io.encode_jpeg(picture))
    images = np.random.default_rng(0).uniform(0, 255, (2, 56, 56, 3)).astype("float32")
    corners = np.array([[[5, 5, 50, 50]]] * 2, "float32")
    boxes = keras_vit.detection.read_boxes(images, corners, [[1], [0]], ("a", "b"))
    names = {
        "keras_vit": keras_vit, "images": images, "depths": images[..., 0], "pixels": picture,
        "boxes": boxes, "held_out": boxes, "people": [[100, 50, 400, 380]],
        "backbone": keras_vit.ViTTi16(weights=None, include_top=False, input_shape=(64, 64, 3)),
    }  # fmt: skip
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for part in re.findall(r'"hf://([^"]+)"', block):
            case = next(case for name, case in CASES.items() if name in part)
            block = block.replace(f"hf://{part}", str(network_folder(case, tmp_path / case)))
        if "build_eomt" in block:
            names |= {"images": images[:, :32, :32].repeat(2, 1).repeat(2, 2)}
            names |= {"masks": np.ones((2, 1, 64, 64)), "labels": np.array([[3], [-1]])}
        exec(compile(block, "dense-published", "exec"), names)
    assert names["depth"].shape == names["class_map"].shape == picture.shape[:2]
    assert names["found"]["segmentation"].shape == picture.shape[:2]
    assert names["poses"].keypoints.shape[0] == 1 and names["picture"].shape == picture.shape
