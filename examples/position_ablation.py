"""Ablation of position embeddings: a small version of the paper's Appendix D.4.

    python examples/position_ablation.py

The same ViT learns digits without positions, with learned position embeddings in one dimension
(the paper's default) and in two, with relative positions, and with fixed sines and cosines. Takes
minutes on two cores. Writes results.json and accuracy.png; docs/experiments.md shows the accuracies
to expect.
"""

from __future__ import annotations

import digits
import keras

KINDS = {
    "none": "none",
    "1-D, learned": "learned",
    "2-D, learned": "learned_2d",
    "relative, learned": "relative",
    "2-D, fixed sines": "sincos_2d",
}
IMAGES = (100, 1300)


def main():
    options = digits.parse(__doc__, "position_ablation", steps=600)
    counts = digits.columns(options, IMAGES)
    rows = {name: [[] for _ in counts] for name in KINDS}
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed)
        for column, count in enumerate(counts):
            few = digits.pick(train, count // digits.CLASSES, seed)
            for name, kind in KINDS.items():
                keras.utils.set_random_seed(seed)
                data = digits.batches(few, options.steps, seed, digits.moving())
                model = digits.build_vit(position_embedding=kind)
                accuracy = digits.train_and_test(model, data, options.steps, test)
                rows[name][column].append(accuracy)
    digits.report(options, "position embedding, training images", counts, rows, steps=options.steps)
    digits.plot_rows(options, counts, rows, "training images")


if __name__ == "__main__":
    main()
