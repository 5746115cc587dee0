"""Shared code of the experiments on scikit-learn's digits: data, training, tables and plots.

The 1,797 images have 8 x 8 pixels. A fifth of each class is held out as the test set; no
hyperparameter is chosen on it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import time

import keras
import numpy as np
import tensorflow as tf

import keras_vit

BATCH_SIZE = 64
CLASSES = 10


def read_digits(split, size=8):
    """Reads training and test set: pixels in [0, 255] of shape `(B, size, size, 1)`, labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = digits.images[..., None].astype("float32") * (255 / 16)  # 0 to 16 in scikit-learn
    images = tf.image.resize(images, (size, size)).numpy()
    options = {"test_size": 0.2, "stratify": digits.target, "random_state": split}
    train_x, test_x, train_y, test_y = train_test_split(images, digits.target, **options)
    return (train_x, train_y), (test_x, test_y)


def build_vit(**options):
    """Builds a small ViT for images of 8 x 8 pixels in 16 patches."""
    size = {"width": 64, "depth": 4, "num_heads": 4, "mlp_dim": 128}
    images = {"patch_size": 2, "image_size": 8, "channels": 1, "classes": CLASSES}
    return keras_vit.build_vit(keras_vit.make_config(**{**size, **images, **options}))


def pick(train, per_class, seed):
    """Draws `per_class` random images of each class."""
    random = np.random.default_rng(seed)
    indices = [
        random.permutation(np.flatnonzero(train[1] == d))[:per_class] for d in range(CLASSES)
    ]
    return tuple(part[np.concatenate(indices)] for part in train)


def moving():
    """Layer that shifts images by up to an eighth: one pixel of scikit-learn's images."""
    return keras.layers.RandomTranslation(
        1 / 8, 1 / 8, fill_mode="constant", interpolation="nearest"
    )


def batches(train, steps, seed, augment=None):
    """Shuffled batches for a number of steps."""
    images, digits = train
    data = tf.data.Dataset.from_tensor_slices((images, digits.astype("int32")))
    data = data.shuffle(len(images), seed=seed).repeat().batch(BATCH_SIZE)
    if augment is not None:
        data = data.map(lambda x, y: (augment(x, training=True), y))
    return data.take(steps).prefetch(2)


def schedule(steps, peak):
    """Linear warm-up over a tenth of the steps, then cosine decay to zero."""
    warmup = max(1, steps // 10)
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warmup), warmup_target=peak, warmup_steps=warmup
    )


def train_and_test(model, data, steps, test, peak=1e-3, weight_decay=0.1):
    """Trains with AdamW, and returns the test accuracy."""
    model.compile(
        keras.optimizers.AdamW(
            schedule(steps, peak), weight_decay=weight_decay, global_clipnorm=1.0
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(data, shuffle=False, verbose=0)
    results = model.evaluate(*test, batch_size=len(test[0]), verbose=0, return_dict=True)
    keras.utils.clear_session()  # the graphs of all models would stay in memory
    return results["accuracy"]


def parse(description, name, **defaults):
    """Parses the options of an experiment; `--smoke` only checks that the script runs."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs") / name)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one seed, two columns, a few steps")
    for option, default in defaults.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()
    if options.smoke:
        options.seeds = 1
        for option in defaults:
            setattr(options, option, 2)
    options.output.mkdir(parents=True, exist_ok=True)
    options.begin = time.perf_counter()
    return options


def columns(options, values):
    """The values to compare, or the first two of them where it is only seen that a script runs."""
    return values[:2] if options.smoke else values


def summarize(accuracies):
    """Mean and sample standard deviation over seeds, in per cent."""
    values = 100 * np.asarray(accuracies)
    spread = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{spread}"


def write_results(options, columns, rows, **facts):
    """Writes results.json in place of an earlier one; returns the seconds since the beginning."""
    facts |= {
        "accuracies": rows,
        "columns": columns,
        "seconds": round(time.perf_counter() - options.begin),
        "versions": {"python": platform.python_version()}
        | {module.__name__: module.__version__ for module in (keras_vit, keras, tf, np)},
    }
    unfinished = options.output / "results.json.tmp"
    unfinished.write_text(json.dumps(facts, indent=1) + "\n")
    unfinished.replace(options.output / "results.json")
    return facts["seconds"]


def report(options, first, columns, rows, **facts):
    """Writes results.json, and prints the table of accuracies."""
    lines = [f"| {first} | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(map(summarize, cells))} |" for row, cells in rows.items()]
    seconds = write_results(options, columns, rows, **facts)
    print("\n".join(lines), f"\n{seconds} s; results and plot in {options.output}")


def plot_rows(options, columns, rows, x, scale="log"):
    """Plots accuracy against the columns, one curve per row, with error bars of one deviation."""
    from keras_vit.analysis import plots

    figure = plots.new_figure(5.6, 3.8)
    axis = figure.subplots()
    for name, cells in rows.items():
        values = [100 * np.asarray(cell) for cell in cells]
        spread = [v.std(ddof=1) if len(v) > 1 else 0 for v in values]
        axis.errorbar(
            columns, [v.mean() for v in values], spread, marker="o", capsize=3, label=name
        )
    plots.style_axis(axis, x, "test accuracy (%)")
    axis.set_xscale(scale)
    axis.set_xticks(columns, [f"{c:,}" for c in columns])
    axis.minorticks_off()
    figure.legend(loc="outside upper center", frameon=False, ncols=3)
    figure.savefig(options.output / "accuracy.png", dpi=120)
