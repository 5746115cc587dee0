# %% [markdown]
# # Train on a folder
#
# A folder of images with one sub-folder per class becomes a classifier: read, train, evaluate,
# save. The images are scikit-learn's 1,797 handwritten digits, 8 x 8 pixels each, written as PNG
# files, so that everything runs on a laptop in seconds. With photographs, only the path and the
# model change.

# %%
import pathlib

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_vit

keras.utils.set_random_seed(0)
folder = pathlib.Path("digits")
digits = load_digits()
for index, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
    path = folder / str(digit) / f"{index}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.save_img(path, pixels[..., None] * (255 / 16), scale=False)

# %% [markdown]
# ## Read
#
# `read_folder` checks every file and takes the names of the folders as names of the classes.
# `split` holds out a fifth of the images.

# %%
images = keras_vit.read_folder(folder).in_memory()  # reads the files once, for they are small
train, test = images.split(0.2)
print(images.num_images, "images of", images.num_classes, "classes:", *images.class_names)

# %% [markdown]
# ```text
# 1797 images of 10 classes: 0 1 2 3 4 5 6 7 8 9
# ```
#
# ## Build
#
# For photographs this is one line, `keras_vit.ViTS16(weights="augreg_in21k", classes=10)`. For 8 x
# 8 pixels we configure a small model: patches of 2 x 2 pixels give 16 tokens, and fixed position
# embeddings need not be learned from images.

# %%
config = keras_vit.make_config(
    patch_size=2,
    width=64,
    depth=2,
    num_heads=4,
    mlp_dim=128,
    image_size=8,
    classes=10,
    position_embedding="sincos_2d",
)
model = keras_vit.build_vit(config, name="digits")
print(f"{model.count_params():,} parameters")

# %% [markdown]
# ```text
# 68,618 parameters
# ```
#
# ## Train
#
# `train_batches` shuffles and augments. The default is the paper's random crop and mirroring. Here
# both are off, because a mirrored 2 is not a 2. The model is a Keras model: `compile` and `fit` as
# always.

# %%
batches = keras_vit.data.train_batches(
    train, model, batch_size=64, augmentation=keras_vit.data.Augmentation(crop="none", flip=False)
)
epochs = 15
rate = keras.optimizers.schedules.CosineDecay(
    0.0, epochs * len(batches), warmup_target=2e-3, warmup_steps=2 * len(batches)
)
model.compile(
    keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=1.0),
    keras.losses.CategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=False,  # compiling takes longer than these few steps
)
model.fit(batches, epochs=epochs, shuffle=False, verbose=0)

# %% [markdown]
# ## Evaluate and save

# %%
test_batches = keras_vit.data.eval_batches(test, model, batch_size=128)
accuracy = model.evaluate(test_batches, verbose=0, return_dict=True)["accuracy"]
print(f"{accuracy:.1%} of {test.num_images} held-out digits")
model.save("digits.keras")

loaded = keras.saving.load_model("digits.keras")
pixels = digits.images[:5, ..., None].repeat(3, axis=-1) * (255 / 16)
print("predicted", *np.argmax(loaded.predict(pixels, verbose=0), axis=-1))
assert accuracy > 0.8

# %% [markdown]
# ```text
# 93.3% of 359 held-out digits
# predicted 0 1 2 3 4
# ```
#
# Next: [data](../data.md) for other sources, [recipes](../recipes.md) for the papers' settings,
# and [from a folder to a service](folder_to_service.md) for the command line, resuming, the result
# page and serving.
