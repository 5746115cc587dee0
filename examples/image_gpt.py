"""Image GPT on digits: linear probes of every depth, and half images that it completes.

    python examples/image_gpt.py

A small version of the key figure of Image GPT (Chen et al., 2020): a transformer learns to predict
the pixels of unlabelled images, and a linear probe reads the mean of its tokens after each block.
Two ViTs of the same width and depth see as many images: one learns to fill in masked patches, one
to classify. Takes ten minutes a seed on two cores. Writes results.json, accuracy.png and sheet.png:
the upper halves of test images, completed at three temperatures below the originals.
"""

from __future__ import annotations

import digits
import keras
import numpy as np

import keras_vit

WIDTH, DEPTH, HEADS = 32, 6, 4
SHOTS = 100  # labels per digit
STAGES = ["position_embedding", *(f"block_{i}" for i in range(DEPTH))]


def adamw(steps):
    return keras.optimizers.AdamW(
        digits.schedule(steps, 2e-3), weight_decay=0.05, global_clipnorm=1.0
    )


def train_gpt(train, steps, seed):
    """Predicts pixels one after the other, in 17 shades of grey."""
    palette = keras_vit.image_gpt.fit_palette(train[0], colors=17, seed=seed)
    config = keras_vit.image_gpt.ImageGPTConfig(
        WIDTH, DEPTH, HEADS, image_size=8, channels=1, colors=17
    )
    model = keras_vit.image_gpt.build_image_gpt(config, palette)
    model.compile(adamw(steps), jit_compile=False)  # XLA compiles longer than it saves here
    model.fit(
        digits.batches(train, steps, seed, digits.moving()).map(lambda x, y: x),
        shuffle=False,
        verbose=0,
    )
    return model


def build_vit():
    return digits.build_vit(
        width=WIDTH, depth=DEPTH, num_heads=HEADS, mlp_dim=4 * WIDTH, pooling="gap"
    )


def train_masked(train, steps, seed):
    """Predicts the mean colours of half of the patches."""
    model = build_vit()
    masked = keras_vit.train.masked_patch_model(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    masked.compile(adamw(steps), loss, jit_compile=False)
    data = digits.batches(train, steps, seed, digits.moving())
    masked.fit(keras_vit.data.mask_patches(data, 2, seed=seed), shuffle=False, verbose=0)
    return model


def train_supervised(train, steps, seed):
    """Predicts the digit."""
    model = build_vit()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(steps), loss, jit_compile=False)
    model.fit(digits.batches(train, steps, seed, digits.moving()), shuffle=False, verbose=0)
    return model


MODELS = {
    "Image GPT": train_gpt,
    "ViT, masked patches": train_masked,
    "ViT, supervised": train_supervised,
}


def probe(model, train, test, stages, seed):
    """Accuracy of a ridge regression on the mean of the tokens, for every stage."""
    network = keras_vit.features_of(model, stages)
    network.compile(jit_compile=False)
    features, others = (
        {name: x.mean(axis=1) for name, x in network.predict(images, verbose=0).items()}
        for images in (train[0], test[0])
    )
    return [
        float(
            keras_vit.evaluate.few_shot_accuracy(
                features[name], train[1], others[name], test[1], (SHOTS,), (1.0,), seed
            )[SHOTS][0]
        )
        for name in stages
    ]


def draw_sheet(model, images, path):
    """Originals, and completions of their upper halves."""
    rows = [np.rint(images).astype("uint8")]
    for temperature in (1.0, 0.7, 0.0):
        rows.append(keras_vit.image_gpt.sample_pixels(model, images, temperature=temperature))
    sheet = keras_vit.image_gpt.image_sheet(np.concatenate(rows), columns=len(images))
    keras.utils.save_img(path, sheet, scale=False)


def main():
    options = digits.parse(__doc__, "image_gpt", steps=1500)
    stages = digits.columns(options, STAGES)
    rows = {name: [[] for _ in stages] for name in MODELS}
    depths = list(range(len(stages)))
    losses = []
    facts = {"test_nats_per_pixel": losses, "steps": options.steps, "shots": SHOTS}
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed)
        for name, train_model in MODELS.items():
            keras.utils.set_random_seed(seed)
            model = train_model(train, options.steps, seed)
            accuracies = probe(model, train, test, stages, seed)
            for cell, accuracy in zip(rows[name], accuracies, strict=True):
                cell.append(accuracy)
            if name == "Image GPT":
                losses.append(float(keras_vit.image_gpt.pixel_losses(model, test[0]).mean()))
                if seed == 0:
                    draw_sheet(model, test[0][:16], options.output / "sheet.png")
            print(seed, name, *(f"{100 * x:.1f}" for x in accuracies), flush=True)
            keras.utils.clear_session()
        digits.write_results(options, depths, rows, **facts)  # of the seeds so far
    digits.report(options, "probe after block", depths, rows, **facts)
    digits.plot_rows(options, depths, rows, "blocks before the probe", scale="linear")


if __name__ == "__main__":
    main()
