"""Starts a command several times on this machine, as the workers of one cluster."""

from __future__ import annotations

import json
import os
import socket
import subprocess


def start_workers(command: list[str], count: int, **options) -> list[subprocess.Popen]:
    """`count` processes that find one another by `TF_CONFIG`; a single one goes without."""
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    for each in free:
        each.close()
    workers = []
    for index in range(count):
        environment = dict(os.environ)
        if count > 1:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment["TF_CONFIG"] = json.dumps(task)
        workers.append(subprocess.Popen(command, env=environment, **options))
    return workers
