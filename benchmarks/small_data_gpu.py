"""The accuracies of small_data.py with more steps and at larger sizes, on an accelerator.

    python benchmarks/small_data_gpu.py pack PACK FOLDER --cifar10 CIFAR    with TensorFlow
    python benchmarks/small_data_gpu.py run PACK NETWORK --output rows.jsonl    with JAX alone
    python benchmarks/small_data_gpu.py table docs/benchmarks/small_data_gpu.jsonl

`pack` copies the encoded images that small_data.py reads into one file a set: the machine with the
accelerator needs no TensorFlow. Images, draws of every seed and recipes are those of small_data.py.
Each job (a set, a method, an image size) is a process of its own, and some run at a time, so no
time is measured. Classifiers on features are here for the larger size alone. Crops are made before
training, `VIEWS` of every image, of a quarter to the whole of its area, as in the plan of
`keras-vit train` (the rows named "small crops" had 5 % at least). Rows that are in the output are
not computed again.
"""

from __future__ import annotations

import argparse
import functools
import io
import multiprocessing
import os
import pathlib
import time

import numpy as np
import small_data
from machine import write_row

STEPS, BATCH, VIEWS = 200, 32, 8
# Changes of the recipe of `keras-vit train` for trained networks, and whether the head starts from
# a logistic probe (linear probing, then fine-tuning: https://arxiv.org/abs/2202.10054).
PLANS = {
    "LoRA": ({"lora_rank": 8, "learning_rate": 1e-3}, False),
    "LoRA, head from a probe": ({"lora_rank": 8, "learning_rate": 1e-3}, True),
    "last two blocks, AdamW": ({"learning_rate": 1e-4}, False),
    "full, AdamW": ({}, False),
    "full, AdamW, head from a probe": ({}, True),
    "full, SGD": ({"optimizer": "sgd", "learning_rate": 0.003}, False),
}
LEAST_AREA = 0.25  # of a crop
ON_FEATURES = {"few-shot, least squares": "ridge", "nearest neighbours": "knn"}
LARGER = {"textile": 392}
SCRATCH = "ViT from random weights"


def pack(options: argparse.Namespace) -> None:
    """Writes `<set>.npz`: encoded images and labels of the pool and of the test images."""
    folders = {"cifar10": options.cifar10, "textile": options.folder / "textile"}
    for name, folder in folders.items():
        sets, arrays = small_data.read_sets(name, folder), {}
        for part, images in sets.items():
            files = [pathlib.Path(path).read_bytes() for path in images.file_names()]
            arrays[f"{part} bytes"] = np.frombuffer(b"".join(files), "uint8")
            arrays[f"{part} ends"] = np.cumsum([len(file) for file in files])
            arrays[f"{part} labels"] = images.labels
        arrays["classes"] = np.array(sets["test"].class_names)
        np.savez(options.pack / f"{name}.npz", **arrays)


class Packed:
    """The images of a set: `pool` (with `more` behind it) and `test`."""

    def __init__(self, folder: pathlib.Path, name: str):
        with np.load(folder / f"{name}.npz") as file:
            arrays = dict(file)
        parts = {"pool": [part for part in ("pool", "more") if f"{part} labels" in arrays]}
        parts["test"] = ["test"]
        self.classes = [str(name) for name in arrays["classes"]]
        self.first = len(arrays["pool labels"])
        self.files, self.labels = {}, {}
        for name, found in parts.items():
            self.files[name] = [file for part in found for file in split(arrays, part)]
            self.labels[name] = np.concatenate([arrays[f"{part} labels"] for part in found])


def split(arrays: dict, part: str) -> list[bytes]:
    data, ends = arrays[f"{part} bytes"].tobytes(), arrays[f"{part} ends"]
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def resized(file: bytes, size: int, box=None):
    from PIL import Image

    image = Image.open(io.BytesIO(file)).convert("RGB")
    return image.resize((size, size), Image.Resampling.BILINEAR, box)


def whole(size: int, file: bytes) -> np.ndarray:
    return np.asarray(resized(file, size))


def crops(size: int, least_area: float, views: int, job: tuple[int, bytes]) -> np.ndarray:
    """Random windows as of Table 4: a share of the area, sides of 3:4 to 4:3, half mirrored."""
    from PIL import Image

    number, file = job
    rng, found = np.random.default_rng(number), []
    width, height = Image.open(io.BytesIO(file)).size
    while len(found) < views:
        area, ratio = rng.uniform(least_area, 1), np.exp(rng.uniform(*np.log([3 / 4, 4 / 3])))
        w, h = np.sqrt(area * ratio * width * height), np.sqrt(area / ratio * width * height)
        if w > width or h > height:
            continue
        left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
        window = np.asarray(resized(file, size, (left, top, left + w, top + h)))
        found.append(window[:, ::-1] if rng.integers(2) else window)
    return np.stack(found)


