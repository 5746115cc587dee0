"""LiteRT files beside the model."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.export.litert import export_litert, load_litert


def test_float32_gives_the_models_logits(model, pixels, tmp_path):
    report = export_litert(model, tmp_path / "tiny.tflite")
    assert report.max_difference < 1e-5
    run = load_litert(report.path)
    logits = np.concatenate([run(image[None])["logits"] for image in pixels])
    np.testing.assert_allclose(logits, model(pixels), rtol=0, atol=1e-5)


def test_the_batch_may_stay_open(model, pixels, tmp_path):
    report = export_litert(model, tmp_path / "tiny.tflite", batch_size=None)
    logits = load_litert(report.path)(pixels)["logits"]
    np.testing.assert_allclose(logits, model(pixels), rtol=0, atol=1e-5)


def test_an_unknown_precision(model, tmp_path):
    with pytest.raises(ValueError, match="`precision` must be one of 'float32'"):
        export_litert(model, tmp_path / "tiny.tflite", precision="int3")
    assert not list(tmp_path.iterdir())
