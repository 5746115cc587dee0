"""Mean IoU of segmentation heads by learning rate, on drawn pictures.

    python benchmarks/dense_heads.py --network NETWORK --output dense_heads.jsonl

160 pictures of 64 x 64 pixels with one circle or square on noise; a fifth is held out. Two tasks:

- `frozen`: shapes of any colour, which only their outline tells apart. Heads of `build_segmenter`
  on the features of a frozen network at 112 pixels, computed once and without augmentation, with
  the optimizer and the rates of `keras-vit segment train --freeze`; beside logistic regression on
  the patch tokens of the last block. The network is a folder for `from_pretrained`; the numbers in
  docs/ are of the one that `scripts/real-network` writes;
- `scratch`: red circles and blue squares; the command itself trains a `vit_ti16` from random
  weights at 64 pixels with its head;
- `tuned`: the pictures of `frozen`; the command trains all of the network with its head.

Every head trains at its default rate, a third of it and three times it. `--plain` trains without
warm-up and clipping. Prints a JSON line a run, then the tables. What stands in `--output` is not
run again. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any

import numpy as np
from machine import require, write_row

SIZE = 64
SIZES = {"frozen": 112, "scratch": 64, "tuned": 112}  # of the model
CLASSES = ("background", "circle", "square")
COLOURS = {"circle": (220, 30, 30), "square": (30, 30, 220)}  # of the task `scratch`
HEADS = ("linear", "mlp", "dpt")
RATES = (1 / 3, 1, 3)  # times the default
BATCH = 8  # as in the command
CHANNELS = 64  # which the tables are of
PACKAGES = ("tensorflow", "keras", "scikit-learn")


def draw(count: int, seed: int, is_coloured: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of one circle or square on noise, and their class maps.

    Returns:
        uint8 arrays `(B, 64, 64, 3)` and `(B, 64, 64)`.
    """
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, SIZE, SIZE, 3), dtype="uint8")
    maps = np.zeros((count, SIZE, SIZE), "uint8")
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for image, class_map in zip(images, maps, strict=True):
        label, radius = rng.integers(1, 3), rng.integers(10, 19)
        y, x = rng.integers(radius, SIZE - radius, 2)
        inside = np.hypot(rows - y, columns - x) <= radius
        if CLASSES[label] == "square":  # of about the same area
            inside = np.maximum(abs(rows - y), abs(columns - x)) <= 0.89 * radius
        image[inside] = COLOURS[CLASSES[label]] if is_coloured else rng.integers(0, 256, 3)
        class_map[inside] = label
    return images, maps


def build(network: str, head: str, channels: int) -> tuple[Any, Any]:
    """The frozen network to the features that a head reads, and the head from them to logits."""
    import keras

    import keras_vit

    side = SIZES["frozen"]
    backbone = keras_vit.from_pretrained(network, input_shape=(side, side, 3))
    backbone.trainable = False
    segmenter = keras_vit.segmentation.build_segmenter(
        backbone, len(CLASSES), head, channels=channels
    )
    inputs = {layer.name: layer.input for layer in segmenter.layers}
    if head == "linear":
        features = [inputs["segmentation_dropout"]]
    elif head == "mlp":
        features = [x for name, x in inputs.items() if name.startswith("segmentation_block_")]
    else:
        maps = [inputs[f"dpt_{index}_join"][0] for index in range(4)]
        features = maps + [inputs[f"dpt_{index}_token"] for index in range(4)]
    return keras.Model(segmenter.inputs, features), keras_vit.Model(features, segmenter.output)


