"""Workers wait until all can reach each other, whatever else connects to their ports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from keras_vit.distribution import rendezvous
from keras_vit.distribution.rendezvous import wait_for_workers
from tests.distribution.test_cluster import message


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


def test_a_slow_connection_at_the_end_logs_nothing(addresses, caplog, capfd):
    errors = {}

    def run():
        try:
            wait_for_workers(addresses[:2], 0, 1)
        except TimeoutError as error:
            errors[0] = error

    thread = threading.Thread(target=run)
    thread.start()
    with contextlib.ExitStack() as stack:  # messages that are never complete, up to the end
        while thread.is_alive():
            with contextlib.suppress(OSError):
                connection = stack.enter_context(
                    socket.create_connection(("127.0.0.1", port_of(addresses[0])))
                )
                connection.sendall(message()[:20])
            time.sleep(0.02)
    assert "did not start" in str(errors[0])
    assert not [each for each in caplog.records if each.name == "asyncio"]
    assert "Traceback" not in capfd.readouterr().err


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
    errors, _ = wait_in_threads([(one, 0), (other, 1)], seconds=2)
    for index in (0, 1):
        assert isinstance(errors[index], RuntimeError)
        assert "same addresses and versions" in str(errors[index])


def port_of(address):
    return int(address.rpartition(":")[2])


def connect(address, timeout=10.0):
    """A connection to a worker that has just been started."""
    end = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port_of(address)), timeout=10)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.02)


def drip(connection, stop):
    with contextlib.suppress(OSError):
        while not stop.wait(0.1):
            connection.sendall(b"[")


HOSTILE = {
    "garbage": bytes(range(256)) + b"\n",
    "no text": b"\xff\xfe\n",
    "deep": b"[" * 60_000 + b"\n",
    "deep in a field": message(addresses=[]).replace(b"[]", b"[" * 20_000 + b"]" * 20_000),
    "too long": b"a" * 1_000_000,
    "digits": message(index=1).replace(b'"index": 1', b'"index": ' + b"9" * 20_000),
    "no index": b'{"greeting": "keras_vit"}\n',
    "index out of range": message(index=7),
    "negative index": message(index=-1),
    "its own index": message(index=0),
    "index true": message(index=True),
    "huge index": message(index=10**400),
    "fields of other types": message(addresses={}, versions=[[]]),
    "another run": message(),
    "nothing": b"",
}


MANY = {"half-open": 300, "another run": 300, "drip": 20, "thousands": 2_000}


@pytest.mark.parametrize("kind", [*HOSTILE, "half-open", "drip", "thousands"])
def test_strangers_do_not_disturb_a_start(addresses, kind):
    addresses, errors, stop = addresses[:2], {}, threading.Event()

    def run(index):
        try:
            wait_for_workers(addresses, index, 20)
        except BaseException as error:
            errors[index] = error

    workers = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    workers[0].start()
    with contextlib.ExitStack() as stack:
        stack.callback(stop.set)
        for _ in range(MANY.get(kind, 3)):
            connection = connect(addresses[0])
            with contextlib.suppress(OSError):  # the worker may close it at any time
                connection.sendall(HOSTILE.get(kind, b""))
            if kind == "drip":
                threading.Thread(target=drip, args=(connection, stop), daemon=True).start()
            if kind == "thousands":
                connection.close()
            else:
                stack.callback(connection.close)
        begin = time.monotonic()
        workers[1].start()
        for worker in workers:
            worker.join()
    assert errors == {}
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("kind", ["deep", "drip", "nothing", "another run"])
def test_another_program_at_the_address_of_a_worker_holds_no_start(addresses, kind):
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", port_of(addresses[1]))) as server:

        def answer(connection):
            with connection, contextlib.suppress(OSError):
                connection.sendall(HOSTILE.get(kind, b""))
                drip(connection, stop) if kind == "drip" else stop.wait()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threads.append(threading.Thread(target=answer, args=(connection,)))
                    threads[-1].start()

        threads = [threading.Thread(target=serve)]
        threads[0].start()
        errors, seconds = wait_in_threads([(addresses[:2], 0)], seconds=1)
        stop.set()
        server.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    is_run = kind == "another run"
    assert isinstance(errors[0], RuntimeError if is_run else TimeoutError)
    assert ("worker 1 has []" if is_run else "worker 1 at") in str(errors[0])
    assert seconds < 3


def test_a_worker_waits_until_an_earlier_run_has_left(addresses):
    earlier, now = addresses, addresses[:2]  # a worker less since the restart
    errors = {}

    def run(name, *arguments):
        try:
            wait_for_workers(*arguments)
        except Exception as error:
            errors[name] = error

    plans = [("earlier", earlier, 1, 1.5), ("first", now, 0, 20), ("second", now, 1, 20)]
    threads = [threading.Thread(target=run, args=plan) for plan in plans]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    assert list(errors) == ["earlier"]


def test_a_worker_listens_on_its_address_alone(addresses):
    def wait():
        with contextlib.suppress(TimeoutError):
            wait_for_workers(addresses[:2], 0, 1)

    thread = threading.Thread(target=wait)
    thread.start()
    connect(addresses[0]).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port_of(addresses[0])), timeout=2)
    thread.join()


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_host_names_and_ipv6_addresses_meet(addresses, host):
    if host == "[::1]":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    named = tuple(f"{host}:{port_of(address)}" for address in addresses[:2])
    errors, _ = wait_in_threads([(named, 0), (named, 1)], seconds=20)
    assert errors == {}


def test_a_name_of_the_machine_itself_is_open_to_others(monkeypatch):
    def find(host, *_, **__):
        where = {"debian": "127.0.1.1", "pod.vit": "10.0.0.7"}[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    assert asyncio.run(rendezvous._find_hosts("debian")) == ("0.0.0.0", "::")
    assert asyncio.run(rendezvous._find_hosts("pod.vit")) == ("10.0.0.7",)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_a_router_opens_all_addresses(addresses, host, caplog):
    errors, _ = wait_in_threads([((f"{host}:{port_of(addresses[0])}", addresses[1]), 0)], seconds=1)
    assert f"does not have the address of TF_CONFIG, {host}" in caplog.text
    assert isinstance(errors[0], TimeoutError)
