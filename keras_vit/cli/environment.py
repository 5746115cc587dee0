"""`keras-vit env`: what a report of a problem must say about the machine and its packages.

No fact is an error: where Keras or its backend cannot be imported, the line says why.
"""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from keras_vit.cli.output import complain, hidden_stderr, print_facts, print_table
from keras_vit.installation import DISTRIBUTION, installed_version
from keras_vit.runtime.processors import count_cores, describe_processor, memory_bytes, onednn_is_on

# Extras of those who work on the package; all others are for users.
DEVELOPMENT = ("benchmarks", "examples", "test", "test-all", "docs", "dev")
# Packages by their names for readers; a nightly build has a name of its own on the index.
_PACKAGES = {
    "TensorFlow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "JAX": ("jax",),
    "torch": ("torch",),
    "NumPy": ("numpy",),
}
_KERAS = ("keras", "keras-nightly")
# What processors have for fast products, in Linux's names: of x86, then of ARM.
_UNITS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
# Variables that change what is computed, or where; TF_CONFIG has addresses, which are not printed.
_VARIABLES = (
    *("KERAS_BACKEND", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "TF_XLA_FLAGS", "JAX_PLATFORMS"),
    *("CUDA_VISIBLE_DEVICES", "TF_CONFIG"),
)


def show_environment() -> None:
    """Prints versions, processor, devices and extras, for a report of a problem.

    Works where Keras cannot be imported.
    """
    facts: dict[str, Callable[[], str]] = {
        "keras_vit": _package,
        "Python": lambda: f"{platform.python_version()}, {platform.platform()}",
        "Keras": _keras,
        **{name: functools.partial(_version, names) for name, names in _PACKAGES.items()},
        "processor": _processor,
        "memory": lambda: f"{memory_bytes() / 2**30:.1f} GiB",
        "devices": _devices,
        "variables": _variables,
    }
    with hidden_stderr():  # banners of TensorFlow
        texts = [(name, _try(read)) for name, read in facts.items()]
    print_facts(texts)
    rows = compare_requirements(_requirements(), installed_version)
    if rows:
        print()
        print_table([("extra", "state", "installed (needed)"), *rows])


def compare_requirements(
    requirements: Iterable[str], version_of: Callable[[str], str | None]
) -> list[tuple[str, str, str]]:
    """Compares the requirements of a distribution with what is installed.

    Args:
        requirements: Lines such as `onnx>=1.17; extra == "onnx"`, as in the metadata of packages.
        version_of: The installed version of a package, or `None`.

    Returns:
        A row for each extra: its name ("-" for what is always needed), "complete", "too old" or
        "missing", and its packages with installed versions and lower bounds. Extras for development
        and requirements of other platforms are left out.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    aliases = {names[0]: names for names in (_KERAS, *_PACKAGES.values())}
    for line in requirements:
        need, _, marker = line.partition(";")
        name = re.split(r"[^\w.-]", need.strip())[0]
        bound = need.strip().removeprefix(name)
        extra = re.fullmatch(r"\s*(?:extra\s*==\s*['\"]([\w-]+)['\"])?\s*", marker)
        if extra is None or extra[1] in DEVELOPMENT:
            continue
        version = next(filter(None, map(version_of, aliases.get(name, (name,)))), None)
        is_old = _numbers(version or "") < _numbers(bound.removeprefix(">="))
        state = "missing" if version is None else "too old" if is_old else "complete"
        text = f"{name} {version or state} ({bound})"
        found.setdefault(extra[1] or "-", []).append((state, text))
    order = ("complete", "too old", "missing")
    return [
        (extra, max((state for state, _ in rows), key=order.index), ", ".join(t for _, t in rows))
        for extra, rows in found.items()
    ]


def _numbers(version: str) -> list[int]:
    """The release of a version, `[2, 23, 0]` of `2.23.0.dev20261026`, padded for comparison."""
    release = re.match(r"[\d.]*", version)
    numbers = [int(part) for part in release[0].split(".") if part] if release else []
    return numbers + [0] * (4 - len(numbers))


def _try(read: Callable[[], str]) -> str:
    """What `read` returns, or in one line why it failed, whatever was raised."""
    try:
        return read()
    except Exception as error:  # broken installations raise errors of all kinds
        reason = next(iter(str(error).strip().splitlines()), "")
        return f"FAILED: {type(error).__name__}: {reason}"


def _version(names: Sequence[str]) -> str:
    """The version that is installed, with the name of a package that is not the first one."""
    found = {name: installed_version(name) for name in names}
    texts = [f"{name} {version}" for name, version in found.items() if version]
    return ", ".join(texts).removeprefix(f"{names[0]} ") or "not installed"


def _package() -> str:
    folder = pathlib.Path(__file__).parents[1]
    is_below = folder.is_relative_to(pathlib.Path.home())
    shown = pathlib.Path("~", folder.relative_to(pathlib.Path.home())) if is_below else folder
    version = sys.modules["keras_vit"].__version__  # nothing inside imports from the top level
    return f"{version} in {shown} ({DISTRIBUTION} {_version([DISTRIBUTION])})"


def _keras() -> str:
    version = _version(_KERAS)
    backend = _try(lambda: importlib.import_module("keras").backend.backend())
    return f"{version}, backend {backend}"


def _processor() -> str:
    rows = [line.split(":", 1) for line in describe_processor().splitlines() if ":" in line]
    found = {name.strip(): text.strip() for name, text in rows}
    name = found.get("model name") or platform.processor() or platform.machine()
    flags = (found.get("flags") or found.get("Features") or "").split()
    units = " ".join(unit for unit in _UNITS if unit in flags) or "no known units"
    cores = f"{count_cores()} of {os.cpu_count()} cores"
    return f"{name}, {cores}, {units}, oneDNN {'on' if onednn_is_on() else 'off'}"


def _devices() -> str:
    backend = importlib.import_module("keras").backend.backend()
    if backend == "tensorflow":
        tf = importlib.import_module("tensorflow")
        details = tf.config.experimental.get_device_details
        devices = tf.config.list_physical_devices()
        names = [details(d).get("device_name", d.device_type) for d in devices]
    elif backend == "jax":
        names = [device.device_kind for device in importlib.import_module("jax").devices()]
    else:
        cuda = importlib.import_module("torch").cuda
        names = [cuda.get_device_name(index) for index in range(cuda.device_count())] or ["CPU"]
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _variables() -> str:
    texts = {name: "set" if name == "TF_CONFIG" else os.environ.get(name) for name in _VARIABLES}
    return " ".join(f"{name}={texts[name]}" for name in _VARIABLES if name in os.environ) or "none"


def _requirements() -> list[str]:
    """The requirements of this distribution; none if it runs from a checkout alone."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        complain(f"{DISTRIBUTION} is not installed, so its extras are not known.", "note")
        return []
