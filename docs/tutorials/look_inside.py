# %% [markdown]
# # Look inside a model
#
# Where does a Vision Transformer look, and how far? We train one on scenes with a handwritten
# digit somewhere in them, and see whether its attention finds the digit.

# %%
import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_vit

keras.utils.set_random_seed(0)
digits = load_digits()


def make_scenes(images, seed):
    """Puts each 8 x 8 digit at a random position of a 24 x 24 image of weak noise."""
    rng = np.random.default_rng(seed)
    scenes = rng.uniform(0, 60, (len(images), 24, 24, 1)).astype("float32")
    corners = rng.integers(0, 17, (len(images), 2))
    for scene, image, (top, left) in zip(scenes, images, corners, strict=True):
        scene[top : top + 8, left : left + 8, 0] += image * (190 / 16)
    return scenes, corners


train_images, _ = make_scenes(np.concatenate([digits.images[:1500]] * 4), seed=1)
train_labels = np.concatenate([digits.target[:1500]] * 4)
test_images, corners = make_scenes(digits.images[1500:], seed=2)
test_labels = digits.target[1500:]

# %%
config = keras_vit.make_config(
    patch_size=4,
    width=64,
    depth=2,
    num_heads=4,
    mlp_dim=128,
    image_size=24,
    channels=1,
    classes=10,
)
model = keras_vit.build_vit(config, name="scenes")
epochs = 6
steps = epochs * len(train_images) // 100
rate = keras.optimizers.schedules.CosineDecay(
    0.0, steps, warmup_target=2e-3, warmup_steps=steps // 10
)
model.compile(
    keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=False,  # compiling takes longer than these few steps
)
model.fit(train_images, train_labels, batch_size=100, epochs=epochs, verbose=0)
accuracy = model.evaluate(test_images, test_labels, verbose=0)[1]
print(f"{accuracy:.1%} of {len(test_labels)} test scenes")

# %% [markdown]
# ## Features and attention scores
#
# Every stage of the model has a name, and `features_of` returns a model that outputs those stages.

# %%
print(*keras_vit.models.stage_names(model))
features = keras_vit.features_of(model, ["block_0", "encoder_norm"])
for name, value in features(test_images[:8]).items():
    print(name, tuple(value.shape))
scores = keras_vit.models.attention_scores(model, test_images[:8], block=1)
print("attention scores", tuple(scores.shape))

# %% [markdown]
# ## Attention rollout
#
# Rollout multiplies the attention of all blocks: how much each patch contributes to the pooled
# output. If the model looks at the digit, the patches there have more than their share.

# %%
rollout = keras_vit.analysis.attention_rollout(model, test_images)
rows, columns = np.indices((6, 6)) * 4 + 1.5  # centres of the patches, in pixels
inside = np.stack(
    [(abs(rows - top - 3.5) < 4) & (abs(columns - left - 3.5) < 4) for top, left in corners]
)
ratio = rollout[inside].mean() / rollout[~inside].mean()
print(f"patches of the digit have {ratio:.1f} times the weight of the others")
figure = keras_vit.analysis.plot_attention(test_images[:6], rollout[:6])
figure.savefig("rollout.png", dpi=80)
assert ratio > 1

# %% [markdown]
# Next: [analysis](../analysis.md) has attention distance, class relevance, position similarity,
# patch filters and principal components, with pictures.
