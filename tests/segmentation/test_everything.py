"""Masks of everything in an image: those of the pipeline of transformers, drawn, and as COCO."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest

from keras_vit.segmentation import everything
from keras_vit.segmentation.everything import FoundMasks, draw_masks, find_all_masks, to_coco
from keras_vit.segmentation.promptable import load_promptable
from scripts.golden.network_formula import EVERYTHING
from tests.segmentation.sam_folder import EXPECTED, read_photographs, sam_folder


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return load_promptable(sam_folder(tmp_path_factory.mktemp("sam")))


@pytest.fixture(scope="module")
def photographs():
    return read_photographs()


@pytest.mark.parametrize("case", EVERYTHING)
def test_everything_is_as_in_transformers(case, segmenter, photographs):
    counts = []
    for name, photograph in photographs.items():
        found = find_all_masks(segmenter, photograph, **EVERYTHING[case]["ours"])
        key = f"{name}/{case}"
        np.testing.assert_allclose(found.scores, EXPECTED[f"{key}/scores"], atol=1e-5)
        np.testing.assert_array_equal(found.boxes, EXPECTED[f"{key}/boxes"])
        masks = np.unpackbits(EXPECTED[f"{key}/masks"], axis=-1, count=photograph.shape[1])
        np.testing.assert_array_equal(found.masks, masks)
        counts.append(len(masks))
    assert min(counts) > 0 and max(counts) > 5


def test_nothing_may_pass_the_filters(segmenter, photographs):
    found = find_all_masks(segmenter, photographs["coffee"][:60, :90], 2, threshold=9.0)
    assert found.masks.shape == (0, 60, 90) and found.masks.dtype == bool
    assert found.scores.shape == (0,) and found.boxes.shape == (0, 4)
    assert to_coco(["a.png"], [found])["annotations"] == []


def test_a_mask_cut_off_by_a_crop_is_left_out():
    size, crop = (200, 300), (0, 0, 160, 120)
    inside, cut, at_the_image = (30, 30, 100, 90), (30, 30, 150, 90), (0, 0, 100, 90)
    for box, expected in ((inside, False), (cut, True), (at_the_image, False)):
        assert everything._is_cut_off(np.array(box), crop, size) == expected


def test_no_points_are_an_error(segmenter, photographs):
    for name in ("points_per_side", "points_per_batch"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            find_all_masks(segmenter, photographs["coffee"], **{name: 0})


@pytest.fixture
def found():
    """A large mask, and a small one inside of it."""
    masks = np.zeros((2, 40, 60), bool)
    masks[0, 5:35, 10:50] = masks[1, 10:15, 20:30] = True
    boxes = np.array([[10, 5, 49, 34], [20, 10, 29, 14]], "float32")
    return FoundMasks(masks, np.array([0.9, 0.8], "float32"), boxes)


def test_the_smallest_mask_is_drawn_above(found):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    drawn = draw_masks(np.full((40, 60, 3), 100, "uint8"), found)
    assert drawn.shape == (40, 60, 3) and drawn.dtype == np.uint8
    assert (drawn[0, 0] == 100).all()
    colours = {tuple(drawn[place]) for place in ((0, 0), (34, 49), (14, 20))}
    assert len(colours) == 3


def test_coco_reads_the_masks_again(found, tmp_path):
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    path = tmp_path / "masks.json"
    path.write_text(json.dumps(to_coco(["a.png", "b.png"], [found, found])))
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO(path)
    assert [image["file_name"] for image in data.imgs.values()] == ["a.png", "b.png"]
    for number, own in data.anns.items():
        index = (number - 1) % 2
        np.testing.assert_array_equal(data.annToMask(own), found.masks[index])
        assert own["area"] == found.masks[index].sum()
        left, top, right, bottom = found.boxes[index]
        assert own["bbox"] == [left, top, right - left + 1, bottom - top + 1]
        assert own["predicted_iou"] == pytest.approx(float(found.scores[index]))
