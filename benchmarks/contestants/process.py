"""The suite's end of a contestant: a process that stays, and answers one command at a time."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import subprocess
import threading

BENCHMARKS = pathlib.Path(__file__).parents[1]


class Worker:
    """A contestant in a process of its own.

    Args:
        python: The interpreter of its environment.
        module: What it runs: a module such as `contestants.torch_models`.
        threads: How many threads its libraries may use.
        timeout: Seconds that a command may take before the process is ended.
        log: File that takes what the libraries print.
    """

    def __init__(
        self, python: str, module: str, threads: int, timeout: float, log: str | os.PathLike
    ):
        self.timeout = timeout
        self.log = pathlib.Path(log)
        with open(log, "w") as errors:
            self.process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(threads),
            )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, **command) -> dict:
        """What the contestant answers; `error` where it fails, ends or takes too long."""
        try:
            self.stdin.write(json.dumps(command) + "\n")
            self.stdin.flush()
            line = self.lines.get(timeout=self.timeout)
        except queue.Empty:
            self.close()
            return {"error": f"took longer than {self.timeout:g} s"}
        except (OSError, ValueError):  # it has ended, or was ended before
            line = None
        if line is None:
            self.close()
            words = self.log.read_text(errors="replace").strip()[-200:]
            return {"error": f"ended with status {self.process.returncode}: {words}"}
        return json.loads(line)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """Ends the process and waits for it."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.stdout.close()
        with contextlib.suppress(OSError):  # of what it did not read any more
            self.stdin.close()


def environment(threads: int) -> dict[str, str]:
    """Variables of a contestant's process: threads, and where its modules are."""
    paths = [str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")]
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(counts, str(threads)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "tensorflow",
    }
