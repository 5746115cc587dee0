# %% [markdown]
# # Fine-tune published weights
#
# A model that was trained on one dataset becomes a classifier for another. Published weights need
# a network: `keras_vit.ViTB16(weights="augreg_in21k", classes=5)` downloads and checks a file. To
# run without a network, we make such a file first: a small ViT, trained on the digits 0 to 4 and
# written in the layout of the official code. Then we fine-tune it for the digits 5 to 9, with 20
# images of each.

# %%
import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_vit

keras.utils.set_random_seed(0)
digits = load_digits()
pixels = digits.images[..., None] * (255 / 16)
labels = digits.target
config = keras_vit.make_config(
    patch_size=2,
    width=64,
    depth=2,
    num_heads=4,
    mlp_dim=128,
    image_size=8,
    channels=1,
    classes=5,
)


def train(model, images, labels, epochs):
    steps = epochs * (len(images) // 50)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=2e-3, warmup_steps=steps // 10
    )
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # compiling takes longer than these few steps
    )
    model.fit(images, labels, batch_size=50, epochs=epochs, verbose=0)


# %% [markdown]
# ## A file in the published layout

# %%
source = keras_vit.build_vit(config, name="source")
low = labels < 5
train(source, pixels[low], labels[low], epochs=12)
keras_vit.save_weights(source, "published.npz", layout="official")
info = keras_vit.inspect_file("published.npz")
print(f"{info.layout} layout, {len(info.arrays)} arrays, {info.parameters:,} parameters")

# %% [markdown]
# ```text
# official layout, 40 arrays, 68,869 parameters
# ```
#
# ## Load
#
# Arrays of the file and of the model must match one to one, or one error lists all differences. The
# head is the exception: if the number of classes differs, the head starts at zero. Here the number
# is equal, but the classes are other digits, so we make a new head with `adapt_model`.

# %%
model = keras_vit.build_vit(config, name="target")
report = keras_vit.load_weights(model, "published.npz")
print(report)
model = keras_vit.adapt_model(model, classes=5)

# %% [markdown]
# ## Fine-tune
#
# The first 20 images of each digit are for training; all others are for testing. A model with
# random weights, trained in the same way, shows what the pretrained weights are worth.

# %%
few = np.concatenate([np.flatnonzero(labels == digit)[:20] for digit in range(5, 10)])
rest = np.setdiff1d(np.flatnonzero(labels >= 5), few)
scores = {}
for name, start in (("pretrained", model), ("random", keras_vit.build_vit(config))):
    train(start, pixels[few], labels[few] - 5, epochs=12)
    scores[name] = start.evaluate(pixels[rest], labels[rest] - 5, verbose=0)[1]
    print(f"{name}: {scores[name]:.1%} of {len(rest)} test images")
assert scores["pretrained"] > scores["random"]