@functools.cache
def features_of(network: str, head: str, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The features that a head reads of all pictures, and their masks at the model's size."""
    import tensorflow as tf

    images, maps = draw(count, 0, is_coloured=False)
    side = (SIZES["frozen"],) * 2
    reader, _ = build(network, head, 1)
    features = reader.predict(tf.image.resize(images, side), batch_size=16, verbose=0)
    labels = tf.image.resize(maps[..., None], side, "nearest").numpy()[..., 0]
    return features if isinstance(features, list) else [features], labels


def split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pictures to train on, and of the fifth that is held out."""
    order = np.random.default_rng(seed).permutation(count)
    return order[count // 5 :], order[: count // 5]


def mean_iou(logits: np.ndarray, truth: np.ndarray) -> float:
    """Mean IoU of logits of any size, at the size of the pictures."""
    import tensorflow as tf

    import keras_vit

    predicted = tf.image.resize(logits, (SIZE, SIZE)).numpy().argmax(-1)
    counts = np.bincount((truth * len(CLASSES) + predicted).ravel(), minlength=len(CLASSES) ** 2)
    confusion = counts.reshape(len(CLASSES), -1)
    return keras_vit.segmentation.SegmentationResult(CLASSES, confusion, len(truth)).mean_iou


def fit_tokens(cell: dict, options: argparse.Namespace) -> dict:
    """Logistic regression from patch tokens to the class of most of their pixels."""
    from sklearn.linear_model import LogisticRegression

    (tokens,), labels = features_of(options.network, "linear", cell["images"])
    each = tokens.shape[1]
    patches = labels.reshape(len(labels), each, labels.shape[1] // each, each, -1).swapaxes(2, 3)
    targets = np.argmax([(patches == label).sum((3, 4)) for label in range(len(CLASSES))], 0)
    train, test = split(len(tokens), cell["seed"])
    mean, deviation = tokens[train].mean((0, 1, 2)), tokens[train].std((0, 1, 2))
    rows = ((tokens - mean) / deviation).reshape(len(tokens), -1, tokens.shape[-1])
    fitted = LogisticRegression(C=0.1, max_iter=1000)
    fitted.fit(np.concatenate(rows[train]), targets[train].ravel())
    logits = fitted.decision_function(np.concatenate(rows[test]))
    truth = draw(cell["images"], 0, is_coloured=False)[1][test].astype(int)
    return {"mean_iou": mean_iou(logits.reshape(len(test), each, each, -1), truth)}


def recipe_of(cell: dict, head: str) -> Any:
    """The hyperparameters of `keras-vit segment train`, at the rate of a cell."""
    from keras_vit.segmentation.settings import FROZEN_RATES, RANDOM_RATES, TRAINED_RATE
    from keras_vit.train import find_recipe

    recipe = find_recipe("dense")
    rates = {"frozen": FROZEN_RATES, "scratch": RANDOM_RATES}
    rate = TRAINED_RATE if cell["task"] == "tuned" else rates[cell["task"]][head]
    steps = (cell["images"] - cell["images"] // 5) // BATCH * cell["epochs"]
    changes = {"clip_norm": None, "warmup_steps": 0} if cell["plain"] else {}
    return recipe.replace(
        steps=steps, learning_rate=rate * cell["times"], batch_size=BATCH, **changes
    )


def fit_head(cell: dict, options: argparse.Namespace) -> dict:
    """A head on stored features."""
    import keras

    features, labels = features_of(options.network, cell["head"], cell["images"])
    keras.utils.set_random_seed(cell["seed"])
    _, model = build(options.network, cell["head"], options.channels)
    recipe = recipe_of(cell, cell["head"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(recipe.build_optimizer(0), loss, jit_compile=False)
    train, test = split(len(labels), cell["seed"])
    own = [x[train] for x in features]
    model.fit(own, labels[train], batch_size=BATCH, epochs=cell["epochs"], verbose=0)
    truth = draw(cell["images"], 0, is_coloured=False)[1][test].astype(int)
    logits = model.predict([x[test] for x in features], batch_size=BATCH, verbose=0)
    return {
        "mean_iou": mean_iou(logits, truth),
        "rate": recipe.learning_rate, "steps": recipe.steps, "channels": options.channels,
    }  # fmt: skip


def run_command(cell: dict, options: argparse.Namespace) -> dict:
    """`keras-vit segment train` of all weights."""
    import PIL.Image

    from keras_vit.cli.main import main

    recipe = recipe_of(cell, cell["head"])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = ["segment", "train", "--quiet", "--output", folder / "run"]
        for part, arrays in zip(
            ("images", "masks"), draw(cell["images"], 0, cell["task"] == "scratch"), strict=True
        ):
            (folder / part).mkdir()
            words += [f"--{part}", folder / part]
            for index, array in enumerate(arrays):
                PIL.Image.fromarray(array).save(folder / part / f"{index:03}.png")
        (folder / "classes.txt").write_text("\n".join(CLASSES))
        model = "vit_ti16" if cell["task"] == "scratch" else options.network
        words += ["--classes", folder / "classes.txt", "--model", model]
        words += [
            "--image-size",
            SIZES[cell["task"]],
            "--head",
            cell["head"],
            "--batch-size",
            BATCH,
        ]
        words += ["--learning-rate", f"{recipe.learning_rate:.3g}", "--epochs", cell["epochs"]]
        words += ["--seed", cell["seed"], "--validation", 0.2]
        words += ["--warmup-steps", 0, "--clip-norm", "none"] if cell["plain"] else []
        if main(list(map(str, words))):
            raise RuntimeError("`keras-vit segment train` failed.")
        results = json.loads((folder / "run/results.json").read_text())
    found = {"mean_iou": results["mean IoU"], "rate": recipe.learning_rate}
    return {**found, "steps": recipe.steps}


def cells(options: argparse.Namespace) -> list[dict]:
    """Every run, as what its row is recognised by."""
    named = {"epochs": options.epochs, "images": options.images, "plain": options.plain}
    rows = []
    for task in options.tasks:
        for seed in options.seeds:
            own = {"task": task, "seed": seed, **named}
            if task == "frozen" and not options.plain:
                rows.append({**own, "head": "logistic", "times": 1})
            for head in options.heads:
                rows += [{**own, "head": head, "times": round(x, 3)} for x in options.times]
    return rows


def measure(cell: dict, options: argparse.Namespace) -> None:
    """Runs one cell and writes its row."""
    import keras

    keras.utils.clear_session()
    start = time.process_time()
    run = fit_head if cell["task"] == "frozen" else run_command
    found = (fit_tokens if cell["head"] == "logistic" else run)(cell, options)
    found["mean_iou"] = round(found["mean_iou"], 4)
    seconds = round(time.process_time() - start, 1)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    write_row({**cell, **found, "processor_seconds": seconds, "versions": versions}, options.output)


def table(rows: list[dict], task: str, plain: bool = False) -> list[str]:
    """Mean IoU in per cent by head and rate: the mean over the seeds, and the least."""
    rows = [row for row in rows if row["task"] == task and row["plain"] == plain]
    rows = [row for row in rows if row.get("channels", CHANNELS) == CHANNELS]
    times = sorted({row["times"] for row in rows} & {round(each, 3) for each in RATES})
    name = f"{task}, without warm-up and clipping" if plain else task
    heads = [name, *(f"{each:.2g} x the default rate" for each in times), "steps", "seeds"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for head in dict.fromkeys(row["head"] for row in rows):
        cells, own = [], [row for row in rows if row["head"] == head]
        for each in times:
            found = [100 * row["mean_iou"] for row in own if row["times"] == each]
            cells.append(f"{statistics.mean(found):.1f} ({min(found):.1f})" if found else "")
        cells.append(
            " and ".join(map(str, sorted({row["steps"] for row in own if "steps" in row})))
        )
        cells.append(str(len({row["seed"] for row in own})))
        lines.append(f"| {' | '.join([head, *cells])} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", help="folder of a trained network, for the task `frozen`")
    parser.add_argument("--tasks", nargs="+", choices=tuple(SIZES), default=tuple(SIZES))
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--times", nargs="+", type=float, default=RATES)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--channels", type=int, default=CHANNELS, help="of mlp and dpt on features")
    parser.add_argument("--plain", action="store_true", help="without warm-up and clipping")
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    if options.network is None and {*options.tasks} - {"scratch"}:
        parser.error("tasks other than `scratch` need --network FOLDER, see scripts/real-network")
    require("scikit-learn")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.touch()
    for cell in cells(options):
        lines = options.output.read_text().splitlines() if options.output else []
        if not any(cell.items() <= json.loads(line).items() for line in lines):
            measure(cell, options)
    lines = options.output.read_text().splitlines() if options.output else []
    for task in options.tasks:
        print("\n".join(["", *table([json.loads(line) for line in lines], task, options.plain)]))


if __name__ == "__main__":
    main()
