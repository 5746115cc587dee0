"""What a model is made of does not change unseen: counts that no machine changes."""

from __future__ import annotations

import json

import pytest
from keras import ops

from keras_vit.layers.mlp import MLP
from tests.counts import check_counts, script

SLOW = ("compiled_training", "half_inference", "onnx")
ELSEWHERE = ("litert", "saved_model")  # tests/export checks the files that it makes anyway


def committed():
    return json.loads(script()["FILE"].read_text())


def test_every_group_has_its_test():
    assert list(committed()["counts"]) == list(script()["GROUPS"])
    assert set(SLOW + ELSEWHERE) < set(script()["GROUPS"])


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=pytest.mark.slow if group in SLOW else ())
        for group in script()["GROUPS"]
        if group not in ELSEWHERE
    ],
)
def test_nothing_has_changed(group):
    check_counts(group, script()["GROUPS"][group]())


def test_the_graph_of_twelve_blocks_is_no_larger_than_timms():
    # timm 1.0.31's vit_base_patch16_224 by torch.onnx (dynamo) has 503 nodes, 13 of them Shape.
    sums = script()["sums"](committed()["counts"]["onnx"])
    assert 12 * sums["block"] + sums["rest"] <= 400
    assert committed()["counts"]["onnx"]["rest/Shape"] == 1


def test_a_layer_that_does_more_is_seen(monkeypatch):
    call = MLP.call

    def turn_twice(self, tokens, training=None):
        turned = ops.transpose(call(self, tokens, training=training), (0, 2, 1))
        return ops.transpose(turned, (0, 2, 1))

    before = script()["inference"]()
    monkeypatch.setattr(MLP, "call", turn_twice)
    file = {"versions": script()["versions"](), "counts": {"inference": before}}
    (line,) = script()["changes"]("inference", script()["inference"](), file)
    count = before["block/Transpose"]
    assert line == f"inference: block/Transpose grew from {count} to {count + 2}."


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"block/a": 4, "block/b": 2, "bytes": 1000}, []),
        ({"block/a": 5, "block/b": 2, "bytes": 1000}, ["g: block/a grew from 4 to 5."]),
        ({"block/a": 4, "block/b": 2, "c": 1, "bytes": 1000}, ["g: c grew from 0 to 1."]),
        ({"block/a": 4, "block/b": 2, "bytes": 1029}, []),
        ({"block/a": 4, "block/b": 2, "bytes": 1031}, ["g: bytes grew from 1000 to 1031."]),
        (
            {"block/a": 4, "bytes": 1000},
            ["g: block/b shrank from 2 to 0: keep it, python benchmarks/counts.py --write."],
        ),
    ],
)
def test_with_the_same_libraries_every_change_is_told(found, expected):
    counts = {"block/a": 4, "block/b": 2, "bytes": 1000}
    file = {"versions": script()["versions"](), "counts": {"g": counts}}
    assert script()["changes"]("g", found, file) == expected


def test_with_other_libraries_only_a_sum_that_grew_by_a_quarter_is():
    counts = {"block/a": 10, "block/b": 10, "rest/a": 4}
    file = {"versions": {"keras": "0"}, "counts": {"g": counts}}
    changes = script()["changes"]
    assert changes("g", {"block/c": 25, "rest/a": 5}, file) == []
    (line,) = changes("g", {"block/a": 26, "rest/a": 0}, file)
    assert line.startswith("g: block grew from 20 to 26, with {")
