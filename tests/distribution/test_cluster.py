"""Wrong clusters are reported within a time limit."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

import keras_vit
from keras_vit.distribution.cluster import parse_cluster
from keras_vit.distribution.rendezvous import wait_for_workers


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


@pytest.fixture
def addresses():
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    names = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return names


def wait_in_threads(plans, seconds):
    """What each worker raised, and how long all took."""
    errors = {}

    def run(number, addresses, index):
        try:
            wait_for_workers(addresses, index, seconds)
        except Exception as error:
            errors[number] = error

    begin = time.monotonic()
    threads = [threading.Thread(target=run, args=(i, *plan)) for i, plan in enumerate(plans)]
    for thread in threads:
        thread.start()
        time.sleep(0.3)  # workers do not start at the same time
    for thread in threads:
        thread.join()
    return errors, time.monotonic() - begin


def test_workers_reach_each_other(addresses):
    errors, _ = wait_in_threads([(addresses, i) for i in range(3)], seconds=30)
    assert errors == {}


def test_a_worker_that_does_not_start_is_named(addresses):
    errors, seconds = wait_in_threads([(addresses, 0), (addresses, 1)], seconds=2)
    assert seconds < 15
    for index in (0, 1):
        assert isinstance(errors[index], TimeoutError)
        assert f"worker 2 at {addresses[2]} did not start" in str(errors[index])
        assert f"Worker {index} waited 2 seconds" in str(errors[index])


@pytest.mark.slow
def test_another_program_on_a_port_is_not_a_worker(addresses):
    with socket.create_server(("127.0.0.1", int(addresses[1].rpartition(":")[2]))):
        errors, seconds = wait_in_threads([(addresses[:2], 0)], seconds=3)
    assert "did not start" in str(errors[0])
    assert seconds < 15


def test_a_port_in_use_is_named(addresses):
    with socket.create_server(("", int(addresses[0].rpartition(":")[2]))):
        errors, _ = wait_in_threads([(addresses, 0)], seconds=1)
    assert isinstance(errors[0], ValueError)
    assert f"cannot open its port of TF_CONFIG, {addresses[0]}" in str(errors[0])


def test_workers_with_different_addresses_are_an_error(addresses):
    one, other = addresses[:2], (addresses[0], addresses[1].replace("127.0.0.1", "localhost"))
    errors, _ = wait_in_threads([(one, 0), (other, 1)], seconds=20)
    for index in (0, 1):
        assert isinstance(errors[index], RuntimeError)
        assert "same addresses and versions" in str(errors[index])
