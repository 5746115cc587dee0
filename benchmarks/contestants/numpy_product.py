"""NumPy's matrix product: one measure of the machine's ceiling."""

from __future__ import annotations

from contestants.worker import Run, multiply, serve


def load(cell: dict) -> Run:
    import numpy as np

    return multiply(cell["size"], np.matmul)


if __name__ == "__main__":
    serve(load)
