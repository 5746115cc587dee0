"""The closest relative that the ViT paper names, https://arxiv.org/abs/1911.03584."""

from __future__ import annotations

from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
from keras_vit.families.names import EXACT

# The settings of https://github.com/epfml/attention-cnn: patches of 2 x 2 pixels of CIFAR-10, 6
# layers of 400 channels, 9 heads of 400 channels each, norms after the sums, no class token. It is
# "SA learned emb. + content" of Table 1; grid_attention="offsets" is "SA learned emb." there, and
# "quadratic" is "SA quadratic emb."
VARIANTS: dict[str, Fields] = {
    "vit_cordonnier2": {
        "patch_size": 2,
        "width": 400,
        "depth": 6,
        "num_heads": 9,
        "head_width": 400,
        "mlp_dim": 512,
        "image_size": 32,
        "pooling": "gap",
        "class_token": False,
        "position_embedding": "none",
        "grid_attention": "relative_2d",
        **EXACT,
        "post_norm": True,
        "norm_epsilon": 1e-12,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "preprocessing": {
            "mean": (125.307, 122.961, 113.8575),
            "std": (51.5865, 50.847, 51.255),
            "interpolation": "bilinear",
        },
    }
}

FAMILY = Family(VARIANTS)
