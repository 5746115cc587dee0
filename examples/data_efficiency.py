"""Data efficiency of a ViT, a hybrid and a ResNet: a small version of the paper's Figure 4.

    python examples/data_efficiency.py

Three models with about the same cost per image are trained from random weights on 50 to 1,300
digits of 32 x 32 pixels, all for the same number of steps. Takes 40 minutes of processor time.
Writes results.json and accuracy.png; docs/experiments.md shows the accuracies to expect.
"""

from __future__ import annotations

import digits
import keras

import keras_vit

IMAGES = (50, 150, 450, 1300)
SIZE = {"image_size": 32, "channels": 1, "classes": digits.CLASSES}
TRANSFORMER = {"width": 64, "num_heads": 4, "mlp_dim": 128}

CONFIGS = {
    "ViT": keras_vit.make_config(patch_size=4, depth=5, **TRANSFORMER, **SIZE),
    "hybrid": keras_vit.make_config(
        patch_size=1, depth=3, stem=keras_vit.config.ResNetStem((1,)), **TRANSFORMER, **SIZE
    ),
    "BiT ResNet": keras_vit.ResNetConfig(stages=(1, 1), **SIZE),
}


def build(config):
    is_vit = isinstance(config, keras_vit.ViTConfig)
    return keras_vit.build_vit(config) if is_vit else keras_vit.build_resnet(config)


def main():
    options = digits.parse(__doc__, "data_efficiency", steps=250)
    counts = digits.columns(options, IMAGES)
    rows = {name: [[] for _ in counts] for name in CONFIGS}
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed, size=32)
        for column, count in enumerate(counts):
            few = digits.pick(train, count // digits.CLASSES, seed)
            for name, config in CONFIGS.items():
                keras.utils.set_random_seed(seed)
                data = digits.batches(few, options.steps, seed, digits.moving())
                accuracy = digits.train_and_test(build(config), data, options.steps, test)
                rows[name][column].append(accuracy)
    costs = {
        name: {
            "parameters": keras_vit.evaluate.count_parameters(config),
            "macs": keras_vit.evaluate.count_macs(config),
        }
        for name, config in CONFIGS.items()
    }
    digits.report(options, "training images", counts, rows, steps=options.steps, costs=costs)
    digits.plot_rows(options, counts, rows, "training images")


if __name__ == "__main__":
    main()
