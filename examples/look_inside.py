"""Draws attention, features and learned weights of a trained network on photographs.

    scripts/real-network NETWORK       # DINOv2's ViT-S/14, trained further for saliency
    pip install scikit-image           # which has the photographs
    python examples/look_inside.py NETWORK/network --pictures docs/pictures

Writes the pictures of docs/analysis.md and of the README, prints how many outlier patches there are
and how often the nearest neighbour of a quarter of a photograph is another quarter of it. Takes
minutes on two cores, and 4 GB of memory. The photographs are in the public domain or CC0: Eileen
Collins (NASA), Chelsea (Stefan van der Walt), coffee (Rachel Michetti), a Falcon 9 (SpaceX).
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib

import keras
import numpy as np

import keras_vit
from keras_vit.analysis import plots

SHOWN = ("astronaut", "chelsea", "coffee", "rocket")
MORE = ("brick", "camera", "coins", "grass", "gravel", "hubble_deep_field", "moon", "retina")
CARDS = 192  # pixels of a picture in photographs.jpg


def read_photographs(names, size):
    """Central squares of scikit-image's photographs, `(B, size, size, 3)` in [0, 255]."""
    import skimage.data

    images = [plots.as_rgb(getattr(skimage.data, name)()) for name in names]
    return np.stack([resize(crop(image, min(image.shape[:2])), size) for image in images])


def crop(image, side):
    top, left = (np.array(image.shape[:2]) - side) // 2
    return image[top : top + side, left : left + side]


def resize(image, size):
    """An image in [0, 1] as pixels in [0, 255], without aliasing."""
    pixels = keras.ops.image.resize(image, (size, size), "bicubic", antialias=True)
    return np.clip(255 * np.asarray(pixels), 0, 255).round()


def load(path, size):
    if path is None:  # a test of this script
        config = keras_vit.make_config(
            patch_size=14, width=24, depth=2, num_heads=2, mlp_dim=48, image_size=size, classes=None
        )
        return keras_vit.build_vit(config)
    return keras_vit.from_pretrained(path, input_shape=(size, size, 3))


def components_of(model, images):
    """Principal components of each photograph by itself."""
    each = [keras_vit.analysis.patch_components(model, image[None])[0] for image in images]
    return np.stack([(x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1)) for x in each])


def draw_cards(images, rollout, components):
    """Photographs, and below them rollout and components, edge to edge: right on every page."""
    low, high = np.percentile(components, (1, 99), axis=(1, 2), keepdims=True)
    colors = plots.component_colors(np.clip((components - low) / (high - low), 0, 1))
    repeats = -(-CARDS // colors.shape[1])
    rows = [
        images / 255,
        [plots.overlay_attention(*pair) for pair in zip(images, rollout, strict=True)],
        colors.repeat(repeats, axis=1).repeat(repeats, axis=2),
    ]
    return np.concatenate(
        [np.concatenate([resize(x, CARDS) for x in row], axis=1) for row in rows]
    ).astype("uint8")


def relevance_of(backbone, images):
    """Two photographs side by side, and relevance for either: the head knows each by its token."""
    tokens = backbone.predict(images, verbose=0)
    tokens = tokens - tokens.mean(axis=0)
    head = keras.layers.Dense(len(images), use_bias=False)
    model = keras.Model(backbone.input, head(backbone.output))
    head.kernel.assign((tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).T)
    half = images.shape[2] // 2
    middle = slice(half - half // 2, half - half // 2 + half)
    pair = np.concatenate([images[1][:, middle], images[2][:, middle]], axis=1)
    pairs = np.stack([pair, pair])
    return pairs, keras_vit.analysis.class_relevance(model, pairs, [1, 2], batch_size=1)


def draw_neighbors(model, images):
    """Quarters of photographs, and the nearest other quarters; the share from the same picture."""
    size = model.input_shape[1]
    half = images.shape[1] // 2
    quarters = np.stack(
        [
            resize(image[top : top + half, left : left + half] / 255, size)
            for image in images
            for top in (0, half)
            for left in (0, half)
        ]
    )
    indices, similarities = keras_vit.analysis.nearest_neighbors(model, quarters, quarters, 4)
    same = np.mean(indices[:, 1] // 4 == np.arange(len(quarters)) // 4)
    chosen = [4 * number + 1 for number in range(min(6, len(images)))]
    figure = plots.new_figure(1.4 * len(chosen), 5.9)
    for (row, column), axis in np.ndenumerate(figure.subplots(4, len(chosen), squeeze=False)):
        i = chosen[column]
        plots.show_image(axis, quarters[indices[i, row]], f"{similarities[i, row]:.2f}")
    return figure, same


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a folder of transformers, or what it is called")
    parser.add_argument("--pictures", type=pathlib.Path, default=pathlib.Path("pictures"))
    parser.add_argument("--smoke", action="store_true", help="a random model on noise")
    options = parser.parse_args(arguments)
    if options.smoke:
        large = small = load(None, 56)
        images = gallery = np.random.default_rng(0).uniform(0, 255, (4, 56, 56, 3)).round()
    elif options.model is None:
        parser.error("name a model, as in the first lines of this file")
    elif importlib.util.find_spec("skimage") is None:
        parser.error("the photographs need scikit-image: pip install scikit-image")
    else:
        images, gallery = read_photographs(SHOWN, 518), read_photographs(SHOWN + MORE, 448)
        large, small = load(options.model, 518), load(options.model, 224)
    few = np.stack([resize(image / 255, small.input_shape[1]) for image in images])

    analysis = keras_vit.analysis
    rollout = analysis.attention_rollout(large, images, batch_size=1)
    outliers = analysis.outlier_patches(large, images, batch_size=1)
    attention = analysis.attention_maps(large, images, batch_size=1).mean(axis=1)
    components = components_of(large, images)
    norms = analysis.token_norms(large, images, batch_size=1)
    neighbors, same = draw_neighbors(small, gallery)
    pairs, relevance = relevance_of(small, few)
    distances = analysis.mean_attention_distance(small, few)
    figures = {
        "rollout.jpg": plots.plot_attention(images, rollout, None, outliers),
        "attention.jpg": plots.plot_maps(images, attention, "attention", relative=True),
        "relevance.jpg": plots.plot_maps(
            pairs, relevance, "relevance", ["for the cat", "for the coffee"], relative=True
        ),
        "components.jpg": plots.plot_components(images, components),
        "norms.jpg": plots.plot_maps(images, norms, "length of token"),
        "neighbors.jpg": neighbors,
        "positions.png": plots.plot_position_similarity(analysis.position_similarity(small)),
        "distance.png": plots.plot_attention_distance(distances),
        "filters.png": plots.plot_patch_filters(analysis.patch_filters(small)),
    }
    options.pictures.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(options.pictures / name, dpi=60 if name == "positions.png" else 110)
    cards = draw_cards(images, rollout, components)
    keras.utils.save_img(options.pictures / "photographs.jpg", cards, quality=88)
    print(
        f"{outliers.sum()} of {outliers.size} patches are outliers; tokens have up to "
        f"{norms.max() / np.median(norms):.1f} times the median length; rollout of single patches "
        f"up to {rollout.max() / np.median(rollout):.0f} times the median; the nearest neighbour "
        f"of {same:.0%} of the quarters is from the same photograph"
    )
    return outliers, same


if __name__ == "__main__":
    main()
