"""Wrong clusters are reported within a time limit; strangers do not disturb a start."""

from __future__ import annotations

import json

import pytest

import keras_vit
from keras_vit.distribution.cluster import parse_cluster


def config(workers=("a:1", "b:2"), task=None, **jobs):
    task = {"type": "worker", "index": 0} if task is None else task
    return json.dumps({"cluster": {"worker": list(workers), **jobs}, "task": task})


def test_workers_are_counted_after_the_chief():
    assert parse_cluster(config(task={"type": "worker", "index": 1})) == (("a:1", "b:2"), 1)
    text = config(chief=["c:3"], task={"type": "worker", "index": 1})
    assert parse_cluster(text) == (("c:3", "a:1", "b:2"), 2)
    text = config(chief=["c:3"], task={"type": "chief", "index": 0})
    assert parse_cluster(text).worker == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "it needs workers"),
        ('{"cluster": {"ps": ["a:1"]}}', "it needs workers"),
        (config(workers=["a"]), "'a' is not an address"),
        (config(workers=["a:99999"]), "'a:99999' is not an address"),
        (config(workers=[3]), "3 is not an address"),
        ('{"cluster": {"worker": "a:1"}}', '"worker" must be a list'),
        (config(workers=["a:1", "a:1"]), "a:1 is in it more than once"),
        (config(chief=["a:1"]), "a:1 is in it more than once"),
        (config(task={}), 'the type of its "task" must be one of worker'),
        (config(task={"type": "chief", "index": 0}), "must be one of worker"),
        (config(task={"type": "worker", "index": 2}), "must be 0 to 1 for a worker"),
        (config(task={"type": "worker", "index": "0"}), "must be 0 to 1 for a worker"),
        (config(task={"type": "worker"}), "must be 0 to 1 for a worker"),
    ],
)
def test_a_wrong_configuration_is_an_error(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        keras_vit.distribution.check_cluster()


def test_without_a_cluster_nothing_is_checked(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert keras_vit.distribution.check_cluster() is None
    monkeypatch.setenv("TF_CONFIG", "{}")  # as TensorFlow takes it
    assert keras_vit.distribution.check_cluster() is None


def message(**changes):
    """A message of worker 1, of another run unless `run` is given."""
    fields = {"greeting": "keras_vit", "run": "0" * 64, "index": 1, "addresses": [], "versions": {}}
    return json.dumps({**fields, **changes}).encode() + b"\n"
