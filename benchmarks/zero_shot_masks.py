"""Mean IoU of maps from the names of classes, on composed pictures.

    scripts/real-network /tmp/real
    python benchmarks/zero_shot_masks.py /tmp/real --cifar10 CIFAR10 --output zero_shot_masks.jsonl

The image tower is that of contrastive.py, locked; its text tower is trained there on whole
photographs and their captions, without masks. Then `zero_shot_segmenter` gives maps of pictures
whose masks are known by how they are composed:

- `CIFAR-10`: mosaics of four held-out photographs of 112 x 112 pixels, each of its class. Captions
  are those of contrastive.py;
- `digits`: the pictures of dense.py, handwritten digits on parts of photographs. Texts are trained
  on such pictures with one digit, whose captions name it, and on parts of photographs without one,
  which are called "background".

Rows tell how the image tower pools in training and what is done to patches (`VARIANTS`). `linear`
is a logistic regression on the same patches, trained with masks of other pictures; `chance` gives
each patch a random class. Needs scikit-learn and scikit-image. `--picture FILE` draws the maps of
the first seed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import contrastive
import dense
import keras
import numpy as np
import PIL.Image
import tensorflow as tf
from machine import require, write_row

import keras_vit
from keras_vit.image_text import zero_shot_segmenter

SIZE, CELL = 224, 112
# How the image is pooled when texts are trained, and whether patches attend in the last block.
VARIANTS = {
    "class token, values of the last block": ("token", False),
    "class token, whole last block": ("token", True),
    "mean of the patches": ("gap", True),
}
PICTURES = {"train": 200, "test": 100}
PHOTOGRAPHS = 1000  # to train texts on
MASKED_PATCHES = 20_000  # to train the linear head on
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SENTENCES = ("a photo of the digit {}.", "the digit {}.", "a {} on a photo.")
BACKGROUND = ("a photo of the background.", "the background.", "a photo without a digit.")


def digit_captions(name):
    return [x.format(name) for x in SENTENCES] if name in DIGITS else list(BACKGROUND)


def image_tower(options, pooling):
    return keras_vit.from_pretrained(
        options.folder / "network", input_shape=(SIZE, SIZE, 3), include_top=False, pooling=pooling
    )


def cifar10(options):
    """Photographs with classes to train texts on, mosaics with masks, names and captions."""
    train, test = (keras_vit.read_folder(options.cifar10 / part) for part in ("train", "test"))
    rng = np.random.default_rng(0)
    order = rng.permutation(train.num_images)
    photographs = train.subset(np.sort(order[:PHOTOGRAPHS]))
    chosen = {"train": order[PHOTOGRAPHS:], "test": rng.permutation(test.num_images)}
    sets = {"train": train, "test": test}
    mosaics = {
        part: mosaic(sets[part], chosen[part][: 4 * count]) for part, count in PICTURES.items()
    }
    names = list(train.class_names)
    return photographs, mosaics, names, contrastive.captions, contrastive.SENTENCES


def mosaic(images, chosen):
    """Pictures of four photographs each, and their class maps."""
    cells = np.zeros((len(chosen), CELL, CELL, 3), "uint8")
    for cell, index in zip(cells, chosen, strict=True):
        with PIL.Image.open(os.fsdecode(images.items[index])) as photograph:
            cell[:] = photograph.convert("RGB").resize((CELL, CELL), PIL.Image.Resampling.BICUBIC)
    labels = np.repeat(np.repeat(images.labels[chosen][:, None, None], CELL, 1), CELL, 2)
    return join(cells), join(labels.astype("uint8"))


def join(cells):
    x = cells.reshape(-1, 2, 2, *cells.shape[1:]).swapaxes(2, 3)  # (B, 2, h, 2, w, ...)
    return x.reshape(-1, SIZE, SIZE, *cells.shape[3:])


def digits(options):
    """The same of digits on photographs, enlarged to the size of the network."""
    images, _, _, labels = dense.compose(4 * PHOTOGRAPHS, 0, test=False)
    single = [index for index, own in enumerate(labels) if len(own) == 1][: PHOTOGRAPHS * 10 // 11]
    plain = backgrounds(PHOTOGRAPHS - len(single))
    classes = [labels[index][0] + 1 for index in single] + [0] * len(plain)
    names = ["background", *DIGITS]
    pixels = enlarge(np.concatenate([images[single], plain]))
    photographs = keras_vit.data.read_arrays(pixels, np.array(classes), names)
    pictures = {}
    for part, count in PICTURES.items():
        drawn, maps, *_ = dense.compose(count, 1, test=part == "test")
        pictures[part] = enlarge(drawn), enlarge(maps[..., None], "nearest")[..., 0]
    return photographs, pictures, names, digit_captions, digit_captions


def backgrounds(count):
    """Parts of the photographs of dense.py, without digits."""
    rng = np.random.default_rng(2)
    parts = np.zeros((count, dense.SIZE, dense.SIZE, 3), "uint8")
    for part in parts:
        source = dense.photographs()[rng.integers(5)]
        source = source[:, : source.shape[1] * 2 // 3]
        side = int(rng.uniform(0.6, 1.0) * min(source.shape[:2]))
        y, x = (rng.integers(0, each - side + 1) for each in source.shape[:2])
        part[:] = PIL.Image.fromarray(source[y : y + side, x : x + side]).resize((dense.SIZE,) * 2)
    return parts


def enlarge(pixels, method="bilinear"):
    return tf.cast(tf.round(tf.image.resize(pixels, (SIZE, SIZE), method)), tf.uint8).numpy()


SETS = {"CIFAR-10": cifar10, "digits": digits}


def pooled(image, photographs, key, options):
    """Vectors of whole photographs, of unit length."""
    folder = options.features / key.replace(" ", "-")
    towers = contrastive.make_towers(image, "softmax", 1, 0)
    return np.array(keras_vit.image_text.image_features(towers, photographs, folder).values)


def patches_of(segmenter):
    """From pictures to the patches that `segmenter` compares with texts, before the unit length."""
    return keras.Model(segmenter.inputs, segmenter.get_layer("unit_length").input)


def measure_maps(segmenter, pictures, maps, names):
    masks = keras_vit.segmentation.read_mask_arrays(pictures, maps, names)
    return keras_vit.segmentation.evaluate_masks(segmenter, masks)


def linear_head(segmenter, pictures, names):
    """Mean IoU of a logistic regression on the patches, with masks of other pictures."""
    reader = patches_of(segmenter)
    sides = {part: reader.predict(x, batch_size=16, verbose=0) for part, (x, _) in pictures.items()}
    grid = int(sides["train"].shape[1] ** 0.5)
    targets = majority(pictures["train"][1], grid, len(names)).ravel()
    chosen = np.random.default_rng(0).permutation(len(targets))[:MASKED_PATCHES]
    rows = sides["train"].reshape(-1, sides["train"].shape[-1])[chosen]
    mean, deviation = rows.mean(0), rows.std(0)
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=0.1, max_iter=200)
    fitted.fit((rows - mean) / deviation, targets[chosen])
    logits = fitted.decision_function(
        ((sides["test"] - mean) / deviation).reshape(-1, rows.shape[1])
    )
    whole = np.full((len(logits), len(names)), -1e9, "float32")
    whole[:, fitted.classes_] = logits
    return score(whole.reshape(-1, grid, grid, len(names)), pictures["test"][1], names)


def majority(maps, grid, classes):
    """The class of most pixels of each patch, `(B, grid, grid)`."""
    each = maps.shape[1] // grid
    x = maps.reshape(len(maps), grid, each, grid, each)
    return np.argmax([(x == label).sum((2, 4)) for label in range(classes)], 0)


def score(logits, maps, names):
    """Mean IoU and shares of pixels of logits of patches, as of a segmenter."""
    predicted = tf.image.resize(logits, maps.shape[1:]).numpy().argmax(-1)
    counts = np.bincount(
        (maps.astype(int) * len(names) + predicted).ravel(), minlength=len(names) ** 2
    )
    confusion = counts.reshape(len(names), -1)
    return keras_vit.segmentation.SegmentationResult(tuple(names), confusion, len(maps))


def chance(maps, names):
    random = np.random.default_rng(0).random((len(maps), 16, 16, len(names)), "float32")
    return score(random, maps, names)


def measure(options, rows):
    there = {(row["set"], row["who"], row["seed"]) for row in rows}
    drawn = []
    for title in options.sets:
        photographs, pictures, names, captions, sentences = SETS[title](options)
        texts = [text for name in names for text in captions(name)]
        lucky = chance(pictures["test"][1], names)
        for who, (pooling, attends) in VARIANTS.items():
            image = image_tower(options, pooling)
            build = functools.partial(
                zero_shot_segmenter, class_names=names, templates=sentences, last_attention=attends
            )
            linear = None
            for seed in options.seeds:
                wanted = (title, who, seed) not in there
                if not wanted and not (options.picture and seed == options.seeds[0]):
                    continue
                values = pooled(image, photographs, f"{title} {pooling}", options)
                towers, losses, seconds = contrastive.train(
                    image, "softmax", "labels", seed, photographs, values, captions, texts
                )
                model = build(towers)
                if seed == options.seeds[0]:
                    drawn.append((title, who, model, pictures["test"], names))
                if not wanted:
                    continue
                found = measure_maps(model, *pictures["test"], names)
                linear = linear or linear_head(model, pictures, names)
                write_row({
                    "set": title, "who": who, "seed": seed, "mean_iou": round(found.mean_iou, 4),
                    "pixels": round(found.pixel_accuracy, 4),
                    "linear": round(linear.mean_iou, 4), "chance": round(lucky.mean_iou, 4),
                    "linear_pixels": round(linear.pixel_accuracy, 4),
                    "chance_pixels": round(lucky.pixel_accuracy, 4),
                    "pictures": len(pictures["test"][0]), "loss": round(losses[-1], 4),
                    "processor_s": round(seconds, 1),
                }, options.output)  # fmt: skip
    return drawn


def table(rows: list[dict]) -> list[str]:
    """Mean IoU in per cent: the mean over the seeds, with the least and the greatest."""
    lines = ["| pictures | patches | chance | by names | linear head, with masks |", "rule"]
    for title, who in dict.fromkeys((row["set"], row["who"]) for row in rows):
        own = [row for row in rows if (row["set"], row["who"]) == (title, who)]
        cells = [
            contrastive.per_cent([row[key] for row in own])
            for key in ("chance", "mean_iou", "linear")
        ]
        lines.append(f"| {title} | {who} | {' | '.join(cells)} |")
    return lines


def draw(drawn, path, count=5):
    """Pictures above their masks and the maps of every variant, a block for each set."""
    blocks = []
    for title in dict.fromkeys(each[0] for each in drawn):
        own = [each for each in drawn if each[0] == title]
        pictures, maps = (x[:count] for x in own[0][3])
        shown = [pictures, [colour(*pair) for pair in zip(pictures, maps, strict=True)]]
        for _, _, model, _, _ in own:
            shown.append([
                colour(x, keras_vit.segmentation.predict_masks(model, x)) for x in pictures
            ])  # fmt: skip
        blocks.append(np.concatenate([np.concatenate(row, axis=1) for row in shown]))
    whole = PIL.Image.fromarray(np.concatenate(blocks, axis=1))
    whole.resize([side // 2 for side in whole.size]).save(path, quality=90)


def colour(picture, class_map):
    return keras_vit.segmentation.draw_classes(picture, class_map, opacity=0.6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="that scripts/real-network wrote")
    parser.add_argument("--cifar10", type=pathlib.Path, help="has train/ and test/")
    parser.add_argument("--features", type=pathlib.Path, required=True, help="where they are kept")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="JSON lines")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()
    require("scikit-image", "scikit-learn")
    options.output.touch()
    rows = [json.loads(line) for line in options.output.read_text().splitlines()]
    drawn = measure(options, rows)
    if options.picture:
        draw(drawn, options.picture)


if __name__ == "__main__":
    main()
