"""Text towers: transformers from the ids of a text to a vector in the space of the images."""

from __future__ import annotations

import dataclasses

import keras

from keras_vit.checks import check_choice, check_fields, check_heads, check_positive
from keras_vit.config import BIASES, GELUS, NORMS
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.causal import CausalBlock
from keras_vit.layers.float32 import Float32Policy, float32_dense
from keras_vit.layers.norm import make_norm
from keras_vit.layers.pooling import MeanPooling, TokenPooling
from keras_vit.layers.text import EndOfTextPooling, SinusoidalPositions
from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.runtime.model import Model

POOLINGS = ("eot", "last", "mean")
POSITIONS = ("learned", "sinusoidal")
_SIZES = (
    *("vocabulary_size", "width", "depth", "num_heads", "mlp_dim", "context_length"),
    "projection_size",
)
_BLOCK_FIELDS = ("gelu", "norm", "norm_epsilon", "swiglu", "without_bias")  # options of a block


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
        pooling: `"eot"` takes the token at the end of the text, `"last"` that of the last position,
            `"mean"` the mean of all tokens but padding.
        end_id: Id of the end of a text for `"eot"`; `None` takes the largest id of each text.
        pad_id: Id of padding, which no token attends to; `None` for towers that attend to it.
        positions: `"learned"`, or `"sinusoidal"`: fixed sines and cosines, added to tokens that are
            multiplied by the root of `width` (https://arxiv.org/abs/1706.03762).
        gelu: As in `ViTConfig`, and so are the rest.
        norm: Kind of the norms.
        norm_epsilon: Added to the variance in every norm.
        swiglu: Whether the MLPs have a gate in place of the GELU.
        without_bias: Dense layers of the blocks without bias.

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
    pad_id: int | None = None
    positions: str = "learned"
    gelu: str = "exact"
    norm: str = "layer"
    norm_epsilon: float = 1e-5
    swiglu: bool = False
    without_bias: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, dict.fromkeys(_SIZES, check_positive))
        check_heads(self.width, self.num_heads)
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("positions", self.positions, POSITIONS)
        check_choice("gelu", self.gelu, GELUS)
        check_choice("norm", self.norm, NORMS)
        for part in self.without_bias:
            check_choice("without_bias", part, BIASES)
        if self.pooling == "mean" and self.pad_id is None:
            raise ValueError('pooling="mean" leaves out padding. Set `pad_id`.')


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
    if config.positions == "sinusoidal":
        x = SinusoidalPositions(name="position_embedding")(x)
    else:
        x = AddPositionEmbedding((config.context_length, 1), 0, name="position_embedding")(x)
    known, given = None, {}
    if config.pad_id is not None:
        known = keras.ops.not_equal(ids, config.pad_id)  # (B, L)
        given["attention_mask"] = keras.ops.reshape(known, (-1, 1, 1, config.context_length))
    kind = CausalBlock if config.causal else TransformerBlock
    options = {field: getattr(config, field) for field in _BLOCK_FIELDS}
    for index in range(config.depth):
        x = kind(config.num_heads, config.mlp_dim, **options, name=f"block_{index}")(x, **given)
    norm = make_norm(config.norm, config.norm_epsilon, dtype=Float32Policy(), name="encoder_norm")
    if config.pooling == "mean":
        mean = MeanPooling(dtype=Float32Policy(), name="pooling")
        x = mean(norm(x), sizes=known)  # (B, D)
    elif config.pooling == "last":
        # The norm of one token is that token of the norm of all.
        x = norm(TokenPooling(-1, dtype=Float32Policy(), name="pooling")(x))
    else:
        x = norm(EndOfTextPooling(config.end_id, dtype=Float32Policy(), name="pooling")(x, ids))
    if config.projection_size is not None:
        bias = config.projection_bias
        x = float32_dense(config.projection_size, "projection", use_bias=bias)(x)  # (B, P)
    return Model(ids, x, name=name)
