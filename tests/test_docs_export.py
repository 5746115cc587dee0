"""Tests docs/export.md and the pages of export/."""

from __future__ import annotations

import json
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.fixtures import fill_random, images_for, tiny_config

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/export.md").read_text()
READMES = sorted(ROOT.glob("export/**/README.md"))


def test_python_on_the_page_is_python():
    names = set()
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        compile(block, "docs/export.md", "exec")
        names |= set(re.findall(r"keras_vit\.(\w+)", block))
    assert names and all(hasattr(keras_vit, name) for name in names)


@pytest.mark.parametrize("path", [ROOT / "docs/export.md", *READMES], ids=lambda path: path.parent)
def test_what_pages_name_is_there(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    scripts = re.findall(
        r"(?<!tests/)(?<!keras_vit/)(?:export|benchmarks|examples)/[\w/]+\.(?:py|yaml)", text
    )
    assert [name for name in scripts if not (ROOT / name).exists()] == []
    tests = re.findall(r"`(test_\w+)`", text)
    sources = "".join(file.read_text() for file in (ROOT / "tests/export").glob("*.py"))
    assert [name for name in tests if f"def {name}(" not in sources] == []


EXPORTS = {
    "openvino": lambda model: keras_vit.export.export_openvino(model, "pets.xml"),
    "keras": lambda model: keras_vit.export_saved_model(model, "serving/pets"),
    "cv2": lambda model: keras_vit.export_onnx(model, "pets.onnx"),
}


@pytest.mark.parametrize(("number", "package"), list(enumerate(EXPORTS)))
def test_other_runtimes_give_the_models_logits(number, package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    model = keras_vit.build_vit(tiny_config(depth=1, gelu="exact"))  # OpenCV has no other
    fill_random(model)
    EXPORTS[package](model)
    section = PAGE.partition("## Other runtimes")[2].partition("\n## ")[0]
    block = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[number]
    names = {"keras": keras, "pixels": images_for(model)}
    exec(compile(block, "docs/export.md", "exec"), names)
    expected = np.asarray(model(names["pixels"]))[: len(names["logits"])]
    np.testing.assert_allclose(names["logits"], expected, rtol=0, atol=1e-4)


def test_the_file_that_a_browser_is_compared_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "export/web/README.md").read_text(), flags=re.DOTALL
    )
    model = keras_vit.build_vit(tiny_config(depth=1))
    fill_random(model)
    exec(compile(block, "export/web/README.md", "exec"), {"model": model})
    golden = json.loads((tmp_path / "golden.json").read_text())
    pixels = np.reshape(golden["pixels"], golden["shape"]).astype("float32")
    np.testing.assert_allclose(model(pixels), golden["logits"], rtol=0, atol=1e-6)
    check = (ROOT / "export/web/check.mjs").read_text()
    assert re.findall(r"const \{ (\w+, \w+, \w+) \} = JSON", check) == ["pixels, shape, logits"]
