# %% [markdown]
# # From a folder to a service
#
# Pictures of textile, some with a defect, become a service that says which: check the folder, fit
# a classifier, lose the process and continue, look at the result, find what is missing, export
# within a budget and serve. First on the command line, then in Python.
#
# `scripts/real-network real` downloads network and pictures once, 132 MB. The network is DINOv2's
# ViT-S/14, which others trained further to predict which regions of a photograph matter. **It is
# not DINOv2 as published**, which tells classes apart much better. The pictures are simulated, 250
# x 250 pixels: without a defect (`nominal`), with one over the whole picture (`global`), or with
# one in a small spot (`local`). The tutorial takes about six minutes of processor time.

# %%
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import tensorflow as tf

import keras_vit
from keras_vit.intervals import wilson_interval

real = pathlib.Path(os.environ.get("KERAS_VIT_REAL_NETWORK", "real"))
TRAIN, TEST, LATER = 28, 12, 10  # pictures of each class
for name in ("global", "local", "nominal"):
    files = sorted((real / "textile" / name).glob("*.jpg"))
    parts = {"textile/train": files[:TRAIN], "textile/test": files[TRAIN:][:TEST]}
    for folder, chosen in {**parts, "later": files[-LATER:]}.items():
        target = pathlib.Path(folder, name)
        target.mkdir(parents=True, exist_ok=True)
        for file in chosen:
            shutil.copy(file, target)


def start(line):
    """Starts a command, as a shell does."""
    return subprocess.Popen([sys.executable, "-m", *shlex.split(line)])


# %% [markdown]
# ## Check
#
# `keras-vit check` prints classes, counts, sizes and problems. Without `--headers-only`, it also
# decodes the images and finds near-duplicates. (`python -m keras_vit` is the same program.)

# %%
assert start("keras_vit check textile --headers-only").wait() == 0

# %% [markdown]
# ## Fit a classifier
#
# A probe computes the features of each picture once and fits a linear classifier to them. It prints
# a plan first, and is the first thing to try: it takes as long as it takes to read the pictures
# with the network. The image size is that of the network's own preprocessing, 224 pixels.

# %%
probe = f"keras_vit probe {real}/network textile"
assert start(f"{probe} --output runs/small").wait() == 0
small = keras_vit.train.load_run("runs/small")
small.report()
print(small)

# %% [markdown]
# ## Look at the result
#
# `runs/small/report.html` has the accuracy of every class with its 95 % interval, the classes that
# are confused, and the worst mistakes beside the model's attention. `keras-vit report runs/small`
# writes the same page. `predictions.csv` has a row for every test picture.


# %%
def recalls(run):
    """Test pictures of each class, and how many of them are recognised."""
    rows = pathlib.Path(run, "predictions.csv").read_text().splitlines()[1:]
    pairs = [row.split(",")[1:3] for row in rows]
    names = sorted({true for true, _ in pairs})
    return {
        name: (sum(pair == [name, name] for pair in pairs), sum(true == name for true, _ in pairs))
        for name in names
    }


for name, (right, of) in recalls("runs/small").items():
    print(f"at 224 pixels: {right} of {of} {name}")

# %% [markdown]
# ```text
# at 224 pixels: 12 of 12 global
# at 224 pixels: 5 of 12 local
# at 224 pixels: 8 of 12 nominal
# ```
#
# Every global defect is found, and of the local ones fewer than half. The accuracy alone, 69 % of
# 36 pictures (95 %: 53 to 82 %), would not have said so.
#
# ## Larger images, and a lost process
#
# A local defect is about as large as one patch of the network, 14 pixels, so it needs more of them:
# larger images. We kill the process after the first features; the same command continues with those
# that are there.

# %%
large = f"{probe} --image-size 392 --output runs/large"
process = start(large)
record = pathlib.Path("runs/large/features/train/part-0-of-1.json")
while process.poll() is None and not (record.exists() and json.loads(record.read_text())["done"]):
    time.sleep(0.1)
process.kill()
process.wait()
assert start(large).wait() == 0
run = keras_vit.train.load_run("runs/large")
run.report()
for name, (right, of) in recalls("runs/large").items():
    print(f"at 392 pixels: {right} of {of} {name}")

