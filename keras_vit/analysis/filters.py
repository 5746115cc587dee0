"""What the first layer looks for."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.layers.residual import BiTRoot, StemRoot
from keras_vit.layers.tokens import PatchEncoder
from keras_vit.models.graph import find_layer


def patch_filters(model: keras.Model, count: int | None = None) -> np.ndarray:
    """Principal components of the filters that read the image.

    Figure 7 (left) of https://arxiv.org/abs/2010.11929: the `D` filters of the patch encoder are
    vectors of `P * P * C` numbers, and their first principal components resemble a basis of the
    fine structure in a patch. In a hybrid and a ResNet, the filters are those of the first
    convolution.

    Args:
        model: A model of this package, or one built on one.
        count: How many components; `None` gives 28 as in the paper, or all where there are fewer.

    Returns:
        float32 array of shape `(count, P, P, C)`, components of length 1 with the largest
        variance first. Their sign has no meaning; the largest number of each is positive.

    Raises:
        ValueError: If there are not as many components, or no layer of this package that reads
            the image.
    """
    kernel = _first_kernel(model)  # (P, P, C, D)
    filters = kernel.reshape(-1, kernel.shape[-1]).T.astype("float64")  # (D, P * P * C)
    most = min(filters.shape)
    count = min(28, most) if count is None else count
    if not 0 < count <= most:
        raise ValueError(
            f"{len(filters)} filters of {filters.shape[1]} numbers have 1 to {most} principal "
            f"components. Received: count={count}."
        )
    components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)[2][:count]
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(count), largest])[:, None]
    return components.reshape(count, *kernel.shape[:3]).astype("float32")


def _first_kernel(model: keras.Model) -> np.ndarray:
    root = find_layer(model, StemRoot) or find_layer(model, BiTRoot)
    encoder = find_layer(model, PatchEncoder)
    if root is None and encoder is None:
        raise ValueError(
            f"The model {model.name!r} has neither a PatchEncoder nor the root of a ResNet."
        )
    layer = encoder.projection if root is None else root.conv
    return ops.convert_to_numpy(ops.cast(layer.kernel, "float32"))
