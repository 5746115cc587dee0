"""Servers that send nonsense, never end, or hardly send: with and without TLS."""

from __future__ import annotations

import functools
import itertools
import time

import pytest

from keras_vit.errors import DownloadError
from keras_vit.files import cache_dir
from keras_vit.hub import connection, download
from keras_vit.hub.cache import fetch
from tests.hub.hostile import certificate, drip, serve_bytes
from tests.hub.test_cache import CONTENT, quick_fetch

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(CONTENT)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_PROGRESS", "0")
    for name in ("KERAS_VIT_OFFLINE", "KERAS_VIT_MIRROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["http", "https"])
def tls(request, pem, monkeypatch):
    """The server's certificate, known to the client, or `None`."""
    if request.param == "http":
        return None
    monkeypatch.setenv("SSL_CERT_FILE", str(pem[0]))
    return pem


def nothing_is_left():
    """Locks, facts about a part and the part itself may stay; what bears a name may not."""
    files = [path for path in cache_dir().rglob("*") if path.is_file()]
    return not [path for path in files if path.suffix not in (".lock", ".part", ".json")]


NONSENSE = {
    "a length that is a word": OK + b"Content-Length: many\r\n\r\nabc",
    "a length in superscript": OK + b"Content-Length: \xb2\r\n\r\nabc",
    "a negative length": OK + b"Content-Length: -5\r\n\r\nabc",
    "a length of 5,000 digits": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
    "a status that is a word": b"HTTP/1.1 fine\r\n\r\n",
    "no HTTP": b"\0\1\2\3\r\n\r\n",
    "nothing": b"",
    "very many headers": OK + b"X: y\r\n" * 300 + b"\r\n",
    "a very long header": OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    "a broken address": b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
    "an address with a word as port": b"HTTP/1.1 302 Found\r\nLocation: http://a:b/c\r\n\r\n",
    "an address of a file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
    "itself": b"HTTP/1.1 302 Found\r\nLocation: /a.npz\r\n\r\n",
    "a superscript to wait": b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
    "a negative chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcdefghijk\r\n0\r\n\r\n",
    "a chunk of no number": OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
    "a chunk of very many digits": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 70_000,
    "a range nobody asked for": b"HTTP/1.1 206 OK\r\nContent-Range: bytes x-y/z\r\n\r\nabc",
}


@pytest.mark.parametrize("reply", NONSENSE)
def test_nonsense_is_a_download_error(reply, tls):
    with serve_bytes(NONSENSE[reply], tls=tls) as url, pytest.raises(DownloadError):
        quick_fetch(url, attempts=2)
    assert nothing_is_left()


def test_tls_needs_a_certificate_that_is_known(pem, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serve_bytes(OK + LENGTH + CONTENT, tls=pem) as url:
        with pytest.raises(DownloadError, match=r"certificate of 127.* cannot be verified"):
            quick_fetch(url, attempts=1)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem[0]))
        assert quick_fetch(url, attempts=1).read_bytes() == CONTENT


DRIPS = {
    "in the headers": OK + b"X-Header: yyyy",
    "in the body": OK + b"Content-Length: 1000000\r\n\r\nabc",
    "without a length": OK + b"\r\nabc",
    "in the length of a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n10\r\n0",
}


@pytest.mark.parametrize("where", DRIPS)
def test_a_drip_ends(where, tls, monkeypatch):
    monkeypatch.setattr(connection, "WINDOW", 0.2)
    start = time.monotonic()
    reason = r"less than 65,536 bytes in 0\.2 s.*Tried 2 times"
    dripping = serve_bytes(functools.partial(drip, DRIPS[where], 0.02), tls=tls)
    with dripping as url, pytest.raises(DownloadError, match=reason):
        quick_fetch(url, attempts=2)
    assert time.monotonic() - start < 10


def endless(pause=0.0):
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n"
    for _ in itertools.count():
        yield b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        time.sleep(pause)


def test_a_body_without_an_end_ends(tls, monkeypatch):
    monkeypatch.setattr(download, "_LARGEST", 10**6)
    message = "sends more than 1,000,000 bytes, without an end"
    with serve_bytes(endless, tls=tls) as url, pytest.raises(DownloadError, match=message):
        quick_fetch(url)
    assert {path.suffix for path in cache_dir().rglob("*") if path.is_file()} <= {".lock"}


def test_a_download_ends_after_its_longest_time(monkeypatch):
    monkeypatch.setattr(connection, "WINDOW", 0.2)
    monkeypatch.setattr(connection, "LEAST_SENT", 1)
    monkeypatch.setattr(download, "_LONGEST", 0.5)
    steady = serve_bytes(functools.partial(endless, 0.05))
    with steady as url, pytest.raises(DownloadError, match="the download takes too long"):
        quick_fetch(url, attempts=1000)


@pytest.mark.parametrize("etag", [b'ETag: "v2"\r\n', b""])
def test_a_file_that_changes_between_ranges_is_not_mixed(etag, tls):
    half = len(CONTENT) // 2
    whole = b"Content-Length: %d\r\nETag: %s\r\n\r\n"
    range_of = b"HTTP/1.1 206 Partial\r\n" + etag + b"Content-Range: bytes %d-%d/%d\r\n\r\n"
    replies = [
        OK + whole % (len(CONTENT), b'"v1"') + bytes(half),
        range_of % (half, len(CONTENT) - 1, len(CONTENT)) + CONTENT[half:],
        OK + whole % (len(CONTENT), b'"v2"') + CONTENT,
    ]
    with serve_bytes(*replies, tls=tls) as url:
        assert quick_fetch(url).read_bytes() == CONTENT


def test_names_that_are_too_long_for_the_disk():
    with serve_bytes(OK + LENGTH + CONTENT) as url:
        base = url.removesuffix("a.npz")
        for path in ("%C3%A9" * 300, "abc/" * 2000 + "x", "x" * 5000):
            assert fetch(f"{base}{path}.npz").read_bytes() == CONTENT
