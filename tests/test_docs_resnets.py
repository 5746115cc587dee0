"""The page on hybrids and ResNets: its code runs, its numbers are those of the tables."""

from __future__ import annotations

import pathlib
import re

import pytest

import keras_vit
from keras_vit.evaluate.counting import count_parameters
from keras_vit.variants import ALIASES, VARIANTS, configure

PAGE = (pathlib.Path(__file__).parents[1] / "docs/hybrids-and-resnets.md").read_text()


@pytest.mark.slow
def test_the_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 4
    code = "\n".join(blocks).replace("R50ViTB16(", "RViTTi16(")  # the smallest will do
    names: dict = {}
    exec(code, names)
    assert set(names["maps"].output) == {"stage_2", "stage_4"}
    assert isinstance(names["folded"], keras_vit.Model)
    assert names["features"].output_shape == (None, 2048)


def test_every_variant_of_the_page_is_as_it_says():
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `")]
    for row in rows:
        names = re.findall(r"`([^`]+)`", row[1])
        assert set(names) <= set(VARIANTS)
        for alias in re.findall(r"`([^`]+)`", row[2]):
            assert ALIASES[alias] == names[0]
        counts = {count_parameters(VARIANTS[name]) for name in names}
        written = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]{6,}", row[-2])}
        assert written <= counts
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    ours = {name for name in VARIANTS if "_vit_" in name or name.startswith("bit_")}
    assert listed == ours


def test_small_patches_have_the_shape_that_the_page_says():
    config = configure("vit_ti16", patch_size=2, input_shape=(32, 32, 3), classes=10)
    assert config.grid == (16, 16)
