# %% [markdown]
# # An inspection that says "I do not know"
#
# A classifier of textile answers every picture with probabilities, also one of a flower. Here it
# gets probabilities that are right as often as they say, sets of possible classes, and a limit for
# pictures that are unlike those it knows. All of it is inside of the file that is served.
#
# `scripts/real-network real` downloads the network and the pictures once, 132 MB: a ViT-S/14 that
# others trained, and simulated textile with and without defects. The classifier is linear, on the
# network's features ([fine-tuning](fine_tune.md) says more).

# %%
import os
import pathlib

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

import keras_vit

real = pathlib.Path(os.environ.get("KERAS_VIT_REAL_NETWORK", "real"))
pictures = keras_vit.read_folder(real / "textile")
few, _ = pictures.split(0.8)
train, rest = few.split(0.65)
held_out, test = rest.split(0.4)
network = keras_vit.from_pretrained(real / "network", input_shape=(112, 112, 3))
probe = keras_vit.train.fit_probe(network, train, test, "features/abstain", settings=[1.0])
model = probe.model
print(f"{train.num_images} to learn from, {held_out.num_images} held out")

# %% [markdown]
# ## Probabilities that are right
#
# A temperature is fitted to held-out pictures, which the model was not trained on: logits are
# divided by it. The order of the classes does not change.

# %%
keras_vit.trust.calibrate(model, held_out)
predictions = keras_vit.evaluate.predict_set(model, test)
print(model.calibration)
print(f"negative log-likelihood of other pictures: {predictions.before.log_loss():.3f} before,")
print(f"{predictions.log_loss():.3f} after")

# %% [markdown]
# ## Possible classes, and pictures that are unlike the others
#
# Of pictures like the held-out ones, nine in ten have their true class in the set (of 104 test
# pictures, between 81 and 99 in a hundred: both sets are small). Pictures whose
# features are less typical than those of 95 % of the held-out ones are not accepted.

# %%
keras_vit.trust.fit_abstention(model, held_out, coverage=0.9, false_alarms=0.05)
print(model.abstention)

# %% [markdown]
# ## The file decides
#
# A SavedModel takes bytes of pictures, as TensorFlow Serving sends them, and has the outputs
# `probabilities`, `prediction_set`, `typicality` and `accepted`. LiteRT, ONNX and OpenVINO have
# them too. Two photographs of scikit-learn, a temple and a flower, are no textile.

# %%
keras_vit.export_saved_model(model, "serving/inspection", verbose=False)
serve = tf.saved_model.load("serving/inspection/1").signatures["serving_default"]
files = [pathlib.Path(name).read_bytes() for name in test.file_names()]
photographs = [tf.io.encode_jpeg(image).numpy() for image in load_sample_images().images]
answers = serve(image_bytes=tf.constant(files))
others = serve(image_bytes=tf.constant(photographs))
inside = answers["prediction_set"].numpy()[np.arange(len(files)), test.labels]
print(f"the true class is in the set of {inside.mean():.0%} of {len(files)} test pictures")
print(f"{answers['accepted'].numpy().mean():.0%} of them are accepted")
print("photographs accepted:", int(others["accepted"].numpy().sum()))

# %% [markdown]
# ```text
# photographs accepted: 0
# ```
#
# A service sends pictures that are not accepted, and those with several possible classes, to a
# person. Where the share that is not accepted rises, the camera or the product has changed:

# %%
images = [np.asarray(image) for image in load_sample_images().images]
pixels = np.stack([tf.image.resize(image, (112, 112)).numpy().astype("uint8") for image in images])
new = keras_vit.read_arrays(np.repeat(pixels, 10, 0), [0] * 20, pictures.class_names)
drift = keras_vit.trust.compare_images(model, held_out, new)
share, low, high = drift.shifts[0].rejected
print(f"{share:.0%} rejected, 95 % interval {low:.0%} to {high:.0%}: {drift.is_beyond()}")

# %% [markdown]
# Next: [what the model does not know](../trust.md) has the guarantees, what was measured, wrong
# labels, and which pictures to label next.
