"""Tests the preprocessing that sidecar files state."""

from __future__ import annotations

import pytest

from keras_vit.config import Preprocessing
from keras_vit.errors import CheckpointError
from keras_vit.weights.image_processors import timm_preprocessing, transformers_preprocessing

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
DEIT = {"feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224, **HALF}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"feature_extractor_type": "ViTFeatureExtractor"}, ("bilinear", None, "center")),
        ({"image_processor_type": "SiglipImageProcessorFast"}, ("bicubic", None, "center")),
        (DEIT, ("bicubic", 224 / 256, "squash")),
        ({**DEIT, "size": 438, "crop_size": 384}, ("bicubic", 384 / 438, "squash")),
        ({**DEIT, "do_center_crop": False}, ("bicubic", None, "center")),
        ({"image_processor_type": "BitImageProcessor", "size": 256}, ("bicubic", 0.875, "center")),
        ({"resample": 2, "size": {"height": 9, "width": 9}}, ("bilinear", None, "center")),
        ({"image_processor_type": "DINOv3ViTImageProcessorFast"}, ("bilinear", None, "center")),
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224},
            ("bicubic", 1.0, "center"),
        ),
    ],
)
def test_image_processors(fields, expected):
    found = transformers_preprocessing(fields)
    assert (found.interpolation, found.crop_ratio, found.crop_mode) == expected
    assert found.library == "transformers"


def test_rescaling_and_statistics():
    assert transformers_preprocessing(DEIT).mean == (127.5,) * 3
    assert transformers_preprocessing({**DEIT, "rescale_factor": 1 / 127.5}).std == (63.75,) * 3
    assert transformers_preprocessing({**DEIT, "do_rescale": False}).mean == (0.5,) * 3
    plain = transformers_preprocessing({**DEIT, "do_normalize": False})
    assert (plain.mean, plain.std) == ((0.0,), (255.0,))


def test_timm_squashes_with_a_ratio():
    fields = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_mode": "squash", "crop_pct": 0.95}
    found = timm_preprocessing(fields)
    assert (found.crop_mode, found.crop_ratio, found.interpolation) == ("squash", 0.95, "bicubic")
    found = timm_preprocessing({**fields, "crop_pct": 1.0})
    assert found == Preprocessing((127.5,) * 3, (127.5,) * 3, "bicubic", None, "timm")
    assert timm_preprocessing({}).crop_ratio == 0.875  # timm's defaults
    assert timm_preprocessing({}).mean == pytest.approx((123.675, 116.28, 103.53))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"do_pad": True, "resample": 1}, r"do_pad=True; resample=1 \(Lanczos\)"),
        ({"image_processor_type": "FlavaImageProcessor"}, r"processor 'FlavaImageProcessor', not"),
        ({"size": {"longest_edge": 224}}, r"size=\{'longest_edge': 224\}"),
        ({**DEIT, "size": 200}, "size=200 with crop_size=224"),
        ({"image_mean": "x"}, "image_mean='x'"),
        ({"do_resize": False, "window": 3}, "window=3; do_resize=False"),
    ],
)
def test_what_cannot_be_followed_is_refused(fields, message):
    with pytest.raises(CheckpointError, match=message):
        transformers_preprocessing(fields)


def test_what_timm_states_is_refused_by_name():
    fields = {"mean": [0.5], "std": [0.0], "interpolation": "lanczos", "crop_pct": 1.2}
    with pytest.raises(CheckpointError, match=r"std=.*; interpolation='lanczos'; crop_pct=1.2"):
        timm_preprocessing(fields)
