"""A server that sends any bytes at any speed, with or without TLS."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import subprocess
import threading
import time


def certificate(folder):
    """A self-signed certificate of 127.0.0.1, and its key."""
    paths = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True
    )
    return paths


def drip(data, pause=0.05):
    """The bytes of `data`, one at a time, and the last of them forever."""
    for byte in itertools.chain(data, itertools.repeat(data[-1])):
        yield bytes([byte])
        time.sleep(pause)


@contextlib.contextmanager
def serve_bytes(*replies, tls=None):
    """Answers each connection with the next reply, then the last again; yields the URL.

    A reply is bytes or an iterable of them. `tls` is the result of `certificate`.
    """
    remaining = list(replies)
    listener = socket.create_server(("127.0.0.1", 0))
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            connection.settimeout(20)
            with (
                context.wrap_socket(connection, server_side=True) if context else connection
            ) as wrapped:
                while b"\r\n\r\n" not in wrapped.recv(1 << 16):
                    pass
                reply = remaining.pop(0) if len(remaining) > 1 else remaining[0]
                for part in [reply] if isinstance(reply, bytes) else reply():
                    wrapped.sendall(part)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}/a.npz"
    finally:
        listener.close()
