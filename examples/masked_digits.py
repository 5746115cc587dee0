"""Masked patch prediction on unlabelled digits, compared with training from scratch.

    python examples/masked_digits.py

A small version of the paper's self-supervision (Section 4.6, Appendix B.1.2): a ViT learns to
predict the mean colour of half of the patches of the training images, without labels. It is then
fine-tuned on 1, 5, 10 and 25 labelled images per digit. The same model is trained from random
weights on the same images with the same settings. Takes minutes on two cores. Writes results.json
and accuracy.png; docs/experiments.md shows the accuracies to expect.
"""

from __future__ import annotations

import digits
import keras

import keras_vit

SHOTS = (1, 5, 10, 25)
PATCH = 2


def pretrain(images, steps, seed):
    """Pre-trains a model on masked patches; returns it and its accuracy on masked patches."""
    model = digits.build_vit()
    masked = keras_vit.train.masked_patch_model(model)
    masked.compile(
        keras.optimizers.AdamW(digits.schedule(steps, 2e-3), weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    data = digits.batches(images, steps, seed, digits.moving())
    history = masked.fit(
        keras_vit.data.mask_patches(data, PATCH, seed=seed), shuffle=False, verbose=0
    )
    return model, history.history["accuracy"][-1]


def main():
    options = digits.parse(__doc__, "masked_digits", pretraining=4000, steps=300)
    counts = digits.columns(options, SHOTS)
    rows = {name: [[] for _ in counts] for name in ("from scratch", "pre-trained")}
    filled_in = []
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed)
        keras.utils.set_random_seed(seed)
        pretrained, masked_accuracy = pretrain(train, options.pretraining, seed)
        filled_in.append(masked_accuracy)
        weights = pretrained.get_weights()
        for column, shots in enumerate(counts):
            few = digits.pick(train, shots, seed)
            for name, row in rows.items():
                keras.utils.set_random_seed(seed)
                model = digits.build_vit()
                if name == "pre-trained":
                    model.set_weights(weights)
                data = digits.batches(few, options.steps, seed, digits.moving())
                row[column].append(digits.train_and_test(model, data, options.steps, test))
    facts = {"filled_in": filled_in, "pretraining": options.pretraining, "steps": options.steps}
    digits.report(options, "labels per digit", counts, rows, **facts)
    digits.plot_rows(options, counts, rows, "labels per digit")


if __name__ == "__main__":
    main()