def prepare(packed: Packed, folder: pathlib.Path, key: str, size: int, scratch: bool) -> None:
    """Writes the images of a set at a size, and crops of those to train on."""
    views = 4 * VIEWS if scratch else VIEWS
    with multiprocessing.Pool() as pool:
        for part, files in packed.files.items():
            images = pool.map(functools.partial(whole, size), files, chunksize=32)
            np.save(folder / f"{key} {part}.npy", np.stack(images))
        cut = functools.partial(crops, size, LEAST_AREA, views)
        np.save(
            folder / f"{key} crops.npy", np.stack(pool.map(cut, enumerate(packed.files["pool"])))
        )


def jobs_of(names: list[str], steps: int) -> list[dict]:
    """What is computed, the most wanted first."""
    found = [{"set": s, "kind": "features", "size": LARGER[s]} for s in names if s in LARGER]
    larger = [
        {"set": s, "kind": "plan", "method": next(iter(PLANS)), "size": LARGER[s]}
        for s in names
        if s in LARGER
    ]
    for number, method in enumerate(PLANS):
        found += [{"set": name, "kind": "plan", "method": method, "size": 224} for name in names]
        found += [] if number else larger
        if number == 1:
            for name in names:
                found.append({"set": name, "kind": "scratch", "method": SCRATCH, "size": 64})
    return [{**job, "steps": steps} for job in found]


def key_of(job: dict) -> str:
    return f"{job['set']} {job['size']}" + " scratch" * (job["kind"] == "scratch")


def run(options: argparse.Namespace) -> None:
    end = time.monotonic() + 60 * options.minutes
    options.work.mkdir(exist_ok=True, parents=True)
    jobs = [job for job in jobs_of(options.sets, options.steps) if job["kind"] in options.kinds]
    if options.methods:
        jobs = [job for job in jobs if job.get("method") in (None, SCRATCH, *options.methods)]
    if options.smaller:
        jobs = [{**job, "size": options.smaller} for job in jobs]
    packed = {name: Packed(options.pack, name) for name in options.sets}
    for key, job in {key_of(job): job for job in jobs}.items():
        if not (options.work / f"{key} crops.npy").exists():
            prepare(packed[job["set"]], options.work, key, job["size"], job["kind"] == "scratch")
        print("prepared", key, flush=True)
    known = {name: getattr(options, name) for name in ("pack", "work", "network", "output")}
    known |= {"seeds": options.seeds, "end": end, "per_class": options.per_class}
    known["policy"] = options.policy
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes, maxtasksperchild=1) as pool:
        for words in pool.imap_unordered(run_job, [{**known, **job} for job in jobs], chunksize=1):
            print(words, flush=True)


