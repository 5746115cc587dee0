"""Time of a logistic probe beside scikit-learn: equal features, folds and values of `C`, in turns.

    python benchmarks/probes.py textile=PHOTOS --network NETWORK --features FEATURES \
        --output docs/benchmarks/probes.jsonl

Each data set is `NAME=FOLDER` or `NAME=FOLDER:COUNT`, of which the first images of each class are
taken, or the folder of features or tokens that `store_features` has written. The network is a
checkpoint, such as the folder of scripts/real-network. Features are kept in `--features`, so that a
run that was interrupted continues. Contestants, each a 5-fold cross-validation and one fit of the
best value to all images, with features standardised by mean and deviation of the images fitted to:

- `ours`: `cross_validate` and `fit_head`
- `scikit_learn`: `LogisticRegression`, every fit from zero, as `GridSearchCV` does
- `scikit_learn_warm`: `LogisticRegression(warm_start=True)`, from the value of `C` before

Prints and appends a JSON line for each data set: medians of wall and processor seconds over the
rounds, the accuracy for every value of `C`, and the largest difference of a probability from the
minimum of the loss, which scikit-learn finds with a tolerance of 1e-10.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
import warnings

from machine import require, write_row

FOLDS, SEED = 5, 0
STEPS = 5_000  # of scikit-learn at most: its 100 are not enough for large values of C


def read_features(args, name: str, folder: str):
    """Features and labels of the first images of each class."""
    import numpy as np

    import keras_vit

    if list(pathlib.Path(folder).glob("part-*-of-*.json")):
        found = keras_vit.evaluate.load_features(folder)
        values = found.values[:, 0] if found.values.ndim == 3 else found.values  # class token
        return np.asarray(values), found.labels, len(found.class_names), None
    path, _, count = folder.partition(":")
    images = keras_vit.read_folder(path)
    if count:
        labels = np.asarray(images.labels)
        first = [np.flatnonzero(labels == label)[: int(count)] for label in np.unique(labels)]
        images = images.subset(np.sort(np.concatenate(first)))
    model = keras_vit.from_pretrained(args.network)
    features = keras_vit.evaluate.store_features(model, images, args.features / name)
    return np.asarray(features.values), features.labels, images.num_classes, model.input_shape[1:3]


def run_ours(x, labels, classes):
    """Accuracy by value of `C`, and scores of all images."""
    import keras

    from keras_vit.evaluate import cross_validate, fit_head

    accuracies = cross_validate("logistic", x, labels, classes, folds=FOLDS, seed=SEED)
    best = max(accuracies, key=accuracies.get)
    return accuracies, keras.ops.convert_to_numpy(fit_head("logistic", x, labels, classes, best)(x))


def run_sklearn(x, labels, classes, warm: bool):
    """The same by scikit-learn, with probabilities in place of scores."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    from keras_vit.evaluate.probes import PROBES, _fold_numbers

    x = x.astype("float64")
    strengths = PROBES["logistic"].settings
    numbers = _fold_numbers(labels, classes, FOLDS, SEED)
    right = dict.fromkeys(strengths, 0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in range(FOLDS):
            out = numbers == number
            solver = LogisticRegression(max_iter=STEPS, warm_start=warm)
            for strength in strengths:
                found = fit_sklearn(x[~out], labels[~out], strength, solver)(x[out]).argmax(1)
                right[strength] += int((found == labels[out]).sum())
        accuracies = {strength: count / len(x) for strength, count in right.items()}
        best = max(accuracies, key=accuracies.get)
        solver = LogisticRegression(max_iter=STEPS)
        return accuracies, fit_sklearn(x, labels, best, solver)(x)


def fit_sklearn(x, labels, strength, solver):
    """Fits to standardised features; returns a function from features to probabilities."""
    mean, stddev = x.mean(0), x.std(0) + 1e-5
    solver.set_params(C=strength).fit((x - mean) / stddev, labels)
    return lambda rows: solver.predict_proba((rows - mean) / stddev)


def measure(name: str, x, labels, classes: int, rounds: int) -> dict:
    """All contestants in turns."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    contestants = {
        "ours": lambda: run_ours(x, labels, classes),
        "scikit_learn": lambda: run_sklearn(x, labels, classes, warm=False),
        "scikit_learn_warm": lambda: run_sklearn(x, labels, classes, warm=True),
    }
    seconds, results = {each: [] for each in contestants}, {}
    for _ in range(rounds):
        for each, run in contestants.items():
            start = time.perf_counter(), time.process_time()
            results[each] = run()
            wall, processor = time.perf_counter() - start[0], time.process_time() - start[1]
            seconds[each].append((wall, processor))
    scores = results["ours"][1] - results["ours"][1].max(axis=1, keepdims=True)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    row = {"data": name, "images": len(x), "width": x.shape[1], "classes": classes}
    for each, (accuracies, probabilities) in results.items():
        found = shares if each == "ours" else probabilities
        solver = LogisticRegression(max_iter=20_000, tol=1e-10)
        exact = fit_sklearn(
            x.astype("float64"), labels, max(accuracies, key=accuracies.get), solver
        )
        row[each] = {
            "wall_s": round(statistics.median(wall for wall, _ in seconds[each]), 2),
            "processor_s": round(statistics.median(used for _, used in seconds[each]), 2),
            "accuracy": {f"{c:g}": round(value, 4) for c, value in accuracies.items()},
            "difference": float(f"{np.abs(found - exact(x)).max():.2g}"),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="+", help="NAME=FOLDER or NAME=FOLDER:COUNT")
    parser.add_argument("--network", help="checkpoint; not for features that are there")
    parser.add_argument("--features", type=pathlib.Path, help="folder to keep features in")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    require("scikit-learn")
    import numpy
    import scipy
    import sklearn

    versions = {each.__name__: each.__version__ for each in (numpy, scipy, sklearn)}
    for item in args.data:
        name, _, folder = item.partition("=")
        x, labels, classes, size = read_features(args, name, folder)
        row = measure(name, x, labels, classes, args.rounds)
        row |= {"pixels": size, "folds": FOLDS, "seed": SEED, "rounds": args.rounds, **versions}
        write_row(row, args.output)


if __name__ == "__main__":
    main()
