"""Errors of a regression trained on random windows and on whole pictures.

    python benchmarks/regression.py --output regression.jsonl

Drawn pictures of 32 x 32 pixels with discs on noise. The numbers to predict:

- `share`: the share of the picture that its one to four discs cover, in per cent;
- `count`: how many discs there are, 1 to 8;
- `brightness`: the mean of the noise behind the discs, 60 to 180 of 255.

160 pictures train the small model of `keras_vit.train.plan_training` from random weights, with its
recipe at 32 pixels and one of two augmentations; 200 others test it. Prints a JSON line a run, then
the table of mean absolute errors. What stands in `--output` is not run again.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time

import numpy as np
from machine import write_row

SIZE = 32
TARGETS = ("share", "count", "brightness")
AUGMENTATIONS = {
    "windows of 50 to 100 % of the area": {"crop": "inception", "area_range": (0.5, 1.0)},
    "whole pictures": {"crop": "none"},
}


def draw(target: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures `(B, 32, 32, 3)`, uint8, and the number of each, float32 `(B, 1)`."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images, numbers = [], []
    for _ in range(count):
        level = rng.uniform(60, 180)
        image = rng.normal(level, 25, (SIZE, SIZE, 3))
        covered = np.zeros((SIZE, SIZE), bool)
        discs = rng.integers(1, 9 if target == "count" else 5)
        for _ in range(discs):
            radius = rng.uniform(1.5, 3) if target == "count" else rng.uniform(3, 7)
            y, x = rng.uniform(radius, SIZE - radius, 2)
            inside = np.hypot(rows - y, columns - x) <= radius
            covered |= inside
            image[inside] = rng.uniform(0, 255, 3)
        values = {"share": 100 * covered.mean(), "count": discs, "brightness": level}
        numbers.append([values[target]])
        images.append(image.clip(0, 255).astype("uint8"))
    return np.stack(images), np.array(numbers, "float32")


def measure(cell: dict, steps: int | None) -> dict:
    """Trains and tests a model."""
    import keras

    import keras_vit

    keras.utils.clear_session()
    keras.utils.set_random_seed(cell["seed"])
    parts = [
        keras_vit.read_arrays(*draw(cell["target"], count, seed), task="regression")
        for count, seed in ((cell["images"], cell["seed"]), (200, 1000 + cell["seed"]))
    ]
    plan = keras_vit.train.plan_training(cell["images"], task="regression")
    augmentation = keras_vit.data.Augmentation(**AUGMENTATIONS[cell["augmentation"]])
    recipe = plan.recipe.replace(augmentation=augmentation, image_size=SIZE)
    if steps:
        recipe = recipe.replace(steps=steps, warmup_steps=steps // 10)
    shape = (recipe.image_size, recipe.image_size, 3)
    options = {**plan.model_options, **recipe.model_options}
    model = keras_vit.create_model(plan.model, classes=1, input_shape=shape, **options)
    fitted = keras_vit.train.pretrain(model, parts[0], recipe, seed=cell["seed"], verbose=0)
    predictions = keras_vit.evaluate.predict_targets(fitted.model, parts[1])
    (score,) = predictions.score()
    return {"error": round(float(score.mae), 4), "steps": recipe.steps}


def cells(options: argparse.Namespace) -> list[dict]:
    """Every run, as what its row is recognised by."""
    return [
        {"target": target, "augmentation": name, "seed": seed, "images": options.images}
        for seed in options.seeds
        for target in options.targets
        for name in AUGMENTATIONS
    ]


def table(rows: list[dict]) -> list[str]:
    """Mean absolute error by target and augmentation: the mean over the seeds, and the range."""
    lines = [
        f"| target | {' | '.join(AUGMENTATIONS)} | seeds |",
        "|---" * (2 + len(AUGMENTATIONS)) + "|",
    ]
    for target in dict.fromkeys(row["target"] for row in rows):
        texts = []
        for name in AUGMENTATIONS:
            own = [row for row in rows if (row["target"], row["augmentation"]) == (target, name)]
            errors = [row["error"] for row in own]
            ends = f"{min(errors):.3g} to {max(errors):.3g}" if errors else ""
            texts.append(f"{statistics.mean(errors):.3g} ({ends})" if errors else "")
        seeds = len({row["seed"] for row in rows if row["target"] == target})
        lines.append(f"| {target} | {' | '.join(texts)} | {seeds} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--steps", type=int, help="instead of those of the recipe")
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    if options.output:
        options.output.touch()
    rows = []
    for cell in cells(options):
        lines = options.output.read_text().splitlines() if options.output else []
        done = [row for row in map(json.loads, lines) if cell.items() <= row.items()]
        if not done:
            start = time.process_time()
            row = {**cell, **measure(cell, options.steps)}
            done = [{**row, "processor_seconds": round(time.process_time() - start, 1)}]
            write_row(done[0], options.output)
        rows += done
    print("\n".join(["", *table(rows)]))


if __name__ == "__main__":
    main()
