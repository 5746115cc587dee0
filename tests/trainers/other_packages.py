"""Snapshots of Keras and TensorFlow, to show that this package replaces nothing in them."""

from __future__ import annotations

import os
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


def check_import() -> None:
    """Run in a new process: `import keras_vit` changes nothing outside of itself."""
    import keras
    import tensorflow  # noqa: F401

    environment, before = dict(os.environ), snapshot()
    assert len(before) > 1000, len(before)
    import keras_vit  # noqa: F401

    assert environment == dict(os.environ)
    assert changes(before) == []
    keras.Model._undo = None  # the check can fail
    assert changes(before) == ["Model._undo (new)"]
