"""What a number was measured on, and the packages that a benchmark needs."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import pathlib
import platform
import sys

# What a processor needs for fast products in bfloat16 or 8 bits.
UNITS = {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx_vnni"}
WIDTHS = {"avx2", "avx512f"}
# Where the name that is imported is not the name on the package index with underscores.
IMPORTED = {"scikit-image": "skimage", "scikit-learn": "sklearn"}


def require(*packages: str) -> None:
    """Ends the process if packages are missing, and says how to install them: before any work.

    Args:
        *packages: Names on the package index.
    """
    names = {package: IMPORTED.get(package, package.replace("-", "_")) for package in packages}
    missing = [package for package in packages if importlib.util.find_spec(names[package]) is None]
    if missing:
        text = " ".join(missing)
        sys.exit(f"{sys.argv[0]} needs {text}, which is not installed: pip install {text}")


def describe_machine(cpuinfo: str | os.PathLike = "/proc/cpuinfo") -> dict:
    """Date, processor, its cores and its units for matrix products."""
    path = pathlib.Path(cpuinfo)
    lines = path.read_text().splitlines() if path.exists() else []
    fields = [[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]
    found = dict(reversed(fields))  # the first processor's
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": found.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "units": sorted((UNITS | WIDTHS) & set(found.get("flags", "").split())),
        "python": platform.python_version(),
    }


def print_machine(cpuinfo: str | os.PathLike = "/proc/cpuinfo") -> None:
    """Prints the processor and its units for matrix products: the first line of a benchmark."""
    machine = describe_machine(cpuinfo)
    units = ", ".join(machine["units"]) or "no units for matrix products that are known here"
    print(f"{machine['cpu']}, {machine['cores']} cores: {units}", flush=True)


def read_rows(path: pathlib.Path) -> list[dict]:
    """The rows of a file of JSON lines, none where there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_row(row: dict, output: pathlib.Path | None) -> None:
    """Prints a result with its machine as a JSON line, and appends it to a file if there is one."""
    line = json.dumps({**row, **describe_machine()})
    print(line, flush=True)
    if output:
        with output.open("a") as file:
            file.write(line + "\n")
