"""docs/analysis.md runs as it stands, and its table is what our counter says."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import runpy

import pytest

from keras_vit.evaluate.compute import training_memory
from keras_vit.variants import find_config
from tests.evaluate.test_compute import TABLE_6, TABLE_6_RESNETS, pretraining_exaflops
from tests.models.test_feature_extraction import random_vit

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_example_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    model, images = random_vit(num_registers=1)
    names = {"model": model, "images": images}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 8
    for block in blocks:
        exec(compile(block, "docs/analysis.md", "exec"), names)
    assert names["heatmap"].shape == (3, 4, 4) and names["gradient"].numpy().any()
    assert names["outputs"]["block_0"].shape == (3, 4, 4, 32)
    pair = names["pair"].numpy()
    assert pair[0, 2] != pair[1, 2]
    expected = pair[0, 2] - pair[1, 2]
    assert names["attributions"].sum() == pytest.approx(expected, abs=2e-3 * abs(pair).max())
    assert names["indices"].shape == (2, 3)
    assert round(names["exaflops"]) == 4257
    days = names["keras_vit"].evaluate.device_days(
        names["exaflops"], "tpu_v3_core", utilization=0.32
    )
    assert round(days) == 2504
    assert names["cost"].images_seen == 384_311_296
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "stages.keras").exists()


def test_the_table_is_what_the_counter_says():
    found = re.findall(r"^\| \S+ \| (\d+) \| ([\d.]+) \| (\d+) \|$", PAGE, re.MULTILINE)
    expected = [
        (str(epochs), f"{pretraining_exaflops(variant, epochs):.1f}", str(published))
        for variant, epochs, published in [
            *TABLE_6,
            ("r50_vit_l16", 7, 859),
            *TABLE_6_RESNETS,
        ]
    ]
    assert found == expected


def test_memory_is_within_a_fifth_of_the_compilers_account():
    """What XLA said was measured by benchmarks/training_memory.py; the ratios are made here."""
    rows = re.findall(
        r"^\| (\w+)[^|]*\| (\d+) \| ([\d, ]+) \| ([\d, ]+) \| ([\d., ]+) \|$", PAGE, re.MULTILINE
    )
    assert len(rows) == 5
    for variant, pixels, batches, mebibytes, ratios in rows:
        config = dataclasses.replace(find_config(variant), image_size=int(pixels))
        columns = (column.split(", ") for column in (batches, mebibytes, ratios))
        for batch, measured, ratio in zip(*columns, strict=True):
            estimate = training_memory(config, int(batch)).step / 2**20
            assert estimate / float(measured) == pytest.approx(float(ratio), abs=0.006)
            assert estimate / float(measured) == pytest.approx(1, abs=0.2)


def test_every_picture_is_there_and_small():
    linked = re.findall(r"\]\(((?:pictures|benchmarks)/[^)]+)\)", PAGE)
    assert len(linked) == 10
    for name in linked:
        assert 0 < (ROOT / "docs" / name).stat().st_size < 150_000, name


@pytest.mark.slow
def test_the_script_that_draws_everything_runs(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    script = runpy.run_path(str(ROOT / "examples" / "look_inside.py"))
    accuracy = script["main"](["--smoke", "--pictures", str(tmp_path)])
    assert 0 <= accuracy <= 1
    names = ("filters", "positions", "distance", "rollout", "relevance", "components", "norms")
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png" for name in names}
