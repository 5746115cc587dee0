"""Accuracy of a trained ViT after token merging without retraining.

    python examples/token_merging.py

A ViT with patches of one pixel (64 per digit) is trained without merging, rebuilt with
`num_merged_tokens` and the same weights, and tested without further training.
benchmarks/real_network.py measures the speed. Takes about five minutes on two cores. Writes
results.json and accuracy.png; docs/experiments.md shows the accuracies to expect.
"""

from __future__ import annotations

import digits
import keras
import numpy as np

import keras_vit

MERGED = (0, 2, 4, 6, 8, 10, 12, 14)


def build(**options):
    """Builds a small ViT with one patch per pixel and fixed sin-cos positions."""
    config = keras_vit.make_config(
        patch_size=1,
        width=64,
        depth=4,
        num_heads=4,
        mlp_dim=128,
        image_size=8,
        channels=1,
        classes=digits.CLASSES,
        position_embedding="sincos_2d",
        **options,
    )
    return keras_vit.build_vit(config)


def merge(model, count):
    """Rebuilds a model with `count` merged tokens per block and the same weights."""
    config = keras_vit.replace_fields(model.config, num_merged_tokens=count)
    merging = keras_vit.build_vit(config)
    merging.set_weights(model.get_weights())
    return merging


def test_accuracy(model, test):
    """Top-1 accuracy on the test images."""
    images, answers = test
    return float((np.argmax(model(images), axis=-1) == answers).mean())


def main():
    options = digits.parse(__doc__, "token_merging", steps=500)
    counts = digits.columns(options, MERGED)
    rows = {"test accuracy": [[] for _ in counts]}
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed)
        keras.utils.set_random_seed(seed)
        model = build()
        data = digits.batches(train, options.steps, seed, digits.moving())
        digits.train_and_test(model, data, options.steps, test)
        for cells, count in zip(rows["test accuracy"], counts, strict=True):
            cells.append(test_accuracy(merge(model, count), test))
    products = [keras_vit.evaluate.count_macs(merge(model, count)) for count in counts]
    shares = [round(count / products[0], 2) for count in products]
    digits.report(options, "merged per block", counts, rows, steps=options.steps, products=shares)
    digits.plot_rows(options, counts, rows, "of 64 tokens, merged in each of 4 blocks", "linear")


if __name__ == "__main__":
    main()
