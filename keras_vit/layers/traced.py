"""Traced functions with gradients of their own, which the layers of all models share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def shape_to_trace(x: Any) -> tuple[int | None, ...]:
    """Shape for the signature of a traced function: open without a graph, where it is run at once.

    In a graph, gradients keep the known sizes of `x`. Elsewhere each new size would be traced.
    """
    import tensorflow as tf

    return (None,) * len(x.shape) if tf.executing_eagerly() else tuple(x.shape)


class PerThread:
    """Decorator that keeps the results of a function for each thread that is running.

    TensorFlow builds the gradient of a traced function when it is first needed, inside the graph of
    that function: two threads that train at the same time must not share one. It keeps custom
    gradients for the life of the process, so that the functions of a thread that ended go to the
    next new thread.

    Args:
        make: A function of hashable arguments.
    """

    def __init__(self, make: Callable[..., Callable[..., Any]]):
        self._make = make
        self._thread = threading.local()
        self._free: list[dict[tuple[Any, ...], Callable[..., Any]]] = []

    def __call__(self, *arguments: Any) -> Callable[..., Any]:
        if not hasattr(self._thread, "lease"):
            self._thread.lease = _Lease(self._free)
        made = self._thread.lease.made
        if arguments not in made:
            made[arguments] = self._make(*arguments)
        return made[arguments]


class _Lease:
    """Values of a thread, until Python deletes its local variables."""

    def __init__(self, free: list[dict[tuple[Any, ...], Callable[..., Any]]]):
        self._free = free
        try:
            self.made = free.pop()
        except IndexError:
            self.made = {}

    def __del__(self) -> None:
        self._free.append(self.made)
