# %% [markdown]
# # From a folder to a service
#
# Check a folder of images, train on it, kill the process, resume, look at the result, export the
# model and serve it with TensorFlow: first on the command line, then in Python.
#
# The images are scikit-learn's 1,797 handwritten digits, 8 x 8 pixels each, scanned from paper
# forms. For such small images we begin with a small model of our own. For photographs, `--data` is
# the only flag you need: image size, model and recipe follow from the number of images.

# %%
import contextlib
import pathlib
import shlex
import subprocess
import sys
import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_vit
from keras_vit.intervals import wilson_interval

names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
digits = load_digits()
for index, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
    path = pathlib.Path("digits", names[digit], f"{index}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    keras.utils.save_img(path, pixels[..., None] * (255 / 16), scale=False)
keras.utils.set_random_seed(0)
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
keras_vit.build_vit(config, name="small").save("small.keras")


def start(line):
    """Starts a command, as a shell does."""
    return subprocess.Popen([sys.executable, "-m", *shlex.split(line)])


# %% [markdown]
# ## Check
#
# `keras-vit check` prints classes, counts, sizes and problems. Without `--headers-only`, it also
# decodes the images and finds near-duplicates. (`python -m keras_vit` is the same program.)

# %%
assert start("keras_vit check digits --validation 0.2 --headers-only").wait() == 0

# %% [markdown]
# ## Train, and lose the process
#
# The command prints a plan first, and one line after every epoch. We kill it after the second
# epoch, like a crash or a scheduler. The same command continues from the last checkpoint.

# %%
train = (
    "keras_vit train --data digits --model small.keras --validation 0.2 --output runs/digits "
    "--optimizer adam --learning-rate 0.002 --weight-decay 0.1 --batch-size 64 --steps 600 "
    "--crop none --no-flip"  # a mirrored 2 is no 2
)
process = start(train)
metrics = pathlib.Path("runs/digits/metrics.csv")
while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
    time.sleep(0.05)
process.kill()
process.wait()
assert start(train).wait() == 0

# %% [markdown]
# ## Look at the result
#
# The run has written `runs/digits/report.html`: open it in a browser. It shows learning curves,
# accuracy of every class with its 95 % interval, confused digits, the worst mistakes with the
# model's attention, calibration, and the cost of training. `predictions.csv` has a row for every
# held-out image. `keras-vit report runs/digits` writes both files again.

# %%
run = keras_vit.train.load_run("runs/digits")
print(run)
rows = pathlib.Path("runs/digits/predictions.csv").read_text().splitlines()
print(len(rows) - 1, "predictions:", *rows[0].split(",")[:4])
print(pathlib.Path("runs/digits/report.html").exists())

# %% [markdown]
# ```text
# 359 predictions: file true predicted probability
# True
# ```
#
# ## Export and serve
#
# The export is compared with the model before it gets its name. TensorFlow Serving can load it from
# this folder ([export](../export.md) links to the command). Here TensorFlow itself loads it,
# without keras_vit. The signature takes the bytes of image files and returns class names.

# %%
assert start("keras_vit export runs/digits --to saved_model --output serving/digits").wait() == 0
served = tf.saved_model.load("serving/digits/1").signatures["serving_default"]
answer = served(image_bytes=tf.constant([pathlib.Path("digits/seven/7.png").read_bytes()]))
print("a seven is a", answer["classes"].numpy()[0][0].decode())

# %% [markdown]
# ```text
# a seven is a seven
# ```
#
# ## The same in Python
#
# Check, and split off a fifth.

# %%
report = keras_vit.data.check_folder("digits", decode=False)
print(sum(report.parts[0].counts.values()), "images,", len(report.findings), "findings")
training, validation = keras_vit.read_folder("digits").split(0.2)

# %% [markdown]
# ```text
# 1797 images, 0 findings
# ```
#
# Train with a recipe. `folder=` is for checkpoints: the same call continues after a crash. The
# callback simulates the crash.

# %%
recipe = keras_vit.train.Recipe(
    source="this tutorial",
    optimizer="adam",
    learning_rate=0.002,
    weight_decay=0.1,
    batch_size=64,
    steps=600,
    warmup_steps=60,
    clip_norm=1.0,
    augmentation=keras_vit.data.Augmentation(crop="none", flip=False),
)


class Crash(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def fit(*callbacks):
    model = keras.saving.load_model("small.keras")
    options = {"folder": "states", "callbacks": callbacks, "verbose": 0}
    return keras_vit.pretrain(model, training, recipe, validation, **options)


with contextlib.suppress(KeyboardInterrupt):
    fit(Crash())
model, history = fit()
print("epochs", *[epoch + 1 for epoch in history.epoch])

# %% [markdown]
# ```text
# epochs 1 2 3 4 5 6
# ```
#
# The result page and the predictions, as above.

# %%
predictions = keras_vit.evaluate.predict_set(model, validation)
predictions.write_csv("predictions.csv")
keras_vit.report.write_result_page("report.html", model, predictions, history, title="Digits")
right = int(predictions.is_right.sum())
low, high = wilson_interval(right, len(predictions.labels))
print(f"{predictions.accuracy:.1%} of {validation.num_images}, with {low:.1%} to {high:.1%}")
for true, predicted, count in predictions.confused_pairs()[:3]:
    print(f"{count} x {training.class_names[true]} taken for {training.class_names[predicted]}")
assert predictions.accuracy > 0.8

# %% [markdown]
# Export and serve.

# %%
labels = list(training.class_names)
exported = keras_vit.export_saved_model(model, "serving/again", labels=labels)
served = tf.saved_model.load(str(exported.path)).signatures["serving_default"]
answer = served(image_bytes=tf.constant([pathlib.Path("digits/four/4.png").read_bytes()]))
print("a four is a", answer["classes"].numpy()[0][0].decode())

# %% [markdown]
# Next: [data](../data.md) for what `check` finds, [training](../training.md) for resuming and the
# result page, [export](../export.md) for TensorFlow Serving, phones and ONNX Runtime.
