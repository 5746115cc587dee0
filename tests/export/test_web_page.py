"""The page of `export/web`; `scripts/check-page` opens it in Chromium with both runtimes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess

import numpy as np
import pytest

from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform
from tests.export.conftest import LABELS
from tests.export.test_deployments import SCRIPTS, script
from tests.fixtures import tiny_vit

pytestmark = pytest.mark.xdist_group("saved_model")
PILLOW = {"mean": (120.0, 90.0, 70.0), "std": (60.0,) * 3}
# Settings, and the largest difference of a pixel, all of rounding.
CASES = [
    ({"interpolation": "bilinear", "crop_ratio": None}, 1e-3),
    ({"interpolation": "bilinear", "crop_ratio": 0.875}, 1e-3),
    ({"interpolation": "bicubic", "crop_ratio": 0.875}, 1),
    ({"interpolation": "area", "crop_ratio": 1.0}, 1),
    ({"interpolation": "nearest", "crop_ratio": None}, 0),
    ({"library": "timm", "interpolation": "bicubic", "crop_ratio": 0.9}, 0),
    ({"library": "timm", "interpolation": "bilinear", "crop_ratio": 0.9, "crop_mode": "border"}, 0),
    ({"library": "transformers", "crop_ratio": 0.7, "crop_mode": "squash"}, 0),
    ({"library": "transformers", "interpolation": "bicubic", "crop_ratio": 0.875}, 0),
]
RUN = """
import fs from 'node:fs';
const { preprocess } = await import(process.argv[1]);
const cases = JSON.parse(fs.readFileSync(0));
console.log(JSON.stringify(cases.map(({ card, ...image }) => [...preprocess(image, card)])));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("size", [(32, 32), (20, 51), (75, 40)])
def test_the_page_preprocesses_as_in_evaluation(size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
    rgba = np.concatenate([image, np.full((*size, 1), 255, "uint8")], -1).ravel().tolist()
    inputs, expected = [], []
    for fields, _ in CASES:
        preprocessing = Preprocessing(**{**(PILLOW if "library" in fields else {}), **fields})
        card = {"input_shape": [32, 24, 3], "preprocessing": dataclasses.asdict(preprocessing)}
        inputs.append({"card": card, "data": rgba, "height": size[0], "width": size[1]})
        expected.append(eval_transform(image, preprocessing, (32, 24)))
    words = ["node", "--input-type=module", "--eval", RUN, str(SCRIPTS / "web/preprocess.mjs")]
    done = subprocess.run(words, input=json.dumps(inputs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (fields, tolerance), found, pixels in zip(
        CASES, json.loads(done.stdout), expected, strict=True
    ):
        difference = np.abs(np.reshape(found, pixels.shape) - pixels)
        assert difference.max() <= tolerance, (fields, difference.max())
        assert np.mean(difference > 1e-3) < 0.03, fields


@pytest.fixture
def words(tmp_path):
    """A model of one block and its labels, as command line arguments."""
    tiny_vit(depth=1).save(tmp_path / "tiny.keras")
    (tmp_path / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    labels = ["--labels", str(tmp_path / "labels.txt")]
    return [str(tmp_path / "tiny.keras"), *labels, "--to", str(tmp_path / "page")]


def test_a_page_without_npm_packages_says_what_to_install(words, tmp_path):
    with pytest.raises(SystemExit, match=r"has no onnxruntime-web/dist/.*Run `npm install"):
        script("web/export").main([*words, "--npm", str(tmp_path)])


def test_a_page_has_all_its_files(words, tmp_path):
    export = script("web/export")
    for name in export.RUNTIMES["onnx"]:
        path = tmp_path / "node_modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    export.main([*words, "--npm", str(tmp_path), "--formats", "onnx"])
    page = json.loads((tmp_path / "page" / "page.json").read_text())
    assert page["models"] == {"onnx": "model.onnx"} and page["card"]["labels"] == LABELS
    assert page["card"]["input_shape"] == [32, 32, 3] and "golden" not in page["card"]
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert names == {
        *("index.html", "page.mjs", "files.mjs", "preprocess.mjs", "page.json"),
        *("model.onnx", "onnx"),
    }
    assert len(list((tmp_path / "page" / "onnx").iterdir())) == 3
