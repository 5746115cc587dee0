"""Images with boxes: wrong boxes are one error, and boxes move with the pixels."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest

from keras_vit.config import Preprocessing
from keras_vit.data.input_transform import InputTransform
from keras_vit.detection.boxes import box_batches, read_boxes

NAMES = ("zero", "one")
MODEL = InputTransform((32, 64))


def squares(count=6, size=(16, 16)):
    """Black images with one white box each, and one image without."""
    rng = np.random.default_rng(0)
    images = np.zeros((count, *size, 3), "uint8")
    boxes = []
    for image in images[1:]:
        left, top = rng.integers(0, 8, 2)
        image[top : top + 8, left : left + 6] = 255
        boxes.append([[left, top, left + 6, top + 8]])
    return images, [[], *boxes], [[], *[[index % 2] for index in range(count - 1)]]


def test_boxes_follow_the_pixels_through_resizing_and_mirroring():
    images, boxes, labels = squares()
    found = read_boxes(images, boxes, labels, NAMES)
    classes_of_steps = []
    # linear resizing to 2 and 4 times the size keeps an edge where half of the white is
    for pixels, targets in box_batches(found, MODEL, 2, training=True, seed=3):
        pairs = zip(
            pixels.numpy(), targets["boxes"].numpy(), targets["labels"].numpy(), strict=True
        )
        for image, rows, classes in pairs:
            classes_of_steps.append(classes[0])
            if classes[0] < 0:
                assert rows.tolist() == [[-1] * 4] and image.max() == 0
                continue
            y, x = np.nonzero(image[..., 0] > 127)
            assert rows[0].tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]
    assert sorted(classes_of_steps) == [-1, 0, 0, 0, 1, 1]


def test_epochs_differ_and_follow_the_seed():
    found = read_boxes(*squares(), NAMES)

    def epochs(seed):
        batches = box_batches(found, MODEL, 6, training=True, seed=seed)
        return [next(iter(batches))[1]["boxes"].numpy().tolist() for _ in range(2)]

    first = epochs(1)
    assert first == epochs(1) and first[0] != first[1] and first != epochs(2)


def test_files_are_read_as_they_are_displayed(tmp_path):
    stored = np.zeros((20, 40, 3), "uint8")
    stored[:, 20:] = 255  # below, when it is turned
    image = PIL.Image.fromarray(stored)
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    found = read_boxes([tmp_path / "a.jpg"], [[[0, 0, 20, 40]]], [[1]], NAMES)
    assert found.sizes.tolist() == [[40, 20]]
    # boxes are those of the turned image, also for a model that does not turn others
    other = InputTransform((32, 64), Preprocessing(exif_orientation=False))
    for model in (MODEL, other):
        pixels, targets = next(iter(box_batches(found, model, 1)))
        assert pixels.shape == (1, 32, 64, 3)
        assert targets["boxes"][0, 0].numpy().tolist() == [0, 0, 64, 32]
        assert pixels[0, :14].numpy().max() < 20 < 200 < pixels[0, 18:].numpy().min()


def test_every_wrong_box_is_in_one_error(tmp_path):
    images = np.zeros((4, 16, 24, 3), "uint8")
    boxes = [[[0, 0, 25, 8]], [[4, 4, 4, 8], [2, 2, 8, 8]], [[0, 0, 24, 16]], [[1, 2, 3]]]
    with pytest.raises(ValueError, match="4 problems with boxes") as caught:
        read_boxes(images, boxes, [[0], [0, 1], [2], [0]], NAMES)
    for text in (
        r"image 0, box 0: \[0.0, 0.0, 25.0, 8.0\] lies partly outside the image of 24 pixels",
        r"image 1, box 0: \[4.0, 4.0, 4.0, 8.0\] has no area",
        "image 2, box 0: label 2, and the classes are 0 to 1. Name more classes",
        r"image 3: boxes of shape \(1, 3\).*expected \(n, 4\)",
    ):
        assert caught.match(text)
    odd = [[[0, 0, 10**400, 8]], [[1], [1, 2]], "boxes", None]
    with pytest.raises(ValueError, match="4 problems with boxes") as caught:
        read_boxes(images, odd, [[0], [10**400], [[1], [1, 2]], None], NAMES)
    assert str(caught.value).count("expected (n, 4) and n integers") == 4
    assert "image 1, box 1" not in str(caught.value)
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"b\.png") as caught:
        read_boxes([tmp_path / "b.png"], [[[0, 0, 4, 4]]], [[0]], NAMES)
    assert "1 problems" in str(caught.value)  # its boxes are not compared with a size of 0
    columns = [[0, 10], [0, 10], [20, 14], [12, 14]]  # (4, n)
    with pytest.raises(ValueError, match=r"boxes of shape \(4, 2\).*expected \(n, 4\)"):
        read_boxes(images[:1], [columns], [[0, 1]], NAMES)
    with pytest.raises(ValueError, match=r"look like values in \[0, 1\]: multiply by 255"):
        read_boxes(images[:1] + 0.5, [[]], [[]], NAMES)
    with pytest.raises(ValueError, match="'images': 4, 'boxes': 1"):
        read_boxes(images, boxes[:1], [[0]], NAMES)
    with pytest.raises(ValueError, match="fewer than a batch of 8"):
        box_batches(read_boxes(*squares(), NAMES), MODEL, 8, training=True)
