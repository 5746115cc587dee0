"""Images with masks: PNG files of every kind, and what is wrong with files."""

from __future__ import annotations

import os

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.input_transform import InputTransform
from keras_vit.segmentation.mask_pipeline import mask_batches
from keras_vit.segmentation.masks import read_mask_arrays, read_masks, value_table
from tests.data.pictures import encoded, pixels

NAMES = ("sky", "road", "car")
COLORS = [(70, 130, 180), (128, 64, 128), (0, 0, 142)]
SIZE = (24, 32)


def labels_for(index, size=(40, 60)):
    labels = np.random.default_rng(index).integers(0, 3, size).astype("uint8")
    labels[:4] = 255
    return labels


def mask_file(labels, kind):
    """A PNG of labels: grey, with a palette of 8 or 2 bits, or of colours."""
    if kind == "grey":
        return encoded(labels, "png")
    if kind == "colours":
        table = np.zeros((256, 3), "uint8")
        table[:3] = COLORS
        table[255] = 7
        return encoded(table[labels], "png")
    image = PIL.Image.fromarray(np.where(labels == 255, 3, labels) if kind == "2 bits" else labels)
    image = image.convert("P")
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype("uint8").tobytes())
    image.putdata(
        np.where(labels == 255, 3, labels).ravel() if kind == "2 bits" else labels.ravel()
    )
    return encoded(image, "png", **({"bits": 2} if kind == "2 bits" else {"transparency": 255}))


def write_pairs(root, kind="grey", count=3):
    for name in ("images", "masks"):
        (root / name / "a").mkdir(parents=True)
    for index in range(count):
        image = encoded(pixels(seed=index))
        (root / f"images/a/{index}.jpg").write_bytes(image)
        (root / f"masks/a/{index}.png").write_bytes(mask_file(labels_for(index), kind))
    return root / "images", root / "masks"


@pytest.mark.parametrize("kind", ["grey", "palette", "2 bits", "colours"])
def test_masks_of_every_kind_have_the_same_labels(kind, tmp_path):
    options = {"2 bits": {"ignored": (3,)}, "colours": {"colors": COLORS, "ignored": [(7, 7, 7)]}}
    masks = read_masks(
        *write_pairs(tmp_path / os.fsdecode(b"\xff"), kind),
        NAMES,
        check="pixels",
        **options.get(kind, {}),
    )
    assert masks.num_images == 3
    for index, (_, labels) in enumerate(masks.pairs()):
        np.testing.assert_array_equal(labels, labels_for(index))
    expected = np.bincount(np.ravel([labels_for(i) for i in range(3)]), minlength=256)[:3]
    np.testing.assert_array_equal(masks.pixel_counts(), expected)


def test_problems_of_files_are_listed_together(tmp_path):
    images, folder = write_pairs(tmp_path, count=5)
    good = labels_for(0)
    (folder / "a/0.png").write_bytes(encoded(good[:-1], "png"))
    (folder / "a/1.png").write_bytes(mask_file(good, "colours"))
    (folder / "a/2.png").write_bytes(encoded(good.astype("uint16"), "png"))
    data = mask_file(good, "palette")
    (folder / "a/3.png").write_bytes(data.replace(b"PLTE", b"abCd"))
    (folder / "a/4.png").write_bytes(encoded(good, "jpeg"))
    with pytest.raises(ValueError) as caught:
        read_masks(images, folder, NAMES)
    for text in (
        "0.png has 39 x 60 pixels, and 0.jpg 40 x 60 as it is displayed. Save the mask in that",
        "1.png has colours. Pass the colour of every class: colors=",
        "2.png has 16 bits a pixel",
        "3.png has a palette, and no table of its colours",
        "4.png is no PNG: other formats change labels",
    ):
        assert text in str(caught.value)
    twin = images / "a/1.png"
    twin.write_bytes(encoded(good, "png"))
    with pytest.raises(ValueError, match=r"a/1.png has the name of .*a/1.jpg"):
        read_masks(images, folder, NAMES)
    twin.unlink()
    (folder / "a/4.png").rename(folder / "a/5.png")
    with pytest.raises(ValueError, match=r"(?s)4.jpg has no mask.*5.png has no image"):
        read_masks(images, folder, NAMES)


