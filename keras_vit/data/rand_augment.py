"""RandAugment (https://arxiv.org/abs/1909.13719) with the operations and strengths of AugReg.

`keras.layers.RandAugment` differs: it has 11 operations (no inversion, no cutout; solarising and
adding are one operation), draws a random strength up to a maximum, and draws once per batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_GREY = 128  # fill value for pixels outside the image


def rand_augment(image: Any, num_layers: int, magnitude: float, seed: Any) -> Any:
    """Applies random operations from a list of 16, all with the same magnitude.

    As in the official code, every layer always applies one operation. A magnitude of 0 still
    changes the image: inverting and equalising have no magnitude, and colours nearly vanish.

    Args:
        image: uint8 tensor of shape `(h, w, 3)`.
        num_layers: Number of operations, applied one after the other.
        magnitude: From 0 to 20; the scale was designed for a maximum of 10.
        seed: Integer tensor of shape `(2,)`.

    Returns:
        uint8 tensor of the same shape.
    """
    for layer in tf.unstack(tf.random.split(seed, num_layers)) if num_layers else ():
        choice, operation_seed = tf.unstack(tf.random.split(layer, 2))
        index = tf.random.stateless_uniform((), choice, 0, len(OPERATIONS), tf.int32)
        branches = [
            lambda x=image, apply=apply, s=operation_seed: apply(x, magnitude, s)
            for apply in OPERATIONS.values()
        ]
        augmented = tf.switch_case(index, branches)
        augmented.set_shape(image.shape)
        image = augmented
    return image


def _signed(value: float, seed: Any) -> Any:
    """Returns `value` or `-value`, each with probability 1/2."""
    coin = tf.random.stateless_uniform((), seed) < 0.5
    return tf.where(coin, tf.constant(value, tf.float32), -value)


def _blend(degenerate: Any, image: Any, factor: float) -> Any:
    """Interpolates from one image (factor 0) to another (1), or extrapolates; truncates."""
    start, end = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    return tf.cast(tf.clip_by_value(start + factor * (end - start), 0.0, 255.0), tf.uint8)


def _select(condition: Any, x: Any, y: Any) -> Any:
    """Like `tf.where` for three tensors of one shape, where that is four times slower."""
    return tf.raw_ops.Select(condition=condition, x=x, y=y)


def _transform(image: Any, matrix: list[Any]) -> Any:
    """Affine transform: nearest pixel at `matrix @ (x, y, 1)`, or grey outside the image."""
    # As tf.raw_ops.ImageProjectiveTransformV3, which projects every channel of every pixel.
    height, width = tf.unstack(tf.shape(image)[:2])
    x = tf.range(tf.cast(width, tf.float32))[None]
    y = tf.range(tf.cast(height, tf.float32))[:, None]

    def project(side: Any, of_x: Any, of_y: Any, shift: Any) -> tuple[Any, Any]:
        # Subtracts, since TensorFlow's graph optimiser changes the order of additions.
        exact = of_x * x + of_y * y - tf.cast(shift, tf.float32) * -1.0  # (h, w)
        place = tf.cast(tf.floor(exact + 0.5), tf.int32)
        return place, (exact > -0.5) & (place < side)  # halves are rounded away from 0

    column, is_column = project(width, *matrix[:3])
    row, is_row = project(height, *matrix[3:])
    index = row * width + column
    index = _select(is_row & is_column, index, tf.fill(tf.shape(index), height * width))
    grey = tf.constant([[_GREY] * 3], tf.uint8)
    pixels = tf.concat([tf.reshape(image, (-1, 3)), grey], 0)  # (h * w + 1, 3)
    return tf.gather(pixels, index)


def _rotate(image: Any, magnitude: float, seed: Any) -> Any:
    angle = _signed(math.radians(3.0 * magnitude), seed)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    down, right = (tf.cast(side - 1, tf.float32) for side in tf.unstack(tf.shape(image)[:2]))
    x = (right - (cosine * right - sine * down)) / 2  # about the centre
    y = (down - (sine * right + cosine * down)) / 2
    return _transform(image, [cosine, -sine, x, sine, cosine, y])


def _move(place: int, step: float) -> Callable[[Any, float, Any], Any]:
    """A function that shears or translates: it changes one number of the affine matrix."""

    def apply(image: Any, magnitude: float, seed: Any) -> Any:
        matrix: list[Any] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        matrix[place] = _signed(step * magnitude, seed)
        return _transform(image, matrix)

    return apply


def _auto_contrast(image: Any, magnitude: float, seed: Any) -> Any:
    x = tf.cast(image, tf.float32)
    low, high = tf.reduce_min(tf.reduce_min(x, 0), 0), tf.reduce_max(tf.reduce_max(x, 0), 0)
    scale = tf.where(high > low, 255.0 / tf.maximum(high - low, 1.0), 1.0)
    offset = tf.where(high > low, low * scale, 0.0)
    # TensorFlow is four times slower with vectors of three numbers than of a whole row.
    rows = tf.reshape(x, (tf.shape(x)[0], -1))
    scale, offset = (tf.tile(value, tf.shape(x)[1:2]) for value in (scale, offset))
    stretched = tf.cast(tf.clip_by_value(rows * scale - offset, 0.0, 255.0), tf.uint8)
    return tf.reshape(stretched, tf.shape(image))


def _equalize(image: Any, magnitude: float, seed: Any) -> Any:
    channels = tf.unstack(tf.transpose(image, (2, 0, 1)))
    return tf.transpose([_equalize_channel(channel) for channel in channels], (1, 2, 0))


def _equalize_channel(channel: Any) -> Any:
    """Histogram equalisation of one channel, as in Pillow."""
    x = tf.cast(channel, tf.int32)
    counts = tf.math.bincount(tf.reshape(x, (-1,)), minlength=256, maxlength=256)
    last = tf.gather(counts, tf.reduce_max(x))
    step = (tf.reduce_sum(counts) - last) // 255
    table = (tf.cumsum(counts) + step // 2) // tf.maximum(step, 1)
    table = tf.clip_by_value(tf.concat(([0], table[:-1]), 0), 0, 255)
    return tf.gather(tf.cast(tf.where(step > 0, table, tf.range(256)), tf.uint8), x)


def _invert(image: Any, magnitude: float, seed: Any) -> Any:
    return 255 - image


def _posterize(image: Any, magnitude: float, seed: Any) -> Any:
    # The official code shifts by 8 bits at magnitudes below 2.5; TensorFlow reduces that to 7.
    shift = tf.constant(min(max(8 - int(magnitude / 10 * 4), 0), 7), tf.uint8)
    return tf.bitwise.left_shift(tf.bitwise.right_shift(image, shift), shift)


def _solarize(image: Any, magnitude: float, seed: Any) -> Any:
    threshold = int(magnitude / 10 * 256)
    return image if threshold > 255 else _select(image < threshold, image, 255 - image)


def _solarize_add(image: Any, magnitude: float, seed: Any) -> Any:
    added = int(magnitude / 10 * 110)
    return _select(image < 128, tf.minimum(image, 255 - added) + added, image)


def _strength(magnitude: float) -> float:
    return magnitude / 10 * 1.8 + 0.1


def _color(image: Any, magnitude: float, seed: Any) -> Any:
    grey = tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image))
    return _blend(grey, image, _strength(magnitude))


def _contrast(image: Any, magnitude: float, seed: Any) -> Any:
    # The official code divides the sum of the histogram (the number of pixels) by 256, although the
    # mean brightness was intended. The models were trained with this.
    pixels = tf.cast(tf.size(image) // 3, tf.float32)
    level = tf.cast(tf.minimum(pixels / 256.0, 255.0), tf.uint8)
    return _blend(tf.fill(tf.shape(image), level), image, _strength(magnitude))


def _brightness(image: Any, magnitude: float, seed: Any) -> Any:
    return _blend(tf.zeros_like(image), image, _strength(magnitude))


def _sharpness(image: Any, magnitude: float, seed: Any) -> Any:
    kernel = tf.constant([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    kernel = tf.tile(kernel[:, :, None, None], (1, 1, 3, 1))
    x = tf.cast(image, tf.float32)[None]
    smooth = tf.nn.depthwise_conv2d(x, kernel, (1, 1, 1, 1), "VALID")[0]
    smooth = tf.cast(tf.clip_by_value(smooth, 0.0, 255.0), tf.uint8)
    smooth = tf.concat([image[1:-1, :1], smooth, image[1:-1, -1:]], 1)
    smooth = tf.concat([image[:1], smooth, image[-1:]], 0)  # borders stay as they are
    return _blend(smooth, image, _strength(magnitude))


def _cutout(image: Any, magnitude: float, seed: Any) -> Any:
    """Fills a square around a random centre with grey, clipped at the borders."""
    reach = int(magnitude / 10 * 40)
    is_covered = []
    for side, centre_seed in zip(
        tf.unstack(tf.shape(image)[:2]), tf.unstack(tf.random.split(seed, 2)), strict=True
    ):
        centre = tf.random.stateless_uniform((), centre_seed, 0, side, tf.int32)
        place = tf.range(side)
        is_covered.append((place >= centre - reach) & (place < centre + reach))
    rows, columns = is_covered
    square = rows[:, None] & tf.repeat(columns, 3)[None, :]  # (h, w * 3)
    grey = tf.fill(tf.shape(image), tf.constant(_GREY, tf.uint8))
    return _select(tf.reshape(square, tf.shape(image)), grey, image)


# Functions of an image, a magnitude and a seed that return an image; in the official order.
OPERATIONS: dict[str, Callable[[Any, float, Any], Any]] = {
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
    "invert": _invert,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear_x": _move(1, 0.03),
    "shear_y": _move(3, 0.03),
    "translate_x": _move(2, 10.0),
    "translate_y": _move(5, 10.0),
    "cutout": _cutout,
    "solarize_add": _solarize_add,
}
