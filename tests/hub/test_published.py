"""From the name of published weights to a file."""

from __future__ import annotations

import io

import numpy as np
import pytest

import keras_vit


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    path = tmp_path / "mirror" / "storage.googleapis.com" / "vit_models" / "sam" / "ViT-B_16.npz"
    path.parent.mkdir(parents=True)
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3))
    path.write_bytes(buffer.getvalue())
    return path


def test_a_tag_an_address_and_a_path_name_the_same_file(mirror):
    by_tag = keras_vit.hub.fetch_weights("sam_in1k", "B/16")
    assert by_tag == keras_vit.hub.fetch_weights("gs://vit_models/sam/ViT-B_16.npz")
    assert by_tag.read_bytes() == mirror.read_bytes()
    assert keras_vit.hub.fetch_weights(by_tag, "vit_b16") == by_tag


def test_names_that_name_nothing(mirror):
    with pytest.raises(ValueError, match="There are no weights 'sam_in2k'"):
        keras_vit.hub.fetch_weights("sam_in2k", "vit_b16")
    with pytest.raises(keras_vit.DownloadError, match="There is no file at"):
        keras_vit.hub.fetch_weights("sam_in1k", "vit_b32")
    with pytest.raises(ValueError, match=r"Received: 'sam_in1k', and there is no such file"):
        keras_vit.hub.fetch_weights("sam_in1k")
