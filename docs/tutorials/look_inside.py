# %% [markdown]
# # Look inside a model
#
# What does a trained Vision Transformer compute for each patch, and where does it look? The network
# is DINOv2's ViT-S/14, which others trained further to find what matters in a picture:
# `scripts/real-network real` downloads it once, 132 MB. The photographs are scikit-learn's, a
# temple and a flower.

# %%
import os
import pathlib

import keras
import numpy as np
from sklearn.datasets import load_sample_images

import keras_vit

real = pathlib.Path(os.environ.get("KERAS_VIT_REAL_NETWORK", "real"))
model = keras_vit.from_pretrained(real / "network", input_shape=(224, 224, 3))
squares = np.stack([photo[:, 106:533] for photo in load_sample_images().images])
images = np.asarray(keras.ops.image.resize(squares, (224, 224), antialias=True))
print("pixels", images.shape, "from", images.min(), "to", images.max())

# %% [markdown]
# ## Features
#
# Every stage of the model has a name, and `features_of` returns a model that outputs those stages.

# %%
print(*keras_vit.models.stage_names(model))
features = keras_vit.features_of(model, ["block_0", "encoder_norm"])
for name, value in features(images).items():
    print(name, tuple(value.shape))
scores = keras_vit.models.attention_scores(model, images, block=11)
print("attention scores", tuple(scores.shape))

# %% [markdown]
# ```text
# block_0 (2, 257, 384)
# encoder_norm (2, 257, 384)
# attention scores (2, 6, 257, 257)
# ```
#
# One token is of the class, 256 are of the patches, 16 x 16. The principal components of the
# patches' features, as colours, show what the network keeps apart without any labels.

# %%
components = keras_vit.analysis.patch_components(model, images)
print("components", components.shape)
figure = keras_vit.analysis.plot_components(images, components)
figure.savefig("components.png", dpi=80)

# %% [markdown]
# ## Attention rollout, and outliers
#
# Rollout multiplies the attention of all blocks: how much each patch contributes to the pooled
# output. Trained networks often keep something of their own in a few patches, which all others
# attend to. `outlier_patches` finds them, and the plots frame them and scale without them;
# otherwise the map would be one bright spot.

# %%
rollout = keras_vit.analysis.attention_rollout(model, images)
outliers = keras_vit.analysis.outlier_patches(model, images)
share = rollout[outliers].sum() / rollout.sum()
print(f"{outliers.sum()} of {outliers.size} patches have {share:.0%} of the rollout")
figure = keras_vit.analysis.plot_attention(images, rollout, outliers=outliers)
figure.savefig("rollout.png", dpi=80)
assert outliers.mean() < 0.05

# %% [markdown]
# Next: [analysis](../analysis.md) has attention distance, class relevance, position similarity,
# patch filters and nearest neighbours, with pictures.
