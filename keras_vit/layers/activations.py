"""The two forms of GELU."""

from __future__ import annotations

import keras
from keras import ops


def gelu(x: keras.KerasTensor, form: str) -> keras.KerasTensor:
    """Gaussian error linear unit, https://arxiv.org/abs/1606.08415.

    The forms differ by up to 4.7e-4 (at x = 2.7), which is visible in logits.

    Args:
        x: Float tensor of any shape.
        form: `"tanh"`, the approximation of the official code, or `"exact"`, of timm and
            transformers.

    Returns:
        Tensor of the shape and type of `x`.
    """
    if form == "tanh":
        return keras.activations.gelu(x, approximate=True)
    # Written out: TensorFlow's own exact GELU becomes `Erfc`, which neither ONNX nor, in half
    # precision, LiteRT knows; both recognise this form.
    return 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))
