"""What benchmarks/small_data.py compares with: a plain CNN, and keras.io's ViT for small sets.

Written anew after their descriptions, with the hyper-parameters published there. Both take pixels
in [0, 255] and return logits.
"""

from __future__ import annotations

import keras
from keras import layers, ops

FILTERS = (32, 64, 128)


def build_cnn(classes: int, size: int) -> keras.Model:
    """A plain CNN: blocks of two 3 x 3 convolutions with batch norm, then the mean over positions.

    Augmentation, dropout, optimizer and learning rate are those of Keras's guide "Image
    classification from scratch": flips, rotations of up to a tenth of a turn, 0.25, Adam. The
    momentum of batch norm is smaller, for runs of a few hundred steps.
    """
    images = keras.Input((size, size, 3))
    x = layers.RandomFlip("horizontal")(images)
    x = layers.RandomRotation(0.1)(x)
    x = layers.Rescaling(1 / 255)(x)
    for filters in FILTERS:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D(name="features")(x)
    x = layers.Dropout(0.25)(x)
    return keras.Model(images, layers.Dense(classes, name="head")(x), name="cnn")


class ShiftedPatches(layers.Layer):
    """Patches of an image and of its four diagonal shifts, as normalised, projected tokens.

    Args:
        patch: Side of a patch in pixels; images are shifted by half of it.
        width: Dimension of a token.
    """

    def __init__(self, patch: int, width: int):
        super().__init__()
        self.patch = patch
        self.norm = layers.LayerNormalization(epsilon=1e-6)
        self.project = layers.Dense(width)

    def build(self, shape):
        tokens = (shape[1] // self.patch) * (shape[2] // self.patch)
        values = self.patch**2 * 5 * shape[3]
        self.norm.build((None, tokens, values))
        self.project.build((None, tokens, values))
        self.positions = self.add_weight(shape=(tokens, self.project.units), name="positions")

    def call(self, images):
        half, (height, width) = self.patch // 2, images.shape[1:3]
        padded = ops.pad(images, ((0, 0), (half, half), (half, half), (0, 0)))
        starts = ((half, half), (0, 0), (0, 2 * half), (2 * half, 0), (2 * half, 2 * half))
        shifted = [padded[:, y : y + height, x : x + width] for y, x in starts]
        patches = ops.image.extract_patches(ops.concatenate(shifted, -1), self.patch)
        tokens = ops.reshape(patches, (-1, *self.positions.shape[:1], patches.shape[-1]))
        return self.project(self.norm(tokens)) + self.positions


class LocalAttention(layers.Layer):
    """Self-attention with a learned temperature, in which no token attends to itself.

    Args:
        heads: Number of heads.
        size: Dimension of queries, keys and values of a head.
        dropout: Rate on the attention weights.
    """

    def __init__(self, heads: int, size: int, dropout: float):
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv = layers.Dense(3 * heads * size)
        self.dropout = layers.Dropout(dropout)

    def build(self, shape):
        self.qkv.build(shape)
        self.output_layer = layers.Dense(shape[-1])
        self.output_layer.build((*shape[:-1], self.heads * self.size))
        self.temperature = self.add_weight(
            shape=(), initializer=keras.initializers.Constant(self.size**0.5), name="temperature"
        )

    def call(self, x, training=None):
        tokens = x.shape[1]
        qkv = ops.reshape(self.qkv(x), (-1, tokens, 3, self.heads, self.size))
        q, k, v = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)))  # (B, heads, tokens, size) each
        scores = ops.matmul(q, ops.swapaxes(k, -1, -2)) / self.temperature
        weights = ops.softmax(scores - 1e9 * ops.eye(tokens))
        x = ops.matmul(self.dropout(weights, training=training), v)
        x = ops.reshape(ops.swapaxes(x, 1, 2), (-1, tokens, self.heads * self.size))
        return self.output_layer(x)


def build_small_vit(classes: int, size: int = 72) -> keras.Model:
    """The ViT of keras.io's "Train a Vision Transformer on small datasets" (arXiv 2112.13492).

    Its published numbers: 72 pixels, patches of 6, width 64, 8 layers of 4 heads, MLPs of 128 and
    64, a head of 2,048 and 1,024; flips, rotations of 2 % of a turn, zooms of 20 %.
    """
    images = keras.Input((None, None, 3))
    x = layers.Resizing(size, size)(layers.Rescaling(1 / 127.5, -1)(images))
    x = layers.RandomFlip("horizontal")(x)
    x = layers.RandomRotation(0.02)(x)
    x = layers.RandomZoom(0.2, 0.2)(x)
    x = ShiftedPatches(6, 64)(x)
    for _ in range(8):
        x = layers.add([x, LocalAttention(4, 64, 0.1)(layers.LayerNormalization(epsilon=1e-6)(x))])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.add([x, _mlp(y, (128, 64), 0.1)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    x = _mlp(x, (2048, 1024), 0.5)
    return keras.Model(images, layers.Dense(classes)(x), name="small_vit")


def _mlp(x, units: tuple[int, ...], dropout: float):
    for width in units:
        x = layers.Dropout(dropout)(layers.Dense(width, activation="gelu")(x))
    return x
