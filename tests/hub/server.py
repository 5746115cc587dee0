"""An HTTP server on this machine that behaves as badly as the real ones do."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator

import huggingface_hub
from huggingface_hub import constants, file_download


@dataclasses.dataclass
class File:
    """What the server says and does when asked for one path."""

    content: bytes
    etag: str | None = '"v1"'
    cut_after: list[int] = dataclasses.field(default_factory=list)  # bytes sent, request by request
    answers: list[int] = dataclasses.field(default_factory=list)  # statuses before the file
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    ignores_range: bool = False
    shifts_range: bool = False
    chunked: bool = False
    stated_length: int | None = None
    corrupt_times: int = 0  # how many replies have a byte flipped
    delay: float = 0.0
    redirect: str | None = None

    @property
    def md5_header(self) -> dict[str, str]:
        digest = base64.b64encode(hashlib.md5(self.content).digest()).decode()
        return {"x-goog-hash": f"crc32c=AAAAAA==, md5={digest}"}


class Server:
    """Files by path, the requests that came, `(path, range header)`, and their logins."""

    def __init__(self, files: dict[str, File], url: str) -> None:
        self.files = files
        self.url = url
        # The answer to a POST or PUT, from its path and body; a status alone refuses it.
        self.answer: Callable[[str, bytes], dict | int] = lambda path, body: 404
        self.requests: list[tuple[str, str | None]] = []
        self.tokens: list[str | None] = []

    def address(self, path: str) -> str:
        return f"{self.url}/{path}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/api/agent-harnesses":  # huggingface_hub 2.4 asks for it once a process
            return self._refuse(404)
        self.state.requests.append((self.path, self.headers.get("Range")))
        self.state.tokens.append(self.headers.get("Authorization"))
        file = self.state.files.get(self.path.lstrip("/").partition("?")[0])
        if file is None:
            return self._refuse(404)
        if file.answers:
            return self._refuse(file.answers.pop(0), file.headers)
        if file.redirect:
            return self._refuse(302, {"Location": file.redirect, **file.headers})
        if file.delay:
            time.sleep(file.delay)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._send(file)

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.state.requests.append((self.path, None))
        self.state.tokens.append(self.headers.get("Authorization"))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.state.answer(self.path, body)
        if isinstance(answer, int):
            return self._refuse(answer)
        content = json.dumps(answer).encode()
        self._send(File(content, headers={"Content-Type": "application/json"}))

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, file: File) -> None:
        start = self._start(file)
        body = file.content[start:]
        if file.corrupt_times:
            file.corrupt_times -= 1
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :]
        if start >= len(file.content) > 0:
            return self._refuse(416)
        self.send_response(206 if start else 200)
        if start:
            claimed = start + 1 if file.shifts_range else start
            total = len(file.content)
            self.send_header("Content-Range", f"bytes {claimed}-{total - 1}/{total}")
        self._send_headers(file, len(body))
        if self.command == "HEAD":
            return
        sent = body[: file.cut_after.pop(0)] if file.cut_after else body
        if file.chunked:
            self._send_chunks(sent, whole=len(sent) == len(body))
        else:
            self.wfile.write(sent)
        if len(sent) < len(body) or file.stated_length is not None:
            self.close_connection = True

    def _start(self, file: File) -> int:
        requested = self.headers.get("Range")
        if requested is None or file.ignores_range:
            return 0
        if self.headers.get("If-Range") not in (None, file.etag):
            return 0
        return int(requested.removeprefix("bytes=").partition("-")[0])

    def _send_headers(self, file: File, length: int) -> None:
        for name, value in file.headers.items():
            self.send_header(name, value)
        if file.etag:
            self.send_header("ETag", file.etag)
        if file.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            stated = length if file.stated_length is None else file.stated_length
            self.send_header("Content-Length", str(stated))
        self.end_headers()

    def _send_chunks(self, body: bytes, whole: bool) -> None:
        for at in range(0, len(body), 1000):
            piece = body[at : at + 1000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if whole:
            self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def serve(files: dict[str, File]) -> Iterator[Server]:
    """Serves `files` on a free port of 127.0.0.1, until the block ends."""
    handler = type("Handler", (_Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.daemon_threads = True
        server = Server(files, f"http://127.0.0.1:{httpd.server_address[1]}")
        handler.state = server
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()


def point_client_to(url: str, monkeypatch) -> None:
    """Makes the client of the Hugging Face hub ask a server on this machine."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (constants, file_download):  # older clients have a copy
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
    if hasattr(huggingface_hub, "close_session"):  # or it keeps the certificates that it knows
        huggingface_hub.close_session()
