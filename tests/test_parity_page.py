"""The page of parity says what was measured, and everything that it names was."""

from __future__ import annotations

import json
import pathlib

import pytest

from keras_vit.variants import find_config
from scripts.parity_cases import CASES
from scripts.parity_ours import GOLDEN, LIMIT, ROOT, report

RESULTS = json.loads((ROOT / "docs" / "parity.json").read_text())

# What issue and README promise: families by project.
FLAX = ["Ti/16", "S/32", "B/16", "with pre_logits", "B/32", "L/16", "R+ViT-Ti/16", "R26+ViT-S/32",
        "R50+ViT-B/16", "BiT R50x1", "SigLIP-B/16"]  # fmt: skip
TIMM = ["ViT-B/16", "AugReg", "DeiT-S", "DeiT-S distilled", "DeiT-III-B", "DINOv2-S/14",
        "DINOv2-S/14 registers", "MAE-B/16", "SigLIP-B/16", "FlexiViT-B", "R50+ViT-B/16",
        "R26+ViT-S/32", "R+ViT-Ti/16", "BiT R50x1"]  # fmt: skip
TRANSFORMERS = ["ViT-B/16", "DeiT-S distilled", "DINOv2-S/14", "DINOv2-S/14 registers", "MAE-B/16",
                "SigLIP-B/16", "BiT R50x1", "R50+ViT-B/16"]  # fmt: skip


def test_the_page_is_in_step_with_the_results():
    page = (ROOT / "docs" / "parity.md").read_text()
    assert page == report(RESULTS), "run scripts/parity"
    assert "Not run yet" not in page
    assert {case.title for case in CASES} == set(RESULTS) - {GOLDEN}
    assert len(RESULTS[GOLDEN]) == 5 and max(RESULTS[GOLDEN].values()) <= LIMIT


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_both_directions_agree_to_rounding(case):
    row = RESULTS[case.title]
    assert 0 <= row["forward"] <= LIMIT and 0 <= row["back"] <= LIMIT <= 3e-5
    assert row["model"] == case.model
    find_config(case.variant)


@pytest.mark.parametrize(
    ("project", "families"), [("flax", FLAX), ("timm", TIMM), ("transformers", TRANSFORMERS)]
)
def test_every_family_is_compared(project, families):
    titles = [title for title in RESULTS if title.startswith(project)]
    assert [name for name in families if not any(name in title for title in titles)] == []


def test_the_other_side_is_told_nothing_of_ours():
    """What computes their outputs must not import this package."""
    for name in ("parity_theirs.py", "parity_flax.py", "parity_answers.py"):
        assert "keras_vit" not in pathlib.Path(ROOT / "scripts" / name).read_text()
