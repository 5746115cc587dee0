"""Snapshots of Keras and TensorFlow, to show that this package replaces nothing in them.

Also counts page faults, to show where TensorFlow keeps its buffers. Imports neither of the two.
"""

from __future__ import annotations

import pathlib
import resource
import sys

PACKAGES = ("keras.src.", "tensorflow.python.")
# Python itself keeps caches of abstract classes and of `copyreg` there.
CACHES = (
    "_abc_impl",
    "__slotnames__",
    "__abstractmethods__",
    "__annotations__",
    "__dict__",
    "__weakref__",
)


def snapshot() -> dict[object, dict[str, object]]:
    """What the classes and modules of Keras and TensorFlow define now."""
    modules = [m for name, m in sorted(sys.modules.items()) if name.startswith(PACKAGES)]
    values = {id(value): value for module in modules for value in vars(module).values()}
    classes = [value for value in values.values() if isinstance(value, type)]
    classes = [kind for kind in classes if kind.__module__.startswith(PACKAGES)]
    functions = {m: {n: v for n, v in vars(m).items() if callable(v)} for m in modules}
    return {**functions, **{kind: dict(vars(kind)) for kind in classes}}


def changes(before: dict[object, dict[str, object]]) -> list[str]:
    """Names that are not what they were; a sub-module or a cache that was added is no change."""
    return [
        f"{owner.__name__}.{name}"
        for owner, names in before.items()
        for name, value in names.items()
        if name not in CACHES and vars(owner).get(name, None) is not value
    ] + [
        f"{owner.__name__}.{name} (new)"
        for owner, names in before.items()
        if isinstance(owner, type)
        for name in vars(owner).keys() - names.keys() - set(CACHES)
    ]


def page_faults() -> int:
    """Page faults of four tensors of 128 MiB, after a first one of that size."""
    import tensorflow as tf

    tf.fill((1 << 25,), 1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        tf.fill((1 << 25,), 1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def pages_are_always_huge() -> bool:
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[always]" in setting.read_text()
