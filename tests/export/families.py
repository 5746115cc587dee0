"""A small model of every family and variant that is exported."""

from __future__ import annotations

from keras_vit.config import IMAGENET_STATISTICS, ResNetConfig, ResNetStem
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, tiny_config

FAMILIES = {
    "vit": {},
    "exact_gelu": {"gelu": "exact", "preprocessing": IMAGENET_STATISTICS},
    "gap": {"pooling": "gap", "class_token": False, "norm_after_pooling": True},
    "map": {"pooling": "map", "class_token": False},
    "pre_logits": {"pre_logits": 24},
    "registers": {"num_registers": 4, "layer_scale": 0.5, "qk_norm": True},
    "distilled": {"distillation_token": True},
    "relative": {"position_embedding": "relative"},
    "sincos": {"position_embedding": "sincos_2d", "image_size": (32, 48)},
    "grey": {"channels": 1, "include_preprocessing": False},
    "backbone": {"classes": None},
    "hybrid": {"stem": ResNetStem((1, 1)), "patch_size": 1, "image_size": 32},
}


def build_family(name):
    """The model of one family, with random weights."""
    if name == "bit":
        model = build_resnet(ResNetConfig((1, 1), image_size=32, classes=10))
    else:
        model = build_vit(tiny_config(**FAMILIES[name]))
    fill_random(model)
    return model
