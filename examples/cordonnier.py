"""The attention of Cordonnier et al. beside that of a ViT, at equal cost, on digits.

    python examples/cordonnier.py

Three small models of https://arxiv.org/abs/1911.03584 (norms after the sums, heads as wide as the
tokens, position encodings in the attention) and a ViT with learned positions, whose MLP is so wide
that a forward pass costs as much. Takes minutes on two cores. Writes results.json and
accuracy.png; docs/experiments.md shows the accuracies to expect.
"""

from __future__ import annotations

import digits
import keras

import keras_vit

COUNTS = (1300,)  # training images
OWN = {"width": 32, "depth": 3, "num_heads": 3, "head_width": 32, "mlp_dim": 64}
PLAIN = {"class_token": False, "pooling": "gap", "gelu": "exact"}
PARTS = {**PLAIN, "position_embedding": "none", "post_norm": True}
MODELS = {
    "content and learned": {"grid_attention": "relative_2d", **OWN, **PARTS},
    "learned": {"grid_attention": "offsets", **OWN, **PARTS},
    "quadratic": {"grid_attention": "quadratic", **OWN, **PARTS},
    # As many products as "content and learned".
    "ViT": {"width": 32, "depth": 3, "num_heads": 4, "mlp_dim": 198, **PLAIN},
}


def main():
    options = digits.parse(__doc__, "cordonnier", steps=300)
    counts = digits.columns(options, COUNTS)
    rows = {name: [[] for _ in counts] for name in MODELS}
    products = {}
    for seed in range(options.seeds):
        train, test = digits.read_digits(split=seed)
        for column, count in enumerate(counts):
            few = digits.pick(train, count // 10, seed)
            for name, fields in MODELS.items():
                keras.utils.set_random_seed(seed)
                model = digits.build_vit(**fields)
                products[name] = keras_vit.evaluate.count_macs(model)
                data = digits.batches(few, options.steps, seed, digits.moving())
                accuracy = digits.train_and_test(model, data, options.steps, test, peak=2e-3)
                rows[name][column].append(accuracy)
                print(seed, count, name, f"{100 * accuracy:.1f}", flush=True)
    digits.report(options, "training images", counts, rows, products=products)
    digits.plot_rows(options, counts, rows, "training images")


if __name__ == "__main__":
    main()
