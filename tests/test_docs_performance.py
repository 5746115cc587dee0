"""The page on speed: its tables are what the scripts print of the committed measurements."""

from __future__ import annotations

import json
import pathlib
import runpy

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/performance.md").read_text()


def test_the_table_beside_the_peers_is_the_measurement():
    script = runpy.run_path(str(ROOT / "benchmarks/suite_table.py"))
    rows = script["read"](ROOT / "docs/benchmarks/suite.jsonl")
    assert "\n".join(script["summary"](rows)) in PAGE


def test_the_table_of_merged_tokens_is_the_measurement():
    script = runpy.run_path(str(ROOT / "benchmarks/token_merging.py"))
    lines = (ROOT / "docs/benchmarks/token_merging.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("what") != "machine"]
    assert script["table"](rows) in PAGE
    for row in rows:  # the products are those of the configuration
        config = script["merging_config"](row["variant"], row["image_size"], row["share"])
        assert keras_vit.evaluate.count_macs(config) == row["macs"]
        assert list(config.num_tokens) == row["tokens"]
