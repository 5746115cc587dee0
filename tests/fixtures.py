"""What tests share: a tiny model and a random fill that hides nothing."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.config import ViTConfig, make_config
from keras_vit.models.vit import build_vit

KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])


def tiny_config(**changes) -> ViTConfig:
    """A ViT of two blocks for 32 x 32 images in ten classes."""
    fields = {
        "patch_size": 8,
        "width": 32,
        "depth": 2,
        "num_heads": 4,
        "mlp_dim": 64,
        "image_size": 32,
        "classes": 10,
    }
    return make_config(**{**fields, **changes})


def fill_random(model, stddev=0.2, seed=0) -> None:
    """Fills every weight with N(0, 0.2), scales around 1: smaller hides a wrong GELU or epsilon."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "seed_generator" in weight.path:
            continue
        mean = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign(rng.normal(mean, stddev, weight.shape).astype("float32"))


def tiny_vit(stddev=0.2, seed=0, **changes) -> keras.Model:
    """The model of `tiny_config`, filled by `fill_random`."""
    model = build_vit(tiny_config(**changes))
    fill_random(model, stddev, seed)
    return model


def abstract_model(build):
    """What `build()` makes, with shapes and no arrays: even the largest fits in memory."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            return build()
    finally:
        keras.utils.clear_session(free_memory=False)  # a full garbage collection takes a second


def numpy(x) -> np.ndarray:
    """A tensor as an array."""
    return keras.ops.convert_to_numpy(x)


def images_for(model, count=4, seed=0) -> np.ndarray:
    """Random images in [0, 255] of the size that a model takes."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 255, (count, *model.input_shape[1:])).astype("float32")
