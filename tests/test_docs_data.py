"""The pages about data speak of what there is."""

from __future__ import annotations

import ast
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.data.pictures import write_folder
from tests.fixtures import tiny_config

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
PAGES = [page for page in (ROOT / "docs/data.md", ROOT / "docs/recipes.md") if page.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_tests_exist(page):
    text = page.read_text()
    names = set(re.findall(r"keras_vit\.(\w+)", text))
    names |= set(re.findall(r"`((?:read|train|eval)_\w+)\(", text))
    assert len(names) > 3
    here = (keras_vit, keras_vit.data)
    assert [name for name in names if not any(hasattr(where, name) for where in here)] == []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    paths = re.findall(r"`((?:tests|examples|benchmarks)/[\w/]+\.py)`", text)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


class Table:
    """What the page uses of a `pandas.DataFrame`."""

    def __init__(self, rows):
        self.rows = rows

    def to_csv(self, path, index):
        assert not index
        pathlib.Path(path).write_text("file,label\n" + "\n".join(map(",".join, self.rows)))


def test_blocks_about_other_sources_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "photos", count=4)
    paths = sorted(map(str, folder.glob("*/*.jpeg")))
    labels = [int("dogs" in path) for path in paths]
    rng = np.random.default_rng(0)
    names = {
        "keras": keras,
        "keras_vit": keras_vit,
        "model": keras_vit.build_vit(tiny_config(depth=1, classes=2)),
        "paths": paths,
        "labels": labels,
        "table": Table(
            (str(pathlib.Path(path).relative_to(folder)), ("cat", "dog")[label])
            for path, label in zip(paths, labels, strict=True)
        ),
        "scans": rng.integers(0, 4096, (len(paths), 32, 32)).astype("uint16"),
        "bands": rng.uniform(0, 0.6, (2, 32, 32, 6)).astype("float32"),
        "clips": rng.integers(0, 256, (2, 3, 32, 32, 3)).astype("uint8"),
    }
    section = PAGES[0].read_text().split("## Images from other sources")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    found = []
    for block in blocks:
        exec(compile(block, "docs/data.md", "exec"), names)
        found.append((names.get("images"), names.get("logits")))
    assert found[1][0].class_names == ("cat", "dog") and found[1][0].num_images == len(paths)
    assert found[2][0].num_images == len(paths) and names["window"].max() == 255
    assert found[3][1].shape == (2, 2) and found[4][1].shape == (2, 2) and len(blocks) == 5
    expected = names["model"].predict(names["clips"][0][..., ::-1], verbose=0).mean(axis=0)
    np.testing.assert_allclose(found[4][1][0], expected, rtol=0, atol=1e-5)
