"""Workers meet: every one hears from every other, or says which one it did not hear from."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time

import keras

_PAUSE = 0.2  # seconds between two attempts
_PATIENCE = 2.0  # seconds for one answer
_LIMIT = 1 << 16  # bytes of one line
_GREETING = "keras_vit"


def meet(addresses: tuple[str, ...], index: int, timeout_seconds: float) -> None:
    """Returns when every worker has heard from every other.

    Args:
        addresses: `"host:port"` of every worker, the same in all of them.
        index: Which of them this process is.
        timeout_seconds: How long to wait for the others.

    Raises:
        TimeoutError: If workers did not come up in time.
        RuntimeError: If workers have other addresses or versions.
        ValueError: If the port of this worker stays in use.
    """
    deadline = time.monotonic() + timeout_seconds
    card = {"greeting": _GREETING, "addresses": list(addresses), "versions": _versions()}
    others = [i for i in range(len(addresses)) if i != index]
    if not others:
        return
    with _open_port(addresses[index], deadline) as port:
        guests: dict[int, dict] = {}
        done = threading.Event()
        host = threading.Thread(target=_receive, args=(port, card, guests, done), daemon=True)
        host.start()
        hosts: dict[int, dict] = {}
        try:
            while len(hosts) < len(others) or len(guests) < len(others):
                for other in others:
                    if other not in hosts:
                        _visit(addresses[other], {**card, "index": index}, other, hosts)
                if time.monotonic() > deadline:
                    _compare(index, card, {**guests, **hosts})
                    raise _missing(addresses, index, hosts, guests, timeout_seconds)
                time.sleep(_PAUSE)
        finally:
            done.set()
            host.join()
    _compare(index, card, hosts)


def _versions() -> dict[str, str]:
    import tensorflow as tf

    return {"tensorflow": tf.__version__, "keras": keras.__version__}


def _open_port(address: str, deadline: float) -> socket.socket:
    """Listens on this worker's port, which an earlier run may need a moment to let go."""
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
                    "An earlier run may not have ended; end it, or choose another port."
                ) from error
        time.sleep(_PAUSE)


def _receive(port: socket.socket, card: dict, guests: dict[int, dict], done) -> None:
    """Answers those who come, until everyone has met everyone."""
    while not done.is_set():
        with contextlib.suppress(OSError, ValueError):
            connection, _ = port.accept()
            with connection:
                connection.settimeout(_PATIENCE)
                guest = _read(connection)
                connection.sendall(json.dumps(card).encode() + b"\n")
                guests[int(guest["index"])] = guest


def _visit(address: str, card: dict, other: int, hosts: dict[int, dict]) -> None:
    host, _, number = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError):
        host = host.strip("[]")  # of an IPv6 address
        with socket.create_connection((host, int(number)), timeout=_PATIENCE) as connection:
            connection.sendall(json.dumps(card).encode() + b"\n")
            hosts[other] = _read(connection)


def _read(connection: socket.socket) -> dict:
    """One line of JSON with the greeting; anything else is not one of us."""
    with connection.makefile("rb") as file:
        card = json.loads(file.readline(_LIMIT))
    if not isinstance(card, dict) or card.get("greeting") != _GREETING:
        raise ValueError("another program answers")
    return card


def _missing(addresses, index, hosts, guests, seconds: float) -> TimeoutError:
    others = [i for i in range(len(addresses)) if i != index]
    silent = [i for i in others if i not in hosts]
    deaf = [i for i in others if i in hosts and i not in guests]
    lines = [f"worker {i} at {addresses[i]} did not come up" for i in silent]
    lines += [f"worker {i} at {addresses[i]} cannot reach {addresses[index]}" for i in deaf]
    return TimeoutError(
        f"Worker {index} waited {seconds:g} seconds for the others: {'; '.join(lines)}. Look at "
        "their logs, at the addresses in TF_CONFIG, and whether the ports are open between the "
        "machines; an earlier run that has not ended may hold them too."
    )


def _compare(index: int, card: dict, hosts: dict[int, dict]) -> None:
    """Raises RuntimeError where a worker was told something else, or runs something else."""
    different = [
        f"worker {i} has {hosts[i].get(field)}"
        for i in sorted(hosts)
        for field in ("addresses", "versions")
        if hosts[i].get(field) != card[field]
    ]
    if different:
        raise RuntimeError(
            f"All workers must have the same addresses and versions. Worker {index} has "
            f"{card['addresses']} and {card['versions']}, but {'; '.join(different)}."
        )
