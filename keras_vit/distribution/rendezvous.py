"""Waits until all workers can reach each other, or reports which cannot."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from typing import Any

import keras

from keras_vit.errors import needing_tensorflow

_PAUSE = 0.2  # seconds between attempts
_ANSWER_TIMEOUT = 2.0  # seconds
_MAX_LINE = 1 << 16  # bytes of one line
_GREETING = "keras_vit"


def wait_for_workers(addresses: tuple[str, ...], index: int, timeout_seconds: float) -> None:
    """Waits until every worker has reached every other (a rendezvous).

    Args:
        addresses: `"host:port"` of every worker, the same in all of them.
        index: Index of this process among them.
        timeout_seconds: Longest time to wait for the others.

    Raises:
        TimeoutError: If workers did not start in time.
        RuntimeError: If workers have different addresses or versions.
        ValueError: If the port of this worker stays in use.
    """
    deadline = time.monotonic() + timeout_seconds
    own = {"greeting": _GREETING, "addresses": list(addresses), "versions": _versions()}
    others = [i for i in range(len(addresses)) if i != index]
    if not others:
        return
    with _open_port(addresses[index], deadline) as port:
        received: dict[int, dict[str, Any]] = {}
        done = threading.Event()
        server = threading.Thread(target=_serve, args=(port, own, received, done), daemon=True)
        server.start()
        answered: dict[int, dict[str, Any]] = {}
        try:
            while len(answered) < len(others) or len(received) < len(others):
                for other in others:
                    if other not in answered:
                        _send(addresses[other], {**own, "index": index}, other, answered)
                if time.monotonic() > deadline:
                    _compare(index, own, {**received, **answered})
                    raise _missing(addresses, index, answered, received, timeout_seconds)
                time.sleep(_PAUSE)
        finally:
            done.set()
            server.join()
    _compare(index, own, answered)


def _versions() -> dict[str, str]:
    with needing_tensorflow("Training on several workers"):
        import tensorflow as tf

    return {"tensorflow": tf.__version__, "keras": keras.__version__}


def _open_port(address: str, deadline: float) -> socket.socket:
    """Listens on this worker's port; an earlier run may take a moment to close it."""
    number = int(address.rpartition(":")[2])
    while True:
        port = socket.socket()
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            port.bind(("", number))
            port.listen()
            port.settimeout(_PAUSE)
            return port
        except OSError as error:
            port.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ValueError(
                    f"This worker cannot open its port of TF_CONFIG, {address}: {error}. "
                    "An earlier run may still be running: stop it, or choose another port."
                ) from error
        time.sleep(_PAUSE)


def _serve(
    port: socket.socket,
    own: dict[str, Any],
    received: dict[int, dict[str, Any]],
    done: threading.Event,
) -> None:
    """Answers the messages of other workers, until all have reached each other."""
    while not done.is_set():
        with contextlib.suppress(OSError, ValueError):
            connection, _ = port.accept()
            with connection:
                connection.settimeout(_ANSWER_TIMEOUT)
                message = _read(connection)
                connection.sendall(json.dumps(own).encode() + b"\n")
                received[int(message["index"])] = message


def _send(
    address: str, own: dict[str, Any], other: int, answered: dict[int, dict[str, Any]]
) -> None:
    """Sends this worker's message to another, and stores the answer."""
    host, _, number = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError):
        host = host.strip("[]")  # of an IPv6 address
        with socket.create_connection((host, int(number)), timeout=_ANSWER_TIMEOUT) as connection:
            connection.sendall(json.dumps(own).encode() + b"\n")
            answered[other] = _read(connection)


def _read(connection: socket.socket) -> dict[str, Any]:
    """Reads one line of JSON with the greeting of this package."""
    with connection.makefile("rb") as file:
        message = json.loads(file.readline(_MAX_LINE))
    if not isinstance(message, dict) or message.get("greeting") != _GREETING:
        raise ValueError("another program answers")
    return message


def _missing(
    addresses: tuple[str, ...],
    index: int,
    answered: dict[int, dict[str, Any]],
    received: dict[int, dict[str, Any]],
    seconds: float,
) -> TimeoutError:
    others = [i for i in range(len(addresses)) if i != index]
    unreached = [i for i in others if i not in answered]
    one_way = [i for i in others if i in answered and i not in received]
    lines = [f"worker {i} at {addresses[i]} did not start" for i in unreached]
    lines += [f"worker {i} at {addresses[i]} cannot reach {addresses[index]}" for i in one_way]
    return TimeoutError(
        f"Worker {index} waited {seconds:g} seconds for the others: {'; '.join(lines)}. Check "
        "their logs, the addresses in TF_CONFIG, whether the ports are open between the machines, "
        "and whether an earlier run still uses them."
    )


def _compare(index: int, own: dict[str, Any], answered: dict[int, dict[str, Any]]) -> None:
    """Raises RuntimeError if workers have different addresses or versions."""
    different = [
        f"worker {i} has {answered[i].get(field)}"
        for i in sorted(answered)
        for field in ("addresses", "versions")
        if answered[i].get(field) != own[field]
    ]
    if different:
        raise RuntimeError(
            f"All workers must have the same addresses and versions. Worker {index} has "
            f"{own['addresses']} and {own['versions']}, but {'; '.join(different)}."
        )
