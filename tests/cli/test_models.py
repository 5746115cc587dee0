"""The commands `inspect` and `push`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.cli.main import main
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config, tiny_vit


def test_inspect_writes_a_page_about_a_model(tiny, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    image = tmp_path / "images" / "one.png"
    image.parent.mkdir()
    keras.utils.save_img(image, np.random.default_rng(0).uniform(0, 255, (40, 50, 3)))
    page = tmp_path / "page.html"
    words = ["inspect", "vit_tiny/in10", str(image.parent), "--output", str(page)]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == str(page)
    text = page.read_text(encoding="utf-8")
    assert "weights from" in text and "tiny.npz" in text  # the load report
    assert text.count("data:image/png;base64,") == 8 and "Left out" not in text


def test_inspect_opens_files_and_names_and_explains_what_is_wrong(tiny, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    build_vit(tiny_config(classes=3), name="mine").save(tmp_path / "mine.keras")
    page = tmp_path / "page.html"
    assert main(["inspect", str(tmp_path / "mine.keras"), "--output", str(page)]) == 0
    assert "<h1>mine</h1>" in page.read_text(encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["inspect", "vit_tiny", str(empty), "--output", str(page)]) == 2
    assert "There are no images in" in capsys.readouterr().err


def test_export_for_a_server_takes_its_formats(tiny, tmp_path, capsys, monkeypatch):
    words = ["export", "vit_tiny", "--to", "onnx", "--output", str(tmp_path / "pets"), "--server"]
    assert main([*words, "ovms"]) == 2
    assert "Formats of the server 'ovms': openvino. Received: 'onnx'." in capsys.readouterr().err
    called = {}
    monkeypatch.setattr(
        "keras_vit.export.model_servers.export_for_server",
        lambda model, *arguments, **options: called.update(arguments=arguments, options=options),
    )
    assert main([*words, "triton"]) == 0
    assert called["arguments"] == (str(tmp_path / "pets"), "triton", "onnx")
    assert called["options"]["precision"] == "float32"


def test_a_dry_run_writes_the_folder_and_connects_to_nothing(tmp_path, capsys):
    model, folder = tmp_path / "model.keras", tmp_path / "pets"
    tiny_vit(depth=1, gelu="exact").save(model)
    words = ["push", str(model), "hf://me/pets", "--dry-run", str(folder)]
    assert main([*words, "--layout", "timm", "--licence", "MIT"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    card = (folder / "README.md").read_text()
    assert 'license: "mit"' in card and 'library_name: "timm"' in card
    assert main(words) == 2
    assert "is not an empty folder" in capsys.readouterr().err
