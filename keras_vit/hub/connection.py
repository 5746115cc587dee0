"""Connections to servers that are watched: they end if the server sends too slowly.

The timeout of a socket counts the seconds without any byte. A server that sends one byte a minute,
in the headers or in the body, would hold a download forever.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NoReturn

from keras_vit.errors import DownloadError

_TIMEOUT = 60  # seconds without a byte
WINDOW = 60.0  # seconds in which a server must send at least
LEAST_SENT = 1 << 16  # bytes: 1 KiB a second
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_WAIT = 60  # seconds between two attempts


class CutError(Exception):
    """A failure that may not happen again."""

    def __init__(self, reason: str, wait: float | None = None, is_slow: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.is_slow = is_slow


class SpeedWatch:
    """Ends the connection of a download that is too slow, or takes too long; a context manager.

    Args:
        deadline: Time of `time.monotonic` at which the download ends in any case.

    Attributes:
        received: Bytes that the download has received, to be updated by it.
        problem: Why the connection was ended, or `None`.
        socket: The socket to end, once there is one.
    """

    def __init__(self, deadline: float):
        self.deadline = deadline
        self.received = 0
        self.problem: str | None = None
        self.socket: socket.socket | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> SpeedWatch:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()

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
            if self.problem and self.socket is not None:
                with contextlib.suppress(OSError):  # the other thread wakes up and finds the end
                    socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _Watched(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Shows the socket of each connection to a watch."""

    def __init__(self, watch: SpeedWatch) -> None:
        urllib.request.HTTPSHandler.__init__(self)
        self._watch = watch

    def do_open(self, http_class: Any, req: Any, **options: Any) -> http.client.HTTPResponse:
        watch = self._watch

        class Connection(http_class):
            def connect(self) -> None:
                super().connect()
                watch.socket = self.sock

        return super().do_open(Connection, req, **options)


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


def send(request: urllib.request.Request, watch: SpeedWatch) -> http.client.HTTPResponse:
    """Sends a request, follows safe redirects, and waits for the headers of the reply.

    Raises:
        HTTPError: If the status is no success.
        CutError: If the connection fails, or the server is too slow.
        DownloadError: If another attempt would fail too.
    """
    url = request.full_url
    try:
        opener = urllib.request.build_opener(_SafeRedirects, _Watched(watch))
        response = opener.open(request, timeout=_TIMEOUT)
        if watch.problem:  # headers that were ended by the watch look whole
            response.close()
            raise CutError(watch.problem, is_slow=True)
        return response
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, DownloadError):
            raise
        if watch.problem:
            raise CutError(watch.problem, is_slow=True) from error
        _fail(url, error)
    except ValueError as error:  # of an address that the server leads to
        raise DownloadError(f"{url} leads to an address that is none: {error}.") from error


def _fail(url: str, error: Exception) -> NoReturn:
    cause = getattr(error, "reason", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise DownloadError(
            f"The certificate of {urllib.parse.urlsplit(url).netloc} cannot be verified: {cause}. "
            "Behind a proxy, set SSL_CERT_FILE to its certificate."
        ) from error
    if url.startswith("file:"):
        raise DownloadError(f"There is no file at {url} ({cause}).") from error
    raise CutError(f"{type(cause).__name__}: {cause}") from error


def pause(cut: CutError, failures: int, backoff: float) -> float:
    """Seconds to wait: what the server asks for, or doubled with some jitter."""
    seconds = backoff * 2 ** (failures - 1) * random.uniform(0.75, 1.25)
    return min(cut.wait if cut.wait is not None else seconds, _LONGEST_WAIT)


def count(text: str) -> int | None:
    """A number in a header, or `None`: `int` takes signs, and `isdigit` more than digits."""
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None
