"""Connections to servers that are watched: they end if the server sends too slowly.

The timeout of a socket counts the seconds without any byte. A server that sends one byte a minute,
in the headers or in the body, would hold a download forever.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.request
from typing import Any

from keras_vit.errors import DownloadError

_TIMEOUT = 60  # seconds without a byte
WINDOW = 60.0  # seconds in which a server must send at least
LEAST_SENT = 1 << 16  # bytes: 1 KiB a second


class SpeedWatch:
    """Ends the connection of a download that is too slow, or takes too long; a context manager.

    Args:
        deadline: Time of `time.monotonic` at which the download ends in any case.

    Attributes:
        received: Bytes that the download has received, to be updated by it.
        problem: Why the connection was ended, or `None`.
    """

    def __init__(self, deadline: float):
        self.deadline = deadline
        self.received = 0
        self.problem: str | None = None
        self._socket: socket.socket | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> SpeedWatch:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()

    def open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Opens a request; redirects never lead from https to anything else."""
        handlers = (_SafeRedirects, _Plain(self), _Secure(self))
        return urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT)

    def connected(self, connected: socket.socket) -> None:
        """Takes the socket to end."""
        self._socket = connected

    def _watch(self) -> None:
        before = 0
        while not self._is_over.wait(WINDOW):
            if time.monotonic() > self.deadline:
                self.problem = "the download takes too long"
            elif self.received - before < LEAST_SENT:
                self.problem = (
                    f"the server sends less than {LEAST_SENT:,} bytes in {WINDOW:g} seconds"
                )
            before = self.received
            if self.problem and self._socket is not None:
                with contextlib.suppress(OSError):  # the other thread wakes up and finds the end
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, watch: SpeedWatch):
        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                watch.connected(self.sock)

        super().__init__()
        self._connection = Connection

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, watch: SpeedWatch):
        class Connection(http.client.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                watch.connected(self.sock)

        super().__init__()
        self._connection = Connection

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect from https to http, or to anything else."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https://",) if req.full_url.startswith("https://") else ("https://", "http://")
        if not newurl.startswith(allowed):
            raise DownloadError(
                f"{req.full_url} leads to {newurl[:200]}, which is not https. Nothing was "
                "downloaded."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)
