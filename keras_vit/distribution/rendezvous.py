"""Waits until all workers can reach each other, or reports which cannot."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import hashlib
import ipaddress
import json
import logging
import socket
import threading
import time
from typing import Any, NamedTuple

import keras

from keras_vit.errors import needing_tensorflow
from keras_vit.reading import parse_json

_LOGGER = logging.getLogger("keras_vit")
_PAUSE = 0.2  # seconds between attempts
_MESSAGE_SECONDS = 2.0  # for a whole message, with its connection and its answer
_RESTART_SECONDS = 10.0  # in which a worker of an earlier run can leave its port
_MAX_LINE = 1 << 16  # bytes of one line; more where the addresses of this run need more
_MAX_UNKNOWN = 128  # open connections that sent no message of this run
_MAX_QUEUED = 1024  # connections that wait for an answer: more start again after a second
_MAX_CALLS = 64  # workers that are called at the same time
_MAX_SHOWN = 2_000  # characters of another worker's configuration in an error
_GREETING = "keras_vit"
_ALL = ("0.0.0.0", "::")  # all addresses of this machine
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # another machine's address, no IPv6
_CLOSED = (OSError, ValueError, EOFError, asyncio.TimeoutError)


def wait_for_workers(addresses: tuple[str, ...], index: int, timeout_seconds: float) -> None:
    """Waits until every worker has reached every other (a rendezvous).

    Every message holds the id of the run, a digest of all addresses and versions. A message
    without it, or one that is too large, too deep or too slow, is dropped, so other programs and
    other runs cannot disturb a start. The id is no secret: who knows the addresses and versions
    can pretend to be a worker.

    Args:
        addresses: `"host:port"` of every worker, the same in all of them.
        index: Index of this process among them.
        timeout_seconds: Longest time to wait for the others.

    Raises:
        TimeoutError: If workers did not start in time.
        RuntimeError: If workers have different addresses or versions.
        ValueError: If the port of this worker stays in use.
    """
    if len(addresses) < 2:
        return
    meeting = _Meeting(addresses, index, timeout_seconds)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # notebooks run a loop in this thread
        try:
            pool.submit(asyncio.run, meeting.run()).result()
        finally:
            meeting.interrupted.set()


class _Message(NamedTuple):
    """A worker's message about itself.

    Args:
        run: The id of its run.
        worker: Its index.
        settings: Addresses and versions, which are the same in all workers.
    """

    run: str
    worker: int
    settings: dict[str, Any]

    @classmethod
    def parse(cls, line: bytes) -> _Message:
        """Reads one line of JSON; a ValueError if it is not the message of a worker."""
        match parse_json(line):
            case {
                "greeting": greeting,
                "run": str() as run,
                "index": int() as index,
                "addresses": list() as addresses,
                "versions": dict() as versions,
            } if greeting == _GREETING and not isinstance(index, bool):
                if all(isinstance(each, str) for each in (*addresses, *versions.values())):
                    return cls(run, index, {"addresses": addresses, "versions": versions})
        raise ValueError("another program answers")

    def line(self) -> bytes:
        fields = {"greeting": _GREETING, "run": self.run, "index": self.worker, **self.settings}
        return json.dumps(fields).encode() + b"\n"


class _Meeting:
    """The state of a worker that waits for the others.

    Args:
        addresses: `"host:port"` of every worker.
        index: Index of this process among them.
        seconds: Longest time to wait.
    """

    def __init__(self, addresses: tuple[str, ...], index: int, seconds: float):
        settings = {"addresses": list(addresses), "versions": _versions()}
        run = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        self.addresses, self.index, self.seconds = addresses, index, seconds
        self.own = _Message(run, index, settings)
        self.others = frozenset(range(len(addresses))) - {index}
        self.deadline = time.monotonic() + seconds
        self.interrupted = threading.Event()  # of the thread that waits
        self.reached: set[int] = set()  # workers that answered this one
        self.heard: set[int] = set()  # workers that this one answered
        self.different: dict[int, _Message] = {}  # answers of other runs
        self.strangers: dict[int, _Message] = {}  # messages of other runs, from anybody
        self._unknown: dict[asyncio.StreamWriter, None] = {}  # in the order of their connection
        self._limit = max(_MAX_LINE, 2 * len(self.own.line()))

    async def run(self) -> None:
        """Answers the others and calls them, until all have reached each other."""
        calls = asyncio.Semaphore(_MAX_CALLS)
        give_up = min(self.deadline, time.monotonic() + _RESTART_SECONDS)
        servers = [
            await asyncio.start_server(
                self._serve, sock=port, limit=self._limit, backlog=_MAX_QUEUED
            )
            for port in await self._open_ports()
        ]
        try:
            while not self.interrupted.is_set():
                await asyncio.gather(*(self._call(i, calls) for i in self.others - self.reached))
                if self.reached == self.heard == self.others:
                    return
                now = time.monotonic()
                if now > give_up and self.others == self.reached | set(self.different):
                    self._raise_if_different(self.different)
                if now > self.deadline:
                    self._raise_if_different({**self.strangers, **self.different})
                    raise self._missing()
                await asyncio.sleep(_PAUSE)
        finally:
            for server in servers:
                server.close()

    async def _open_ports(self) -> list[socket.socket]:
        """Listens on this worker's address; an earlier run may take a moment to close it."""
        address = self.addresses[self.index]
        host, number = _split(address)
        while True:
            try:
                ports = _listen(await _find_hosts(host), number)
                if ports:
                    return ports
                _LOGGER.warning(
                    "This machine does not have the address of TF_CONFIG, %s, so port %s is "
                    "opened on all of its addresses.",
                    host,
                    number,
                )
                return _listen(_ALL, number)
            except OSError as error:
                passes = error.errno == errno.EADDRINUSE
                if not passes or time.monotonic() > self.deadline or self.interrupted.is_set():
                    raise ValueError(
                        f"This worker cannot open its port of TF_CONFIG, {address}: {error}. "
                        "An earlier run may still be running: stop it, or choose another port."
                    ) from error
            await asyncio.sleep(_PAUSE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection, whatever it sends."""
        while len(self._unknown) >= _MAX_UNKNOWN:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.transport.abort()
        self._unknown[writer] = None
        try:
            # asyncio of Python 3.11 logs the error of a task that is cancelled at the end.
            with contextlib.suppress(*_CLOSED, asyncio.CancelledError):
                await asyncio.wait_for(self._answer(reader, writer), _MESSAGE_SECONDS)
        finally:
            self._unknown.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = _Message.parse(await reader.readline())
        is_ours = message.run == self.own.run
        if is_ours:
            self._unknown.pop(writer, None)
        writer.write(self.own.line())
        await writer.drain()
        await reader.readexactly(1)  # the answer has arrived
        if message.worker in self.others:
            if is_ours:
                self.heard.add(message.worker)
            else:
                self.strangers[message.worker] = message

    async def _call(self, other: int, calls: asyncio.Semaphore) -> None:
        """Sends this worker's message to another, and stores what it answers."""
        async with calls:
            seconds = min(_MESSAGE_SECONDS, self.deadline - time.monotonic())
            with contextlib.suppress(*_CLOSED):
                await asyncio.wait_for(self._ask(other), seconds)

    async def _ask(self, other: int) -> None:
        host, port = _split(self.addresses[other])
        reader, writer = await asyncio.open_connection(host, port, limit=self._limit)
        try:
            writer.write(self.own.line())
            message = _Message.parse(await reader.readline())
            writer.write(b"\n")
            await writer.drain()
            writer.close()
        except BaseException:
            writer.transport.abort()
            raise
        if message.run != self.own.run:
            self.different[other] = message
        elif message.worker == other:
            self.different.pop(other, None)
            self.reached.add(other)

    def _missing(self) -> TimeoutError:
        here = self.addresses[self.index]
        lines = [
            f"worker {i} at {self.addresses[i]} did not start"
            for i in sorted(self.others - self.reached)
        ]
        lines += [
            f"worker {i} at {self.addresses[i]} cannot reach {here}"
            for i in sorted(self.reached - self.heard)
        ]
        return TimeoutError(
            f"Worker {self.index} waited {self.seconds:g} seconds for the others: "
            f"{'; '.join(lines)}. Check their logs, the addresses in TF_CONFIG, whether the ports "
            "are open between the machines, and whether an earlier run still uses them."
        )

    def _raise_if_different(self, messages: dict[int, _Message]) -> None:
        """Raises RuntimeError if workers that are missing have other addresses or versions."""
        missing = self.others - (self.reached & self.heard)
        different = [
            f"worker {i} has {_shorten(messages[i].settings[field])}"
            for i in sorted(missing & set(messages))
            for field in self.own.settings
            if messages[i].settings[field] != self.own.settings[field]
        ]
        if different:
            settings = self.own.settings
            raise RuntimeError(
                f"All workers must have the same addresses and versions. Worker {self.index} has "
                f"{settings['addresses']} and {settings['versions']}, but {'; '.join(different)}."
            )


def _versions() -> dict[str, str]:
    with needing_tensorflow("Training on several workers"):
        import tensorflow as tf

    return {"tensorflow": tf.__version__, "keras": keras.__version__}


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)  # brackets of an IPv6 address


async def _find_hosts(host: str) -> tuple[str, ...]:
    """Finds the addresses to listen on: those of this worker's host in `TF_CONFIG`.

    All of this machine if a host name means the machine itself, as Debian's 127.0.1.1: other
    machines find another address under this name. None if the name is unknown here.
    """
    with contextlib.suppress(ValueError):
        return (str(ipaddress.ip_address(host)),)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return ()
    hosts = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    is_own_name = all(ipaddress.ip_address(each).is_loopback for each in hosts)
    return _ALL if is_own_name and host != "localhost" else hosts


def _listen(hosts: tuple[str, ...], number: int) -> list[socket.socket]:
    """Listens on those of the addresses that this machine has."""
    ports: list[socket.socket] = []
    for host in hosts:
        try:
            family, *_, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            ports.append(socket.create_server(address, family=family, backlog=_MAX_QUEUED))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                for each in ports:
                    each.close()
                raise
    return ports
