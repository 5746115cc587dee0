"""Merged tokens, dropped patches, windows and other sizes on a trained network.

    scripts/real-network FOLDER
    python benchmarks/real_network.py FOLDER --output docs/benchmarks/real_network.jsonl
    python benchmarks/real_network.py --show docs/benchmarks/real_network.jsonl

The network is DINOv2's ViT-S/14, trained further for saliency; the pictures are of simulated
textile in three classes (scripts/real-network names the sources). Each row compares the class token
after the last norm with that of the plain network at 224 pixels:

    cosine    mean over the pictures of the test set
    agree     share of them for which the plain network's classifier answers the same
    accuracy  of a classifier fitted on the row's own features

Classifiers are scikit-learn's logistic regressions on standardized features, fitted on the first
half of each class. `speed` is images per second divided by the plain network's, in turns; for
dropped patches it is that of training mode, without gradients.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time

import numpy as np
from machine import read_rows, require, write_row

GLOBAL = (2, 5, 8, 11)
SIZES = ((98, 98), (154, 154), (168, 280), (280, 280), (392, 392), (518, 518))
# Name, image size, options of the network, whether it runs as in training.
_ROWS: tuple[tuple[str, tuple[int, int], dict, bool], ...] = (
    ("plain", (224, 224), {}, False),
    *(
        (f"{n} tokens merged a block", (224, 224), {"num_merged_tokens": n}, False)
        for n in (4, 8, 12, 16)
    ),
    *(
        (f"{n} % of the patches dropped", (224, 224), {"patch_dropout_rate": n / 100}, True)
        for n in (25, 50, 75)
    ),
    *(
        (f"windows of {n} x {n}, 4 blocks global", (224, 224),
         {"window_size": (n, n), "global_blocks": GLOBAL}, False)
        for n in (8, 4)
    ),
    ("query chunks of 64", (224, 224), {"query_chunk_size": 64}, False),
    *((f"{height} x {width} pixels", (height, width), {}, False) for height, width in SIZES),
    ("518 x 518 pixels, query chunks of 128", (518, 518), {"query_chunk_size": 128}, False),
)  # fmt: skip
ROWS = {name: (size, options, training) for name, size, options, training in _ROWS}
CLASSES = ("nominal", "global", "local")
BATCH = 10


def read_pictures(folder: pathlib.Path, count: int):
    """The first `count` pictures of each class, (B, 250, 250, 3) as uint8, and their classes."""
    from PIL import Image

    files = [path for name in CLASSES for path in sorted((folder / name).iterdir())[:count]]
    pictures = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in files])
    return pictures, np.repeat(np.arange(len(CLASSES)), count)


def extractor(network: pathlib.Path, size: tuple[int, int], options: dict, training: bool):
    """A function from pictures to class tokens `(B, 384)` at another size."""
    import tensorflow as tf

    import keras_vit

    model = keras_vit.from_pretrained(
        str(network), include_top=False, pooling="token", input_shape=(*size, 3), **options
    )

    @tf.function(jit_compile=True)
    def run(images):
        return model(images, training=training)

    def features(pictures):
        images = tf.image.resize(tf.cast(pictures, "float32"), size, antialias=True)
        return run(tf.clip_by_value(images, 0, 255)).numpy()

    return features


def fit(features, labels):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000)).fit(
        features, labels
    )


def in_turns(functions, batch, rounds: int) -> list[float]:
    """Median seconds of each function on a batch."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function(batch)
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def measure(folder: pathlib.Path, count: int, rounds: int, names, output):
    """Appends a row for each of `names`, the plain network's first."""
    import keras
    import tensorflow as tf

    pictures, labels = read_pictures(folder / "textile", count)
    test = np.tile(np.arange(count) >= count // 2, len(CLASSES))
    plain = extractor(folder / "network", *ROWS["plain"])

    def all_features(function):
        return np.concatenate(
            [function(pictures[i : i + BATCH]) for i in range(0, len(pictures), BATCH)]
        )

    expected = all_features(plain)
    classifier = fit(expected[~test], labels[~test])
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    for name in names:
        size, options, training = ROWS[name]
        keras.utils.set_random_seed(0)
        function = (
            plain if name == "plain" else extractor(folder / "network", size, options, training)
        )
        features = all_features(function)
        norms = [np.linalg.norm(each[test], axis=1) for each in (features, expected)]
        cosine = np.sum(features[test] * expected[test], axis=1) / (norms[0] * norms[1])
        answers = [classifier.predict(each[test]) for each in (features, expected)]
        base, own = in_turns((plain, function), pictures[:BATCH], rounds)
        row = {
            "name": name,
            "pictures": len(pictures),
            "cosine": round(float(cosine.mean()), 4),
            "least_cosine": round(float(cosine.min()), 4),
            "agree": round(float((answers[0] == answers[1]).mean()), 4),
            "accuracy": round(
                fit(features[~test], labels[~test]).score(features[test], labels[test]), 4
            ),
            "speed": round(base / own, 3),
            "batch": BATCH,
            **versions,
        }
        write_row(row, output)


def table(rows) -> str:
    lines = ["| network | cosine | least | agree | accuracy | speed |", "|---|---|---|---|---|---|"]
    for row in rows:
        shares = " | ".join(f"{100 * row[key]:.1f} %" for key in ("agree", "accuracy"))
        lines.append(
            f"| {row['name']} | {row['cosine']:.3f} | {row['least_cosine']:.3f} | {shares} | "
            f"{row['speed']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="of scripts/real-network")
    parser.add_argument("--count", type=int, default=150, help="pictures of a class")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument(
        "--output", type=pathlib.Path, help="JSON lines; rows there are not repeated"
    )
    parser.add_argument("--show", type=pathlib.Path, help="only print the table of such a file")
    options = parser.parse_args()
    path = options.show or options.output
    if not options.show:
        if options.folder is None:
            parser.error("needs the folder of scripts/real-network, or --show FILE")
        require("scikit-learn")
        there = {row["name"] for row in read_rows(path)} if path else set()
        names = [name for name in options.only if name not in there]
        measure(options.folder, options.count, options.rounds, names, options.output)
    print(table(read_rows(path) if path else []))


if __name__ == "__main__":
    main()