# %% [markdown]
# ```text
# at 392 pixels: 12 of 12 global
# at 392 pixels: 11 of 12 local
# at 392 pixels: 6 of 12 nominal
# ```
#
# Larger images find nearly all defects, with three times as many patches. What is left are false
# alarms: half of the pictures without a defect. 81 % of the 36 pictures are right (95 %: 65 to 90
# %); so few pictures show no more than that.
#
# With half an hour and 13 GB of memory, `keras-vit train --data textile --model real/network` is
# better: it tries the larger size itself, and trains the network. With 50 pictures of each class it
# finds 98 % of the local defects, and 98 % of 500 pictures are right
# ([few labels](../few-labels.md#which-method)). Its run can take the place of `runs/large` below.
#
# ## Export within a budget
#
# Pictures that took no part so far decide which precision is good enough: the smallest file whose
# accuracy on them falls by no more than the budget. `export.json` beside the file says what was
# tried, and what it costs.

# %%
budget = "--goal size --runtimes onnxruntime --budget 3% --output shipped"
assert start(f"keras_vit find-export runs/large later {budget}").wait() == 0
print(*sorted(file.name for file in pathlib.Path("shipped").iterdir()))

# %% [markdown]
# ```text
# export.json model.onnx
# ```
#
# int8 was chosen, 23 MiB in place of 84: 26 of the 30 pictures are right before and after (95 % for
# the difference: -6 to 6 %). With 30 pictures, one is 3.3 %, so this budget allows none to be lost.
#
# ## Serve
#
# TensorFlow Serving loads a SavedModel from its folder ([export](../export.md) links to the
# command). Here TensorFlow itself loads it, without keras_vit. The signature takes the bytes of
# image files and returns class names.

# %%
assert start("keras_vit export runs/large --to saved_model --output serving/textile").wait() == 0
served = tf.saved_model.load("serving/textile/1").signatures["serving_default"]


def ask(file):
    """The class that the service names for a picture."""
    return served(image_bytes=tf.constant([file.read_bytes()]))["classes"].numpy()[0][0].decode()


later = sorted(pathlib.Path("later").glob("*/*.jpg"))
right = sum(ask(file) == file.parent.name for file in later)
low, high = wilson_interval(right, len(later))
print(f"the service: {right} of {len(later)} later pictures ({low:.0%} to {high:.0%})")

# %% [markdown]
# ```text
# the service: 26 of 30 later pictures (70% to 95%)
# ```
#
# ## The same in Python
#
# The features of the command are taken again: `fit_probe` finds them by their digests.

# %%
report = keras_vit.data.check_folder("textile", decode=False)
print(sum(report.parts[0].counts.values()), "images,", len(report.findings), "findings")
training, test = (keras_vit.read_folder(f"textile/{part}") for part in ("train", "test"))
network = keras_vit.from_pretrained(real / "network", input_shape=(392, 392, 3))
found = keras_vit.train.fit_probe(network, training, test, "runs/large/features")
print(found)

# %% [markdown]
# ```text
# 84 images, 0 findings
# logistic probe, C=0.1: 86.90% in cross-validation
# 80.56% of 36 test images (95 % interval 64.97% to 90.25%)
# ```
#
# The result page, and an export that is compared with the model on pictures.

# %%
predictions = keras_vit.evaluate.predict_set(found.model, test)
predictions.write_csv("predictions.csv")
keras_vit.report.write_result_page("report.html", found.model, predictions, title="Textile")
for true, predicted, count in predictions.confused_pairs()[:3]:
    print(f"{count} x {training.class_names[true]} taken for {training.class_names[predicted]}")
exported = keras_vit.export_saved_model(
    found.model,
    "serving/again",
    labels=list(training.class_names),
    images=keras_vit.data.read_images(later[:4]),
)
print("version", exported.path.name, "is there:", exported.path.exists())

# %% [markdown]
# Next: [data](../data.md) for what `check` finds, [few labels](../few-labels.md) for other ways to
# use a trained network, [training](../training.md) for runs that train the network itself (they
# resume after a crash too), [export](../export.md) for TensorFlow Serving, phones and ONNX Runtime.
