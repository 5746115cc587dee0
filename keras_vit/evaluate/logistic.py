"""Logistic regression with an L2 penalty, of classes or several labels, along penalties.

Newton's method: each step is solved by conjugate gradients, which are preconditioned by one matrix
of features that all classes share. A fit starts at the solution of the penalty before. Steps are
computed in float32, which takes half the time; loss and gradient, which decide, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

_TOLERANCE = 2e-5  # of the gradient of the mean loss; scikit-learn stops at 1e-4
_STEPS = 100  # of Newton's method at most; 5 to 15 are usual
_PRODUCTS = 50  # of conjugate gradients in a step at most
_REST = 0.3  # share of the gradient that a step may leave
_DECREASE = 1e-4  # of the share of the expected decrease that a step must have (Armijo)
_SHORTEST = 1e-8  # of the step: the loss can decrease no further in float64
_RIDGE = 1e-10  # of the preconditioner's mean eigenvalue, which keeps it invertible
_STDDEV_FLOOR = 1e-5  # as in few-shot evaluation


LinearHead = tuple[np.ndarray, np.ndarray]  # kernel (D, K), bias (K,)


def logistic_path(
    features: np.ndarray, labels: np.ndarray, classes: int, strengths: Sequence[float]
) -> Iterator[LinearHead]:
    """Fits a regression to standardised features for each strength, in turns.

    The loss is that of scikit-learn's `LogisticRegression`: `C` times the sum of the cross-entropy
    plus half of the squared norm of the kernel; the bias has no penalty. Several labels are as many
    regressions of two classes.

    Args:
        features: Features of shape `(n, D)`, float64.
        labels: Classes, integers of shape `(n,)`, each in [0, classes) at least once; or labels of
            0 and 1, of shape `(n, K)`.
        classes: Number of classes or labels `K`.
        strengths: Values of `C`, in ascending order.

    Yields:
        Kernel `(D, K)` and bias `(K,)` for the features as they are.
    """
    mean, stddev = features.mean(axis=0), features.std(axis=0) + _STDDEV_FLOOR
    x = (features - mean) / stddev
    basis = None
    if len(x) < x.shape[1]:  # the kernel is a combination of the rows
        _, sizes, basis = np.linalg.svd(x, full_matrices=False)
        basis = basis[sizes > sizes[0] * 1e-10].T  # (D, r)
        x = x @ basis
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    is_exclusive = labels.ndim == 1
    targets = np.eye(classes)[labels] if is_exclusive else labels.astype("float64")
    weights = np.zeros((x.shape[1], classes))
    for strength in strengths:
        # Of two classes, scikit-learn fits one score: half of the penalty of two.
        half = is_exclusive and classes == 2
        penalty = np.full((x.shape[1], 1), 1 / (strength * len(x)) * (2 if half else 1))
        penalty[-1] = 0
        weights = _fit(x, targets, penalty, weights, is_exclusive)
        kernel = weights[:-1] if basis is None else basis @ weights[:-1]
        kernel = kernel / stddev[:, None]
        yield kernel, weights[-1] - mean @ kernel


def _fit(
    x: np.ndarray, targets: np.ndarray, penalty: np.ndarray, weights: np.ndarray, is_exclusive: bool
) -> np.ndarray:
    """Minimises the mean cross-entropy plus half of the penalty, from the given weights on."""
    entropy = _of_classes if is_exclusive else _of_labels
    count, classes = targets.shape
    rows, ridge = x.astype("float32"), penalty.astype("float32")
    logits = x @ weights
    loss, shares = entropy(logits, targets)
    loss += _half_norm(weights, penalty)
    solve: Callable[[np.ndarray], np.ndarray] | None = None
    for _ in range(_STEPS):
        gradient = x.T @ (shares - targets) / count + penalty * weights
        if np.abs(gradient).max() <= _TOLERANCE:
            break
        if solve is None:
            curvature = (shares * (1 - shares)).mean(axis=1, keepdims=True)
            if is_exclusive:
                curvature *= classes / (classes - 1)
            matrix = (rows * curvature.astype("float32")).T @ rows / np.float32(count)
            solve = _inverse(matrix.astype("float64"), penalty).__matmul__

        narrow = shares.astype("float32")

        def curve(step: np.ndarray, shares: np.ndarray = narrow) -> np.ndarray:
            """The product of the second derivatives with a step."""
            y = rows @ step
            if is_exclusive:
                y = shares * (y - (shares * y).sum(axis=1, keepdims=True))
            else:
                y = shares * (1 - shares) * y
            return rows.T @ y / np.float32(count) + ridge * step

        step = _conjugate_gradients(curve, -gradient.astype("float32"), solve).astype("float64")
        slope, change, size = float((gradient * step).sum()), x @ step, 1.0
        while True:
            after, shares = entropy(logits + size * change, targets)
            after += _half_norm(weights + size * step, penalty)
            if after <= loss + _DECREASE * size * slope:
                break
            size /= 2
            if size < _SHORTEST:
                return weights
        weights, logits, loss = weights + size * step, logits + size * change, after
    return weights


def _inverse(matrix: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """The preconditioner, float32: the inverse of a matrix `(D, D)` with its penalties."""
    diagonal = np.diag_indices_from(matrix)
    matrix[diagonal] += penalty[:, 0]
    matrix[diagonal] += _RIDGE * np.trace(matrix) / len(matrix)
    return np.linalg.inv(matrix).astype("float32")


def _conjugate_gradients(
    curve: Callable[[np.ndarray], np.ndarray],
    target: np.ndarray,
    solve: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Solves `curve(x) = target` up to a share of the target."""
    x, rest = np.zeros_like(target), target
    limit = _REST * float(np.linalg.norm(target))
    z = direction = solve(rest)
    before = float((rest * z).sum())
    for _ in range(_PRODUCTS):
        product = curve(direction)
        size = before / float((direction * product).sum())
        x = x + size * direction
        rest = rest - size * product
        if np.linalg.norm(rest) <= limit:
            break
        z = solve(rest)
        after = float((rest * z).sum())
        direction = z + after / before * direction
        before = after
    return x


def _of_classes(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean cross-entropy, and the probabilities."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted)
    sums = shares.sum(axis=1, keepdims=True)
    loss = float((np.log(sums[:, 0]) - (targets * shifted).sum(axis=1)).mean())
    return loss, shares / sums


def _of_labels(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean over images of the summed cross-entropies of labels, and the probabilities."""
    loss = (np.logaddexp(0, logits) - targets * logits).sum() / len(logits)
    return float(loss), 0.5 * (1 + np.tanh(logits / 2))


def _half_norm(weights: np.ndarray, penalty: np.ndarray) -> float:
    return 0.5 * float((penalty * weights**2).sum())
