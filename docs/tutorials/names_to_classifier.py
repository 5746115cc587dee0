# %% [markdown]
# # From names to a classifier
#
# Two towers turn images and texts into vectors of one space, so the names of classes are enough for
# a classifier. We build one, add a few labelled pictures, export it, and search with it.
#
# With a connection to the hub, the towers are one line:
# `keras_vit.image_text.load_towers("hf://openai/clip-vit-base-patch32")`. Here we make our own:
# `scripts/real-network real` downloads a ViT-S/14 that others trained, and simulated textile with
# and without defects, 132 MB, once. Its image tower stays as it is, and a small text tower learns
# from captions.

# %%
import os
import pathlib
import shutil

import keras
import numpy as np
import onnxruntime

import keras_vit
from keras_vit.image_text import TextConfig, Towers

keras.utils.set_random_seed(0)
real = pathlib.Path(os.environ.get("KERAS_VIT_REAL_NETWORK", "real"))
for name in ("nominal", "global"):  # local defects are too small at this image size
    shutil.copytree(real / "textile" / name, pathlib.Path("textile", name), dirs_exist_ok=True)
pictures = keras_vit.read_folder("textile")


def choose(first, count):
    """The pictures from number `first` of each class."""
    numbers = [np.flatnonzero(pictures.labels == label) for label in (0, 1)]
    return pictures.subset(np.concatenate([each[first : first + count] for each in numbers]))


captioned, few, test = choose(0, 100), choose(100, 10), choose(110, 40)
print(captioned.num_images, few.num_images, test.num_images, "of", *pictures.class_names)

# %% [markdown]
# ```text
# 200 20 80 of global nominal
# ```
#
# ## Two towers
#
# A text is the numbers of its words. Nobody wrote captions for these pictures: the sentences are
# made from the names of the classes, which say more than the names of the folders.

# %%
names = {"global": "fabric with a defect all over", "nominal": "fabric without a defect"}
sentences = ["a photo of {}", "{}", "a piece of {}"]
words = sorted({word for text in [*names.values(), *sentences] for word in text.split()})


def tokenize(texts):
    """int32 ids of shape (texts, 12); 0 fills up, and the last number ends a text."""
    ids = np.zeros((len(texts), 12), "int32")
    for row, text in zip(ids, texts, strict=True):
        known = [words.index(word) + 1 for word in text.split()]
        row[: len(known) + 1] = [*known, len(words) + 1]
    return ids


image = keras_vit.from_pretrained(real / "network", input_shape=(112, 112, 3))
config = TextConfig(
    len(words) + 2, width=64, depth=2, num_heads=4, mlp_dim=128, context_length=12,
    projection_size=image.output_shape[-1],
)  # fmt: skip
text = keras_vit.image_text.build_text_tower(config)
towers = Towers(image, text, config, logit_scale=2.66, bias=None)
towers.tokenizer = tokenize

# %% [markdown]
# The features of the pictures are computed once, so training costs the text tower alone.

# %%
pairs = keras_vit.image_text.class_captions(
    captioned, lambda name: [sentence.format(names[name]) for sentence in sentences]
)
features = keras_vit.image_text.image_features(towers, captioned, "features/captioned")
batches = keras_vit.image_text.pair_batches(pairs, towers, 50, features=features)
model = keras_vit.image_text.contrastive_model(towers, from_features=True)
loss = keras_vit.train.ContrastiveLoss("softmax", positives="labels")
model.compile(keras_vit.train.AdamW(1e-3, weight_decay=0.01, global_clipnorm=1.0), loss)
history = model.fit(batches, epochs=20, shuffle=False, verbose=0).history["loss"]
towers = keras_vit.image_text.trained_towers(model, towers)
print(f"loss {history[0]:.2f}, then {history[-1]:.2f}")

# %% [markdown]
# ## A classifier from names
#
# The vectors of the classes become the last layer of an ordinary image model. Neither text tower
# nor tokenizer is part of it.

# %%
classifier = keras_vit.image_text.zero_shot_classifier(towers, list(names.values()), sentences)
classifier.class_names = list(names)
test_images, _ = next(keras_vit.data.eval_batches(test, classifier, 80).as_numpy_iterator())
scores = classifier.predict(test_images, verbose=0)
by_names = keras_vit.evaluate.top_accuracy(scores, test.labels)
print(f"by names: {by_names:.1%} of {test.num_images} test pictures")

# %% [markdown]
# ```text
# by names: 96.2% of 80 test pictures
# ```
#
# ## A few labelled pictures
#
# They choose the probability from which a class is predicted. Then none may be, or both.

# %%
few_images, _ = next(keras_vit.data.eval_batches(few, classifier, 20).as_numpy_iterator())
few_scores = classifier.predict(few_images, verbose=0)
thresholds = keras_vit.evaluate.calibrate_thresholds(few_scores, few.labels, "balanced_accuracy")
shown = scores >= thresholds
for index, name in enumerate(names):
    right = np.mean(shown[:, index] == (test.labels == index))
    print(f"{name} from {thresholds[index]:.2f} on: right in {right:.1%}")

# %% [markdown]
# Or they join the names: a ridge regression that is pulled toward the vectors of the classes.
# Cross-validation chooses how strongly.

# %%
vectors = keras_vit.image_text.class_vectors(towers, list(names.values()), sentences)
fitting = ("ridge", towers.encode_images(few_images), few.labels)
accuracies = keras_vit.evaluate.cross_validate(*fitting, 2, verbose=False, class_vectors=vectors)
setting = max(accuracies, key=accuracies.get)
head = keras_vit.evaluate.fit_head(*fitting, 2, setting, vectors)
index = keras_vit.image_text.index_images(towers, test, "features/index")
unit_features = index.network  # images to features of unit length
inputs = keras.Input((112, 112, 3))
fused = keras_vit.Model(inputs, head(unit_features(inputs)))
fused.class_names = list(names)
fused_scores = fused.predict(test_images, verbose=0)
print(f"names and pictures: {keras_vit.evaluate.top_accuracy(fused_scores, test.labels):.1%}")

# %% [markdown]
# ```text
# names and pictures: 100.0%
# ```
#
# ## Ship it
#
# The file has the names of the classes and the preprocessing, and is compared with the model.

# %%
report = keras_vit.export_onnx(
    classifier, "textile.onnx", outputs=("probabilities",), images=test_images[:16]
)
print(report.path.name, "is there:", report.path.exists())
session = onnxruntime.InferenceSession("textile.onnx")
(exported,) = session.run(["probabilities"], {session.get_inputs()[0].name: test_images})
print("as the model:", np.allclose(exported, scores, atol=1e-4))

# %% [markdown]
# ## Search
#
# The same towers answer questions about a folder. The page shows the pictures.

# %%
question = "a photo of fabric with a defect all over"
answers = index.search(question, top=6, duplicates=1.1)
keras_vit.image_text.write_search_page("answers.html", index, {question: answers})
found = sum(test.labels[answer.position] == 0 for answer in answers)
print(f"{found} of {len(answers)} answers have the defect")

# %% [markdown]
# Next: [zero-shot classification](../zero-shot.md) with published checkpoints, [training on images
# and captions](../image-text-training.md), and how good such a text tower is on photographs.