def run_job(job: dict) -> str:
    """Writes the rows of a job; returns what happened."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    words = f"{key_of(job)} {job.get('method', job['kind'])}"
    if time.monotonic() > job["end"]:
        return f"{words}: no time left"
    start = time.monotonic()
    import keras

    if job["kind"] != "features":
        keras.config.set_dtype_policy(job["policy"])
    try:
        way = {"features": on_features, "plan": planned, "scratch": scratch}
        way[job["kind"]](Cells(job))
    except Exception as error:  # the other jobs go on
        return f"{words}: FAILED {type(error).__name__} {str(error)[-400:]}"
    return f"{words}: {time.monotonic() - start:.0f} s"


class Cells:
    """The draws of a job, and where their rows go."""

    def __init__(self, job: dict):
        import jax
        import keras

        self.job, self.packed = job, Packed(job["pack"], job["set"])
        self.classes = len(self.packed.classes)
        self.images = {
            part: np.load(job["work"] / f"{key_of(job)} {part}.npy", mmap_mode="r")
            for part in ("pool", "test", "crops")
        }
        self.facts = {"device": jax.devices()[0].device_kind}
        self.facts |= {"keras": keras.__version__, "jax": jax.__version__}
        self.facts["policy"] = keras.config.dtype_policy().name

    def __iter__(self):
        """Images a class, seed, and the positions drawn from the pool."""
        from keras_vit.evaluate.few_shot import pick_shots

        labels = self.packed.labels["pool"]
        for per_class in self.job["per_class"] or small_data.PER_CLASS[self.job["set"]]:
            few = per_class <= small_data.FIRST or self.job["set"] == "textile"
            pool = labels[: self.packed.first] if few else labels
            for seed in self.job["seeds"]:
                yield per_class, seed, pick_shots(pool, per_class, seed)

    def labels_of(self, chosen):
        return self.packed.labels["pool"][chosen]

    def missing(self, method: str, per_class: int, seed: int) -> bool:
        cell = (self.job["set"], method, self.job["size"], per_class, seed)
        names = ("set", "method", "size", "per_class", "seed")
        rows = small_data.read_rows(self.job["output"])
        return time.monotonic() < self.job["end"] and cell not in [
            tuple(row[name] for name in names) for row in rows
        ]

    def write(self, method: str, per_class: int, seed: int, scores, **facts) -> None:
        labels = self.packed.labels["test"]
        right = np.argmax(scores, -1) == labels
        recall = {
            name: round(float(right[labels == label].mean()), 4)
            for label, name in enumerate(self.packed.classes)
        }
        row = {"set": self.job["set"], "method": method, "size": self.job["size"]}
        row |= {"per_class": per_class, "seed": seed, "accuracy": round(float(right.mean()), 4)}
        write_row({**row, "recall": recall, **facts, **self.facts}, self.job["output"])

    def batches(self, chosen, steps: int, seed: int):
        """Batches of crops: every image once an epoch, another crop in each."""
        rng, views = np.random.default_rng(seed), self.images["crops"].shape[1]
        one_hot, number = np.eye(self.classes, dtype="float32")[self.labels_of(chosen)], 0
        order = np.empty(0, int)
        for _ in range(steps):
            while len(order) < BATCH:
                order, number = np.append(order, rng.permutation(len(chosen))), number + 1
            rows, order = order[:BATCH], order[BATCH:]
            view = rng.integers(views, size=len(rows))
            yield self.images["crops"][chosen[rows], view].astype("float32"), one_hot[rows]


def open_network(job: dict):
    import keras_vit

    return keras_vit.from_pretrained(job["network"], input_shape=(job["size"], job["size"], 3))


def predictions(model, images):
    """Batches of one size: one shape is compiled."""
    size, found = 50, []
    for start in range(0, len(images), size):
        batch = np.asarray(images[start : start + size], "float32")
        padded = np.pad(batch, [(0, size - len(batch)), *[(0, 0)] * 3])
        found.append(np.asarray(model.predict_on_batch(padded))[: len(batch)])
    return np.concatenate(found)


def on_features(cells: Cells) -> None:
    """Classifiers on the tokens of the frozen network."""
    import keras

    import keras_vit
    from keras_vit.evaluate.attentive import batched

    network = open_network(cells.job)
    tokens = keras.Model(network.inputs, network.get_layer("encoder_norm").output)
    found = {part: predictions(tokens, cells.images[part]) for part in ("pool", "test")}
    for method, kind in ON_FEATURES.items():
        x, test = (found[part][:, 0] for part in found)  # the class token
        for per_class, seed, chosen in cells:
            if not cells.missing(method, per_class, seed):
                continue
            keras.utils.set_random_seed(seed)
            y = cells.labels_of(chosen)
            setting = 2.0**10
            if kind == "knn":
                setting = best_setting(kind, x[chosen], y, cells.classes, seed)
            head = keras_vit.evaluate.fit_head(kind, x[chosen], y, cells.classes, setting)
            cells.write(method, per_class, seed, batched(head, test), setting=setting)


def best_setting(kind: str, x, y, classes: int, seed: int) -> float:
    import keras_vit

    found = keras_vit.evaluate.cross_validate(kind, x, y, classes, seed=seed)
    return max(found, key=found.get)


def planned(cells: Cells) -> None:
    """The trained network, fine-tuned by one of `PLANS`."""
    import keras

    import keras_vit
    from keras_vit.models.lora import add_lora
    from keras_vit.train import plan_training

    method, steps = cells.job["method"], cells.job["steps"]
    changes, from_probe = PLANS[method]
    network = open_network(cells.job)
    features = predictions(network, cells.images["pool"]) if from_probe else None
    if method.startswith("last"):
        small_data.freeze(network)
    model = keras_vit.adapt_model(network, cells.classes)
    recipe = plan_training(1, pretrained=True).recipe
    recipe = recipe.replace(steps=steps, warmup_steps=steps // 10, **changes)
    if recipe.lora_rank:
        add_lora(model, recipe.lora_rank)
    train = trainer(model, recipe.build_optimizer(1), 0.0)
    initial = model.get_weights()
    for per_class, seed, chosen in cells:
        if not cells.missing(method, per_class, seed):
            continue
        keras.utils.set_random_seed(seed)
        model.set_weights(initial)
        if features is not None:
            y = cells.labels_of(chosen)
            x = features[chosen]
            best = best_setting("logistic", x, y, cells.classes, seed)
            head = keras_vit.evaluate.fit_head("logistic", x, y, cells.classes, best)
            model.get_layer("head").set_weights(head.get_weights())
        train(cells.batches(chosen, steps, seed), steps)
        scores = predictions(model, cells.images["test"])
        facts = {"steps": steps, "batch": BATCH, "learning_rate": recipe.learning_rate}
        cells.write(method, per_class, seed, scores, **facts)


def trainer(model, optimizer, label_smoothing: float):
    """A function that trains from a fresh optimizer; the step is compiled once."""
    import keras

    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing)
    model.compile(optimizer, loss)
    optimizer.build(model.trainable_variables)
    fresh = [np.array(variable) for variable in optimizer.variables]

    def train(batches, steps: int) -> None:
        for variable, value in zip(optimizer.variables, fresh, strict=True):
            variable.assign(value)
        model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)

    return train


def scratch(cells: Cells) -> None:
    """The model and recipe of `keras-vit train` without a trained network."""
    import keras

    import keras_vit

    def build(plan):
        size, options = cells.job["size"], {**plan.model_options, **plan.recipe.model_options}
        shape = (size, size, 3)
        return keras_vit.create_model(
            plan.model, classes=cells.classes, input_shape=shape, **options
        )

    trainers = {}
    for per_class, seed, chosen in cells:
        if not cells.missing(SCRATCH, per_class, seed):
            continue
        keras.utils.set_random_seed(seed)
        plan = keras_vit.train.plan_training(len(chosen))
        recipe = plan.recipe.replace(steps=plan.recipe.steps * cells.job["steps"] // STEPS)
        recipe = recipe.replace(warmup_steps=recipe.steps // 10)
        if per_class not in trainers:
            model = build(plan)
            optimizer = recipe.build_optimizer(len(chosen))
            trainers[per_class] = model, trainer(model, optimizer, 0.1)
        model, train = trainers[per_class]
        model.set_weights(build(plan).get_weights())
        train(cells.batches(chosen, recipe.steps, seed), recipe.steps)
        scores = predictions(model, cells.images["test"])
        cells.write(SCRATCH, per_class, seed, scores, steps=recipe.steps, batch=BATCH)


def tables(rows: list[dict]) -> list[list[str]]:
    """Accuracy and the recall of the worst class, by set, images a class, method and size."""
    found = []
    for name, title in small_data.SETS.items():
        own = [row for row in rows if row["set"] == name]
        sizes = small_data.PER_CLASS[name]
        lines = [f"| {title}: images a class | pixels | {' | '.join(map(str, sizes))} |", "rule"]
        before = [f"{method}, small crops" for method in PLANS]
        for method in (*ON_FEATURES, *before, *PLANS, SCRATCH):
            for size in sorted({row["size"] for row in own if row["method"] == method}):
                cells = []
                for per_class in sizes:
                    key = (method, size, per_class)
                    seeds = [r for r in own if (r["method"], r["size"], r["per_class"]) == key]
                    worst = [min(row["recall"].values()) for row in seeds]
                    accuracy = small_data.with_error([row["accuracy"] for row in seeds])
                    cells.append(f"{accuracy} ({100 * np.mean(worst):.0f})" if seeds else accuracy)
                lines.append(f"| {method} | {size} | {' | '.join(cells)} |")
        found.append(lines)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    path = pathlib.Path
    one = commands.add_parser("pack")
    one.add_argument("pack", type=path)
    one.add_argument("folder", type=path, help="that scripts/real-network wrote")
    one.add_argument("--cifar10", type=path, required=True, help="has train/ and test/")
    one = commands.add_parser("run")
    one.add_argument("pack", type=path)
    one.add_argument("network", type=path, help="network/ of that folder")
    one.add_argument("--output", type=path, required=True, help="JSON lines")
    one.add_argument("--work", type=path, default=path("/tmp/small_data_gpu"))
    one.add_argument("--sets", nargs="+", choices=small_data.SETS, default=list(small_data.SETS))
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--per-class", type=int, nargs="+", help="by default all")
    one.add_argument("--steps", type=int, default=STEPS)
    kinds = ["features", "plan", "scratch"]
    one.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    one.add_argument("--methods", nargs="+", help="of a network that is fine-tuned: of `PLANS`")
    one.add_argument("--policy", default="mixed_bfloat16", help="of training")
    one.add_argument("--smaller", type=int, help="pixels, to try it")
    one.add_argument("--processes", type=int, default=7)
    one.add_argument("--minutes", type=float, default=60, help="starts no cell after")
    one = commands.add_parser("table")
    one.add_argument("rows", type=path)
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    if options.command == "table":
        for lines in tables(small_data.read_rows(options.rows)):
            print("\n".join(lines))
    else:
        {"pack": pack, "run": run}[options.command](options)
