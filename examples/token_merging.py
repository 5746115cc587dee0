"""What merging tokens costs in accuracy: a trained ViT that is asked to do less.

    python examples/token_merging.py

A ViT that takes every pixel of a digit for a patch (64 of them) is trained without merging, then
built anew with `num_merged_tokens` and the same weights, and tested as it is. What that saves is
measured by benchmarks/token_merging.py. Some five minutes on two cores.
"""

from __future__ import annotations

import dataclasses

import digits
import keras
import numpy as np

import keras_vit

MERGED = (0, 2, 4, 6, 8, 10, 12, 14)


def build(**options):
    """A small ViT of one patch a pixel, with the places that needed the fewest images."""
    config = keras_vit.ViTConfig(
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
    """The same model, which merges so many tokens a block."""
    config = dataclasses.replace(model.config, num_merged_tokens=count)
    merging = keras_vit.build_vit(config)
    merging.set_weights(model.get_weights())
    return merging


def test_accuracy(model, test):
    """Share of the test images that are classified right."""
    images, answers = test
    return float((np.argmax(model(images), axis=-1) == answers).mean())


def main():
    options = digits.parse(__doc__, "token_merging", steps=500)
    rows = {"test accuracy": [[] for _ in MERGED]}
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed)
        keras.utils.set_random_seed(seed)
        model = build()
        data = digits.batches(train, options.steps, seed, digits.moving())
        digits.train_and_test(model, data, options.steps, test)
        for cells, count in zip(rows["test accuracy"], MERGED, strict=True):
            cells.append(test_accuracy(merge(model, count), test))
    products = [keras_vit.evaluate.count_macs(merge(model, count)) for count in MERGED]
    shares = [round(count / products[0], 2) for count in products]
    digits.report(options, "merged a block", MERGED, rows, steps=options.steps, products=shares)
    digits.plot_rows(options, MERGED, rows, "of 64 tokens, merged in each of 4 blocks", "linear")


if __name__ == "__main__":
    main()
