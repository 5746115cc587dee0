# %% [markdown]
# # Ship a model
#
# A trained model becomes a SavedModel for TensorFlow Serving, a LiteRT file for phones, and an
# ONNX file for ONNX Runtime. Each export is run and compared with the model before the file gets
# its name.
#
# `scripts/real-network real` downloads the network and the pictures once, 132 MB: a ViT-S/14 that
# others trained, and simulated textile with and without defects. Our model is a linear classifier
# on the network's features ([fine-tuning](fine_tune.md) says more).

# %%
import os
import pathlib
import shutil

import numpy as np
from ai_edge_litert.interpreter import Interpreter

import keras_vit

real = pathlib.Path(os.environ.get("KERAS_VIT_REAL_NETWORK", "real"))
for name in ("nominal", "global"):  # local defects are too small at this image size
    shutil.copytree(real / "textile" / name, pathlib.Path("textile", name), dirs_exist_ok=True)
pictures = keras_vit.read_folder("textile")
few, _ = pictures.split(0.96)
train, test = few.split(0.5)  # 30 to learn from, 30 to test on
network = keras_vit.from_pretrained(real / "network", input_shape=(112, 112, 3))
probe = keras_vit.train.fit_probe(network, train, test, "features/ship_it", settings=[0.01])
model = probe.model
print(f"{probe.accuracy:.1%} of {test.num_images} test pictures")

# %% [markdown]
# ## Export
#
# The files contain the names of the classes, and the preprocessing, so they take pixels in
# [0, 255]. The reports say how much the outputs differ on the given images.

# %%
images, answers = next(keras_vit.data.eval_batches(test, model, 16).as_numpy_iterator())
labels = list(pictures.class_names)
options = {"labels": labels, "images": images}
reports = [
    keras_vit.export_saved_model(model, "serving/textile", **options),
    keras_vit.export_litert(model, "textile.tflite", **options),
    keras_vit.export_onnx(model, "textile.onnx", **options),
]
for report in reports:
    print(report.path.name, "is there:", report.path.exists())

# %% [markdown]
# ## Use a file without keras_vit
#
# Running a file needs no Keras. LiteRT has its own interpreter.

# %%
interpreter = Interpreter("textile.tflite")
runner = interpreter.get_signature_runner("serving_default")
(name,) = runner.get_input_details()
outputs = runner(**{name: images[:1]})
print(
    "a",
    labels[int(np.argmax(outputs["logits"]))],
    "and it is a",
    labels[int(np.argmax(answers[0]))],
)

# %% [markdown]
# ## The best file within a budget
#
# `find_export` tries runtimes and precisions on labelled pictures, and keeps the smallest or
# fastest file whose accuracy falls by no more than the budget.

# %%
shipped = keras_vit.export.find_export(
    model, test, "shipped", "size", budget=0.05, runtimes=["litert"], labels=labels
)
print(shipped)

# %% [markdown]
# ## Check a file later
#
# A file that was copied, or converted by another tool, is compared with the model in one call.

# %%
check = keras_vit.verify_export("textile.onnx", model, images=images)
print(check)

# %% [markdown]
# Next: [export and serving](../export.md) has precision, quantisation, TensorFlow Serving in a
# container, and programs in C++ and Python that run these files.
