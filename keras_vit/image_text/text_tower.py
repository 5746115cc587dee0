"""Text towers: transformers from the ids of a text to a vector in the space of the images."""

from __future__ import annotations

import dataclasses

import keras

from keras_vit.checks import check_choice, check_heads, check_positive
from keras_vit.config import GELUS
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.norm import make_norm
from keras_vit.layers.pooling import TokenPooling
from keras_vit.layers.text import EndOfTextPooling
from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.runtime.model import Model

POOLINGS = ("eot", "last")


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """A text tower, of CLIP by default (https://arxiv.org/abs/2103.00020).

    Args:
        vocabulary_size: Number of ids.
        width: Dimension `D` of a token.
        depth: Number of transformer blocks.
        num_heads: Attention heads, which divide `width`.
        mlp_dim: Hidden dimension of the MLP.
        context_length: Ids of a text, `L`.
        projection_size: Dimension of the output; `None` gives the pooled token itself.
        projection_bias: Whether the projection has a bias, as in SigLIP.
        causal: Whether a token attends to itself and those before it alone. If not, padding is
            attended to, so that texts must be padded as in training.
        pooling: `"eot"` takes the token at the end of the text, `"last"` that of the last position.
        end_id: Id of the end of a text for `"eot"`; `None` takes the largest id of each text.
        gelu: As in `ViTConfig`.
        norm_epsilon: Added to the variance in every norm.

    Raises:
        ValueError: If a value is out of its range or two do not fit together.
    """

    vocabulary_size: int
    width: int = 512
    depth: int = 12
    num_heads: int = 8
    mlp_dim: int = 2048
    context_length: int = 77
    projection_size: int | None = 512
    projection_bias: bool = False
    causal: bool = True
    pooling: str = "eot"
    end_id: int | None = None
    gelu: str = "exact"
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        sizes = ("vocabulary_size", "width", "depth", "num_heads", "mlp_dim", "context_length")
        for field in sizes:
            check_positive(field, getattr(self, field))
        if self.projection_size is not None:
            check_positive("projection_size", self.projection_size)
        check_heads(self.width, self.num_heads)
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("gelu", self.gelu, GELUS)


def build_text_tower(config: TextConfig, name: str = "text_tower") -> Model:
    """Builds a text tower.

    Layers have stable names: `token_embedding`, `position_embedding`, `block_0` and on, `pooling`,
    `encoder_norm`, `projection`.

    Args:
        config: The architecture.
        name: Name of the model.

    Returns:
        A functional `keras_vit.Model` from int32 ids of shape `(B, L)` to float32 features of shape
        `(B, P)`, which are not normalised. Only a `Tokenizer` makes ids that are sure to fit:
        without an end of the text, a model that pools it gives features of nothing.

    Example:

    >>> config = keras_vit.image_text.TextConfig(100, width=64, depth=2, num_heads=2)
    >>> tower = keras_vit.image_text.build_text_tower(config)
    """
    ids = keras.Input((config.context_length,), dtype="int32", name="ids")
    x = keras.layers.Embedding(
        config.vocabulary_size,
        config.width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
        name="token_embedding",
    )(ids)  # (B, L, D)
    x = AddPositionEmbedding((config.context_length, 1), 0, name="position_embedding")(x)
    for index in range(config.depth):
        x = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            gelu=config.gelu,
            norm_epsilon=config.norm_epsilon,
            causal=config.causal,
            name=f"block_{index}",
        )(x)
    if config.pooling == "last":
        x = TokenPooling(-1, dtype=Float32Policy(), name="pooling")(x)  # (B, D)
    else:
        x = EndOfTextPooling(config.end_id, dtype=Float32Policy(), name="pooling")(x, ids)
    # The norm of one token is that token of the norm of all.
    x = make_norm("layer", config.norm_epsilon, dtype=Float32Policy(), name="encoder_norm")(x)
    if config.projection_size is not None:
        x = keras.layers.Dense(
            config.projection_size,
            use_bias=config.projection_bias,
            dtype=Float32Policy(),
            name="projection",
        )(x)  # (B, P)
    return Model(ids, x, name=name)
