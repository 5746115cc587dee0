"""`keras-vit segment masks`: everything in images, drawn and as a COCO file."""

from __future__ import annotations

import json

import numpy as np
import PIL.Image
import pytest

from keras_vit.cli.main import main
from keras_vit.segmentation import find_all_masks, load_promptable
from tests.segmentation.sam_folder import read_photographs, sam_folder

pytest.importorskip("pycocotools", reason="pycocotools is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sam")
    (folder / "images").mkdir()
    photographs = read_photographs()
    for name in ("coffee", "astronaut"):
        PIL.Image.fromarray(photographs[name][:200, :300]).save(folder / f"images/{name}.png")
    return sam_folder(folder)


def run(folder, tmp_path, images, *words):
    words = ["segment", "masks", *map(str, images), "--model", str(folder), *words]
    return main([*words, "--output", str(tmp_path / "out")])


def masks_of(tmp_path):
    from pycocotools import mask

    data = json.loads((tmp_path / "out/masks.json").read_text())
    return data, [mask.decode(each["segmentation"]) for each in data["annotations"]]


def test_everything_is_written_as_coco_and_drawn(folder, tmp_path, capsys):
    options = {"points_per_side": 3, "threshold": 0.5, "stability_threshold": 0.0}
    words = [word for key, value in options.items()
             for word in (f"--{key.replace('_', '-')}", str(value))]  # fmt: skip
    assert run(folder, tmp_path, [folder / "images"], *words) == 0
    assert "coffee.png" in capsys.readouterr().out
    data, masks = masks_of(tmp_path)
    assert [image["height"] for image in data["images"]] == [200, 200]
    assert (tmp_path / "out/astronaut_masks.png").exists()
    image = PIL.Image.open(folder / "images/coffee.png")
    expected = find_all_masks(load_promptable(folder), np.asarray(image), **options)
    own = [each["image_id"] == 2 for each in data["annotations"]]
    assert sum(own) == len(expected.masks) > 0
    found = [mask for mask, is_own in zip(masks, own, strict=True) if is_own]
    np.testing.assert_array_equal(found, expected.masks)
