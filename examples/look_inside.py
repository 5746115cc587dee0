"""Trains a small ViT on cluttered digits, and plots its attention, features and weights.

    python examples/look_inside.py --pictures docs/pictures

An image of 20 x 28 pixels holds one digit of scikit-learn's set at a random position, among strokes
of other digits. Attention finds the digit, and positions in the same row or column have similar
embeddings. Prints the accuracy on test digits (0.94 with seed 0), and writes the pictures of
docs/analysis.md. Takes minutes on two cores.
"""

from __future__ import annotations

import argparse
import pathlib

import keras
import numpy as np

import keras_vit

SIZE = (20, 28)
PATCH = 4
BATCH_SIZE = 64


def scenes(digits, labels, rng):
    """Draws digits of 16 x 16 pixels at random positions in random colours among strokes."""
    images = np.zeros((len(digits), *SIZE, 3), "float32")
    for image, digit in zip(images, digits, strict=True):
        image += rng.uniform(20, 70, (1, 1, 3)) + rng.normal(0, 8, image.shape)
        for _ in range(3):  # quarters of other digits
            part = digits[rng.integers(len(digits))]
            y, x = rng.integers(0, 2, 2) * 4
            draw(image, np.kron(part[y : y + 4, x : x + 4], np.ones((2, 2))), rng)
        draw(image, np.kron(digit, np.ones((2, 2))), rng, clear=True)
    return np.clip(images, 0, 255), labels


def draw(image, strokes, rng, clear=False):
    """Draws strokes with values from 0 to 16 at a random position."""
    height, width = strokes.shape
    y = rng.integers(0, SIZE[0] - height + 1)
    x = rng.integers(0, SIZE[1] - width + 1)
    mask = strokes[:, :, None] / 16
    region = image[y : y + height, x : x + width]
    color = rng.uniform(150, 255, 3) if clear else rng.uniform(60, 180, 3)
    if clear:
        region[:] = image.mean(axis=(0, 1)) * 0.6
    region += mask * (color - region)


def load_data(count, seed):
    """Training images, and test images of 300 other digits."""
    from sklearn.datasets import load_digits

    digits, labels = load_digits(return_X_y=True)
    digits = digits.reshape(-1, 8, 8)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits))
    test, train = order[:300], rng.choice(order[300:], count)
    return scenes(digits[train], labels[train], rng), scenes(digits[test], labels[test], rng)


def build():
    config = keras_vit.make_config(
        patch_size=PATCH, width=64, depth=4, num_heads=4, mlp_dim=128, image_size=SIZE, classes=10
    )
    return keras_vit.build_vit(config, name="digits")


def train(model, images, labels, epochs):
    """Trains with AdamW, warm-up and cosine decay, as in quickstart.py."""
    steps = epochs * -(-len(images) // BATCH_SIZE)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=2e-3, warmup_steps=steps // 10
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(rate, weight_decay=0.5, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model.fit(images, labels, batch_size=BATCH_SIZE, epochs=epochs, verbose=2)


def draw_pictures(model, images, few, folder):
    """Draws the pictures of docs/analysis.md from test images; `few` are shown."""
    from keras_vit.analysis import plots

    relevance = keras_vit.analysis.class_relevance(model, few)
    relevance /= relevance.max(axis=(1, 2), keepdims=True) + 1e-12
    mean, axes = keras_vit.analysis.principal_axes(model, images, stage="block_1")
    components = keras_vit.analysis.project_patches(model, few, mean, axes, stage="block_1")
    figures = {
        "filters": plots.plot_patch_filters(keras_vit.analysis.patch_filters(model)),
        "positions": plots.plot_position_similarity(keras_vit.analysis.position_similarity(model)),
        "distance": plots.plot_attention_distance(
            keras_vit.analysis.mean_attention_distance(model, images[:128])
        ),
        "rollout": plots.plot_attention(few, keras_vit.analysis.attention_rollout(model, few)),
        "relevance": plots.plot_maps(few, relevance, "relevance"),
        "components": plots.plot_components(few, components),
        "norms": plots.plot_maps(few, keras_vit.analysis.token_norms(model, few), "norm of token"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110)
    return sorted(figures)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=20_000, help="training images")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=pathlib.Path, default=pathlib.Path("pictures"))
    parser.add_argument("--model", type=pathlib.Path, help="where to save the model, as .keras")
    parser.add_argument("--smoke", action="store_true", help="two steps")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.scenes, options.epochs = 2 * BATCH_SIZE, 1
    keras.utils.set_random_seed(options.seed)
    training, (images, labels) = load_data(options.scenes, options.seed)
    model = build()
    train(model, *training, options.epochs)
    _, accuracy = model.evaluate(images, labels, verbose=0)
    if options.model:
        model.save(options.model)
    few = images[np.unique(labels, return_index=True)[1][:6]]  # a zero, a one, ...
    names = draw_pictures(model, images, few, options.pictures)
    print(f"accuracy on {len(images)} test digits: {accuracy:.3f}; pictures: {', '.join(names)}")
    return accuracy


if __name__ == "__main__":
    main()