def test_labels_beyond_the_classes_are_found_before_or_while_reading(tmp_path):
    folders = write_pairs(tmp_path)
    with pytest.raises(
        ValueError, match=r"(?s)3 masks hold values beyond the 2 classes.*0.png has"
    ):
        read_masks(*folders, NAMES[:2], check="pixels")
    with pytest.raises(ValueError, match=r"mask of .*0\.jpg .* none of its 2 classes"):
        read_masks(*folders, NAMES[:2]).pixel_counts()
    batches = mask_batches(read_masks(*folders, NAMES[:2]), InputTransform(SIZE), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"none of its 2 classes"):
        next(iter(batches))
    with pytest.raises(ValueError, match=r"hold 2, and the 2 classes are 0 to 1"):
        read_mask_arrays(np.zeros((1, 4, 4, 3), "uint8"), np.full((1, 4, 4), 2), NAMES[:2])
    with pytest.raises(ValueError, match=r"colour of its own"):
        read_masks(*folders, NAMES, colors=[(0, 0, 0)] * 3)
    with pytest.raises(ValueError, match=r"3 classes, the model 5"):
        model = type("Model", (), {"output_shape": (None, 4, 4, 5), "inputs": None})
        mask_batches(read_masks(*folders, NAMES), model, 2)


def test_damage_that_is_found_while_decoding_names_the_file(tmp_path):
    folders = write_pairs(tmp_path, count=2)
    path = folders[1] / "a/1.png"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"1 masks .*damaged:\s+\S*a/1\.png cannot be decoded"):
        read_masks(*folders, NAMES, check="pixels")
    with pytest.raises(ValueError, match=r"The mask of \S*a/1\.jpg cannot be decoded"):
        read_masks(*folders, NAMES).pixel_counts()


def test_turned_images_have_masks_as_displayed(tmp_path):
    images, folder = write_pairs(tmp_path, count=1)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    (images / "a/0.jpg").write_bytes(encoded(pixels(60, 40), exif=exif))
    (pair,) = read_masks(images, folder, NAMES).pairs()
    assert pair[1].shape == (40, 60)


def test_images_are_turned_to_their_masks_for_every_model(tmp_path):
    images, folder = write_pairs(tmp_path, count=1)
    labels = np.zeros((40, 60), "uint8")
    labels[:, 40:] = 1
    exif = PIL.Image.Exif()
    exif[0x0112] = 2  # mirrored when it is displayed, in the same size
    stored = np.repeat(labels[:, ::-1, None] * np.uint8(200), 3, -1)
    (images / "a/0.jpg").write_bytes(encoded(stored, exif=exif, quality=95))
    (folder / "a/0.png").write_bytes(mask_file(labels, "grey"))
    masks = read_masks(images, folder, NAMES)
    model = InputTransform((40, 60), Preprocessing(exif_orientation=False), normalize=False)
    pixels, found = next(iter(mask_batches(masks, model, 1)))
    np.testing.assert_array_equal(found[0], labels)
    np.testing.assert_allclose(pixels[0, :, :, 0], labels * 200.0, atol=20)


def table(count=3, **options):
    masks = np.arange(count)[None, None].repeat(2, 1)
    images = np.zeros((*masks.shape, 3), "uint8")
    return read_mask_arrays(images, masks, [str(i) for i in range(count)], **options)


def test_arrays_of_masks_have_the_size_of_the_images():
    images, masks = np.zeros((2, 4, 6, 3), "uint8"), np.zeros((2, 4, 6), int)
    for wrong in (masks[:, :, :5], masks[:1], masks[0], masks[..., None], masks.astype(float)):
        message = rf"of shape \(B, H, W\). Received: shape \(2, 4, 6, 3\), and {wrong.dtype}"
        with pytest.raises(ValueError, match=message):
            read_mask_arrays(images, wrong, ["a"])


def test_a_value_is_not_both_a_class_and_ignored(tmp_path):
    folders = write_pairs(tmp_path)
    with pytest.raises(ValueError, match="The value 0 is a class, 0 of 3, and cannot be ignored"):
        read_masks(*folders, NAMES, ignored=(0,))
    with pytest.raises(ValueError, match="The value 2 is a class, 1 of 3"):
        read_masks(*folders, NAMES, first_value=1, ignored=(255, 2))
    with pytest.raises(ValueError, match="The value 2 is a class, 2 of 3"):
        table(ignored=(2,))
    with pytest.raises(ValueError, match=r"\[\(128, 64, 128\)\] are colours of classes"):
        read_masks(*folders, NAMES, colors=COLORS, ignored=[COLORS[1]])
    with pytest.raises(ValueError, match=r"three integers each. Received: ignored=\[0\]"):
        read_masks(*folders, NAMES, colors=COLORS, ignored=[0])
    for value in (-1, 300):
        with pytest.raises(ValueError, match=rf"values from 0 to 255. Received: \({value},\)"):
            table(ignored=(value,))
    assert value_table(255, 1, (255,)).numpy().tolist() == [-1, *range(255)]
    assert table(ignored=(np.int64(7), 7)).pixel_counts().tolist() == [2, 2, 2]
