# %% [markdown]
# # Ship a model
#
# A trained model becomes a SavedModel for TensorFlow Serving, a LiteRT file for phones, and an
# ONNX file for ONNX Runtime. Each export is run and compared with the model before the file gets
# its name.

# %%
import keras
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from sklearn.datasets import load_digits

import keras_vit

keras.utils.set_random_seed(0)
digits = load_digits()
images = (digits.images[..., None] * (255 / 16)).astype("float32")
config = keras_vit.make_config(
    patch_size=2,
    width=64,
    depth=2,
    num_heads=4,
    mlp_dim=128,
    image_size=8,
    channels=1,
    classes=10,
    position_embedding="sincos_2d",
)
model = keras_vit.build_vit(config, name="digits")
model.compile(
    keras.optimizers.AdamW(2e-3, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,  # compiling takes longer than these few steps
)
model.fit(images[:1500], digits.target[:1500], batch_size=50, epochs=6, verbose=0)
test_images, test_labels = images[1500:], digits.target[1500:]
logits = model.predict(test_images, verbose=0)
print(f"{np.mean(logits.argmax(-1) == test_labels):.1%} of {len(test_labels)} test images")

# %% [markdown]
# ## Export
#
# The files contain the names of the classes, and the preprocessing, so they take pixels in
# [0, 255]. The reports say how much the outputs differ on the given images.

# %%
labels = [f"digit {digit}" for digit in range(10)]
options = {"labels": labels, "images": test_images[:64]}
reports = [
    keras_vit.export_saved_model(model, "serving/digits", **options),
    keras_vit.export_litert(model, "digits.tflite", **options),
    keras_vit.export_onnx(model, "digits.onnx", **options),
]
for report in reports:
    print(report.path.name, "is there:", report.path.exists())

# %% [markdown]
# ## Use a file without keras_vit
#
# Running a file needs no Keras. LiteRT has its own interpreter.

# %%
interpreter = Interpreter("digits.tflite")
runner = interpreter.get_signature_runner("serving_default")
(name,) = runner.get_input_details()
outputs = runner(**{name: test_images[:1]})
print("a", labels[int(np.argmax(outputs["logits"]))], "and it is a", labels[test_labels[0]])

# %% [markdown]
# ## Check a file later
#
# A file that was copied, or converted by another tool, is compared with the model in one call.

# %%
check = keras_vit.verify_export("digits.onnx", model, images=test_images)
print(check)

# %% [markdown]
# Next: [export and serving](../export.md) has precision, quantisation, TensorFlow Serving in a
# container, and programs in C++ and Python that run these files.
