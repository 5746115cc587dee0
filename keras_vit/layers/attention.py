"""Multi-head self-attention, as one product for queries, keys and values."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, check_choice, check_heads, check_positive, pair
from keras_vit.config import BLOCK_POSITIONS, take_options
from keras_vit.layers.any_size import rotary_tables_of, size_of
from keras_vit.layers.costs import Cost
from keras_vit.layers.dense import build_dense
from keras_vit.layers.fused_attention import fused_attention, fusion_pays
from keras_vit.layers.layer import Layer
from keras_vit.layers.norm import make_norm
from keras_vit.layers.rotary import rotary_tables, rotate
from keras_vit.layers.windows import Windows
from keras_vit.resize import num_biases
from keras_vit.runtime.distributed import depend_on

_PARTS = ("query", "key", "value")
_LEFT_OUT = -1e9  # logit of a key that is not attended to


def split_heads(x: keras.KerasTensor, num_tokens: Any, num_heads: int) -> keras.KerasTensor:
    """Features of flattened tokens by head: `(B * T, A * d)` becomes `(B, A, T, d)`."""
    head_dim = x.shape[-1] // num_heads
    x = ops.reshape(x, (-1, num_tokens, num_heads, head_dim))
    return ops.transpose(x, (0, 2, 1, 3))


def merge_heads(x: keras.KerasTensor) -> keras.KerasTensor:
    """The inverse of `split_heads`: `(B, A, T, d)` becomes `(B * T, A * d)`."""
    _, num_heads, _, head_dim = x.shape
    x = ops.transpose(x, (0, 2, 1, 3))  # (B, T, A, d)
    return ops.reshape(x, (-1, num_heads * head_dim))


def attention_scores(
    queries: keras.KerasTensor,
    keys: keras.KerasTensor,
    position_logits: keras.KerasTensor | None = None,
) -> keras.KerasTensor:
    """Softmax over keys of the scaled products of queries and keys, in float32.

    Eq. 6 in https://arxiv.org/abs/2010.11929.

    Args:
        queries: Float tensor of shape `(B, A, Q, d)`.
        keys: Float tensor of shape `(B, A, T, d)`.
        position_logits: Optional float tensor of shape `(B, A, Q, T)`, added before the softmax.

    Returns:
        Tensor of shape `(B, A, Q, T)` and the type of `queries`; rows sum to 1.
    """
    queries = queries * queries.shape[-1] ** -0.5  # before the product, as in the official code
    logits = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2)))  # (B, A, Q, T)
    if position_logits is not None:
        logits = logits + position_logits
    scores = ops.softmax(ops.cast(logits, "float32"), axis=-1)
    return ops.cast(scores, queries.dtype)


def add_sizes(
    logits: keras.KerasTensor | None, sizes: keras.KerasTensor, dtype: str
) -> keras.KerasTensor:
    """Adds to the logits of merged keys the logarithm of the number of their tokens.

    Proportional attention, Section 3 of https://arxiv.org/abs/2210.09461: the softmax then is as if
    each key were there as often. A mask leaves out the keys where it is False.

    Args:
        logits: Other logits to add, or `None`.
        sizes: Integer tensor of shape `(B, T)`, or a boolean mask that keeps a token of each image.
        dtype: Type of the result.

    Returns:
        Float tensor of shape `(B, 1, 1, T)`, or the shape it has with `logits`.
    """
    added = ops.cast(ops.log(ops.cast(sizes, "float32")), dtype)
    added = ops.reshape(added, (-1, 1, 1, sizes.shape[1]))
    return added if logits is None else logits + added


@lru_cache(maxsize=64)
def bias_index(grid: tuple[int, int], class_token: bool) -> np.ndarray:
    """Row of the table of position biases for every query and key, as in BEiT.

    Args:
        grid: Patches along (height, width).
        class_token: Whether a token precedes the patches.

    Returns:
        int32 array of shape `(T, T)`. With a class token the last three rows of the table are for
        its queries, for its keys, and for itself.
    """
    rows, columns = np.mgrid[: grid[0], : grid[1]].reshape(2, -1)
    away = [axis[:, None] - axis[None] for axis in (rows, columns)]  # (N, N) each
    index = (away[0] + grid[0] - 1) * (2 * grid[1] - 1) + away[1] + grid[1] - 1
    if class_token:
        count = num_biases(grid, class_token)
        index = np.pad(index, ((1, 0), (1, 0)))
        index[0], index[:, 0], index[0, 0] = count - 3, count - 2, count - 1
    return index.astype("int32")


@keras.saving.register_keras_serializable("keras_vit")
class SelfAttention(Layer):
    """Multi-head self-attention over tokens.

    Appendix A of https://arxiv.org/abs/2010.11929. Tokens are flattened to two dimensions for the
    dense products, so that the processor's library joins product and bias.

    Args:
        num_heads: Attention heads, which divide the width.
        positions: `"relative"` adds learned embeddings of the distance between two tokens in the
            sequence to the keys (Appendix D.4); `"relative_bias"` adds learned biases of every head
            to the logits, by the rows and columns between two patches of `grid`
            (https://arxiv.org/abs/2106.08254), with at most one token before the patches.
        causal: Whether a token attends to itself and those before it alone.
        grid: Patches along (height, width), for `rope`; `None` takes those of each call.
        num_prefix_tokens: Tokens before the patches, which `rope` leaves as they are.
        num_registers: How many of the tokens before the patches, the last of them, are registers,
            which `rope` turns where it has a `register_base`.
        window_size: Patches along (height, width) of the windows that patches attend to, see
            `Windows`; `None` is the whole `grid`.
        **kwargs: Other fields of `keras_vit.config.BlockOptions`; those of the MLP have no effect.
            `query_chunk_size` is not used with `return_attention_scores`.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.
        sizes: Optional integer tensor of shape `(B, T)`, how many tokens each stands for; such a
            token is attended to as often as those.
        padding_mask: Optional boolean tensor of shape `(B, T)`, False for padding, which no token
            attends to.
        return_keys: Whether to return the keys too, as they are attended to.
        grid: Patches along (height, width) of these tokens, integers or tensors, for `rope`; `None`
            takes those of the layer.
        num_queries: How many of the tokens, the first ones, attend to all `T`; `None` is all.

    Returns:
        Float tensor of shape `(B, Q, D)` with `Q = num_queries`; with `return_attention_scores`,
        also one of shape `(B, A, Q, T)` whose rows sum to 1; with `return_keys`, last also one of
        shape `(B, A, T, d)`.

    Raises:
        ValueError: If the heads do not divide the width, a rate is not in [0, 1), or
            `query_chunk_size` or `num_queries` is not positive.
    """

    def __init__(
        self,
        num_heads: int,
        positions: str | None = None,
        causal: bool = False,
        grid: tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        num_registers: int = 0,
        window_size: int | tuple[int, int] | None = None,
        **kwargs: Any,
    ):
        self.options, kwargs = take_options(num_heads=num_heads, **{"mlp_dim": 1, **kwargs})
        super().__init__(**kwargs)
        if positions is not None:
            check_choice("positions", positions, BLOCK_POSITIONS)
        self.positions = positions
        self.causal = causal
        self.grid = None if grid is None else pair("grid", grid)
        self.num_prefix_tokens = num_prefix_tokens
        self.num_registers = num_registers
        self.window_size = None if window_size is None else pair("window_size", window_size)
        if self.options.rope is not None:
            self.options.rope.check_registers(num_registers)
        self._tables: Any = None
        self._windows: Windows | None = None

    def build(self, tokens_shape: Shape) -> None:
        _, num_tokens, width = tokens_shape
        if self.options.head_width is None:
            check_heads(width, self.options.num_heads)
        head_dim = self.options.head_width or width // self.options.num_heads
        inner = self.options.num_heads * head_dim
        # Xavier on each of the three (D, D) matrices, as in the official code.
        limit = (6 / (width + inner)) ** 0.5
        start = keras.initializers.RandomUniform(-limit, limit)
        options = {"use_bias": self._with_bias == _PARTS, "kernel_initializer": start}
        self.qkv = build_dense(self, "qkv", width, 3 * inner, **options)
        if 0 < len(self._with_bias) < len(_PARTS):  # else in the dense layer, or nowhere
            self.biases = {
                part: self.add_weight(name=f"{part}_bias", shape=(inner,), initializer="zeros")
                for part in self._with_bias
            }
        with_bias = "projection" not in self.options.without_bias
        self.output_projection = build_dense(self, "output", inner, width, use_bias=with_bias)
        self.attention_dropout = keras.layers.Dropout(
            self.options.attention_dropout_rate, dtype=self.dtype_policy
        )
        self.dropout = keras.layers.Dropout(self.options.dropout_rate, dtype=self.dtype_policy)
        if self.options.qk_norm:
            self.query_norm = self._build_norm("query_norm", head_dim)
            self.key_norm = self._build_norm("key_norm", head_dim)
        if self.positions == "relative":
            self.relative_keys = self.add_weight(
                name="relative_keys",
                shape=(head_dim, 2 * num_tokens - 1),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        if self.positions == "relative_bias":
            self.bias_table = self.add_weight(
                name="position_bias",
                shape=(self._num_biases(num_tokens), self.options.num_heads),
                initializer="zeros",  # as in BEiT
                autocast=False,
            )
        if "attention" in self.options.inner_norms:
            self.norm = make_norm(
                self.options.norm, self.options.norm_epsilon, dtype=self.dtype_policy, name="norm"
            )
            self.norm.build((None, inner))
        if self.window_size is not None:
            self._windows = self._make_windows(num_tokens, self.window_size)
        if self.options.rope is not None and (num_tokens is not None or self.grid is not None):
            self._tables = self._rotary_tables(num_tokens, head_dim)

    @property
    def _with_bias(self) -> tuple[str, ...]:
        return tuple(part for part in _PARTS if part not in self.options.without_bias)

    def _build_norm(self, name: str, head_dim: int) -> keras.layers.Layer:
        options = {"center": self.options.qk_norm_bias} if self.options.norm == "layer" else {}
        norm = make_norm(
            self.options.norm,
            self.options.norm_epsilon,
            dtype=self.dtype_policy,
            name=name,
            **options,
        )
        norm.build((None, None, None, head_dim))
        return norm

    def _known_grid(self, num_tokens: int, what: str, allowed: bool = True) -> tuple[int, int]:
        """The grid of the patches, if it fits the number of tokens."""
        prefix = self.num_prefix_tokens
        if not allowed or self.grid is None or num_tokens != prefix + math.prod(self.grid):
            raise ValueError(
                f"{what}. Received: {num_tokens} tokens, grid={self.grid}, "
                f"num_prefix_tokens={prefix}. Set `grid` and `num_prefix_tokens` to what comes in."
            )
        return self.grid

    def _rotary_tables(self, num_tokens: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
        grid = self._known_grid(num_tokens, "Rotary positions need the grid of the patches")
        assert self.options.rope is not None
        prefix = (self.num_prefix_tokens, self.num_registers)
        return rotary_tables(self.options.rope, grid, head_dim, *prefix)

    def _num_biases(self, num_tokens: int) -> int:
        what = "Position biases need the grid of the patches, and at most one token before them"
        prefix = self.num_prefix_tokens
        return num_biases(self._known_grid(num_tokens, what, allowed=prefix <= 1), prefix == 1)

    def _make_windows(self, num_tokens: int, window_size: tuple[int, int]) -> Windows:
        grid = self._known_grid(num_tokens, "Windows need the grid of the patches")
        if self.positions is not None or self.causal:
            raise ValueError(
                "Attention in windows has no relative positions and no order. Received: "
                f"window_size={window_size}, positions={self.positions!r}, causal={self.causal}. "
                "Leave one of them out."
            )
        return Windows(grid, window_size, self.num_prefix_tokens)

    def call(
        self,
        tokens: keras.KerasTensor,
        return_attention_scores: bool = False,
        training: bool | None = None,
        sizes: keras.KerasTensor | None = None,
        padding_mask: keras.KerasTensor | None = None,
        return_keys: bool = False,
        grid: tuple[Any, Any] | None = None,
        num_queries: int | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        num_tokens = size_of(tokens, 1)
        queries, keys, values = self._project(tokens, grid)
        logits = self._position_logits(queries)
        if self.causal:
            places = ops.arange(num_tokens)
            later = _without(places[None] > places[:, None], queries.dtype)  # (1, 1, T, T)
            logits = later if logits is None else logits + later
        if num_queries is not None:
            check_positive("num_queries", num_queries)
            queries = queries[:, :, :num_queries]
            logits = None if logits is None else logits[:, :, :num_queries]
        for each in (sizes, padding_mask):
            if each is not None:
                logits = add_sizes(logits, each, queries.dtype)
        scores = None
        if self._windows is not None and (sizes is not None or num_queries is not None):
            raise ValueError(
                "Windows hold single patches, all of them, without sizes and padding. Received: "
                f"window_size={self.window_size} with `sizes` or `num_queries`. Leave it out."
            )
        if return_attention_scores:
            if self._windows is not None:
                logits = _without(ops.convert_to_tensor(self._windows.apart()), queries.dtype)
            scores = attention_scores(queries, keys, logits)
            x = ops.matmul(self.attention_dropout(scores, training=training), values)
        elif self._windows is not None:
            x = self._attend_in(self._windows, queries, keys, values, training)
        else:
            x = self._mix(queries, keys, values, logits, training)
        x = self.dropout(self._join(x), training=training)  # (B, Q, D)
        more = [scores] * return_attention_scores + [keys] * return_keys
        return (x, *more) if more else x

    def _mix(
        self,
        queries: keras.KerasTensor,
        keys: keras.KerasTensor,
        values: keras.KerasTensor,
        logits: keras.KerasTensor | None,
        training: bool | None,
    ) -> keras.KerasTensor:
        """Means of the values, `(B, A, T, d)`, by a kernel of the backend where it has one."""
        dropped = training and self.options.attention_dropout_rate > 0
        plain = self.options.query_chunk_size is None and logits is None and not dropped
        if plain and queries.shape[2] == keys.shape[2] and fusion_pays(queries):
            return fused_attention(queries, keys, values)
        return self._attend(queries, keys, values, logits, training)

    def _attend_in(
        self,
        windows: Windows,
        queries: keras.KerasTensor,
        keys: keras.KerasTensor,
        values: keras.KerasTensor,
        training: bool | None,
    ) -> keras.KerasTensor:
        """As `_mix`, where patches attend to prefix tokens and the patches of their window."""
        prefix, outside = windows.prefix, windows.outside()
        logits = None
        if outside is not None:
            patches = outside.shape[1] - prefix
            rows = np.repeat(outside[:, None], patches, axis=1)  # ONNX has one for each query
            logits = _without(ops.convert_to_tensor(rows), queries.dtype)[0, 0]
            logits = ops.tile(logits[:, None], (ops.shape(queries)[0], 1, 1, 1))
        inside = windows.split(queries[:, :, prefix:])  # (B * windows, A, patches, d)
        x = self._mix(inside, windows.around(keys), windows.around(values), logits, training)
        x = windows.join(x)
        if not prefix:
            return x
        before = self._mix(queries[:, :, :prefix], keys, values, None, training)
        return ops.concatenate([before, x], axis=2)  # (B, A, T, d)

    def step(
        self,
        token: keras.KerasTensor,
        cache: tuple[keras.KerasTensor, keras.KerasTensor],
        index: keras.KerasTensor,
    ) -> tuple[keras.KerasTensor, tuple[keras.KerasTensor, keras.KerasTensor]]:
        """Causal attention of one token, from the keys and values of those before it.

        Args:
            token: Float tensor of shape `(B, 1, D)`.
            cache: Keys and values, each of shape `(B, A, T, d)`.
            index: Which of the `T` tokens it is, an integer tensor.

        Returns:
            Float tensor of shape `(B, 1, D)`, and the keys and values with those of the token.

        Raises:
            ValueError: If the layer is not causal, or adds positions.
        """
        if not self.causal or self.positions is not None or self.options.rope is not None:
            raise ValueError(
                "Tokens are added one by one to causal attention without positions of its own. "
                f"Received: causal={self.causal}, positions={self.positions!r}, rope="
                f"{self.options.rope}. Call the layer with all tokens."
            )
        queries, key, value = self._project(token)  # (B, A, 1, d) each
        keys = ops.slice_update(cache[0], (0, 0, index, 0), key)
        values = ops.slice_update(cache[1], (0, 0, index, 0), value)
        later = _without(ops.arange(keys.shape[2])[None] > index, queries.dtype)
        x = ops.matmul(attention_scores(queries, keys, later), values)
        return self._join(x), (keys, values)

    def _join(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Output `(B, T, D)` of heads of shape `(B, A, T, d)`."""
        num_tokens = size_of(x, 2)
        x = merge_heads(x)  # (B * T, D)
        if "attention" in self.options.inner_norms:
            x = self.norm(x)
        x = self.output_projection(x)
        return ops.reshape(x, (-1, num_tokens, x.shape[-1]))

    def _attend(
        self,
        queries: keras.KerasTensor,
        keys: keras.KerasTensor,
        values: keras.KerasTensor,
        logits: keras.KerasTensor | None,
        training: bool | None,
    ) -> keras.KerasTensor:
        """Means of the values, `(B, A, T, d)`, for one chunk of the queries after another."""
        num_tokens = queries.shape[2]
        size = self.options.query_chunk_size
        if size is None or size >= num_tokens:
            scores = attention_scores(queries, keys, logits)
            return ops.matmul(self.attention_dropout(scores, training=training), values)
        parts: list[keras.KerasTensor] = []
        for start in range(0, num_tokens, size):
            chunk = slice(start, start + size)
            with depend_on(parts[-1:]):  # else TensorFlow computes all chunks at once
                added = logits
                if logits is not None and logits.shape[2] > 1:  # one row for each query
                    added = logits[:, :, chunk]
                scores = attention_scores(queries[:, :, chunk], keys, added)
                weights = self.attention_dropout(scores, training=training)
                parts.append(ops.matmul(weights, values))
        return ops.concatenate(parts, axis=2)

    def _project(
        self, tokens: keras.KerasTensor, grid: tuple[Any, Any] | None = None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]:
        """Queries, keys and values, each of shape `(B, A, T, d)`."""
        num_tokens, width = size_of(tokens, 1), tokens.shape[-1]
        x = self.qkv(ops.reshape(tokens, (-1, width)))  # (B * T, 3 D)
        if 0 < len(self._with_bias) < len(_PARTS):
            x = x + self._joined_bias(x)
        queries, keys, values = (
            split_heads(part, num_tokens, self.options.num_heads)
            for part in ops.split(x, 3, axis=-1)
        )
        if self.options.qk_norm:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        if self.options.rope is not None:
            tables = self._tables_of(grid, queries.shape[-1])
            queries, keys = (
                rotate(x, tables, self.options.rope.interleaved) for x in (queries, keys)
            )
        return queries, keys, values

    def _tables_of(self, grid: tuple[Any, Any] | None, head_dim: int) -> Any:
        if grid is None and self._tables is not None:
            return self._tables
        if grid is None:
            raise ValueError(
                f"{self.path} has rotary positions for images of any size, and needs the grid of "
                "these: the block takes it from `maps`. Build the model for one size: "
                "keras_vit.models.resize_model(model, (height, width))."
            )
        assert self.options.rope is not None
        prefix = (self.num_prefix_tokens, self.num_registers)
        return rotary_tables_of(self.options.rope, grid, head_dim, *prefix)

    def _joined_bias(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Biases of queries, keys and values in one vector, `(3 D,)`; zeros for those without."""
        zeros = ops.zeros((x.shape[-1] // len(_PARTS),), x.dtype)
        parts = (self.biases.get(part) for part in _PARTS)
        return ops.concatenate([zeros if p is None else ops.cast(p, x.dtype) for p in parts])

    def _position_logits(self, queries: keras.KerasTensor) -> keras.KerasTensor | None:
        """Logits by the distance of each key: products `(B, A, T, T)`, or biases `(1, A, T, T)`."""
        if self.positions == "relative_bias":
            assert self.grid is not None  # `build` sees to it
            # Reshaped to what it is, a variable gets a dense gradient; it is a sum in float32.
            table = ops.reshape(self.bias_table, self.bias_table.shape)
            biases = ops.take(table, bias_index(self.grid, self.num_prefix_tokens == 1), axis=0)
            return ops.cast(ops.transpose(biases, (2, 0, 1))[None], queries.dtype)
        if self.positions != "relative":
            return None
        _, num_heads, num_tokens, head_dim = queries.shape
        relative_keys = ops.cast(self.relative_keys, queries.dtype) * head_dim**-0.5
        x = ops.matmul(ops.reshape(queries, (-1, head_dim)), relative_keys)
        x = ops.reshape(x, (-1, num_heads, num_tokens, 2 * num_tokens - 1))
        return _shift_rows(x, num_tokens)

    def count_costs(self, tokens_shape: Shape, num_queries: int | None = None) -> Cost:
        """Cost for one image, with `num_queries` as of `call`."""
        _, T, D = tokens_shape
        options, A = self.options, self.options.num_heads
        H = A * (options.head_width or D // A)  # channels of all heads
        Q = T if num_queries is None else num_queries
        pairs = Q * T if self._windows is None else self._windows.num_pairs
        offsets = 2 * T - 1 if self.positions == "relative" else 0
        macs = 3 * T * D * H + Q * D * H + 2 * pairs * H + T * H * offsets
        # Queries, keys, values and their means; weights before and after they are normalised.
        kept = (3 + 2 * options.qk_norm) * T * H + Q * H + 2 * A * pairs
        kept += Q * H * ("attention" in options.inner_norms)
        if options.dropout_rate:
            kept += 2 * Q * D  # the mask, and masked values
        if options.attention_dropout_rate:
            kept += 2 * A * pairs
        return Cost(macs, kept)


def _without(left_out: keras.KerasTensor, dtype: str) -> keras.KerasTensor:
    """Logits `(1, 1, Q, T)` that leave keys out, from booleans of shape `(Q, T)`."""
    logits = ops.where(left_out, _LEFT_OUT, 0.0)
    return ops.cast(logits, dtype)[None, None]


def _shift_rows(x: keras.KerasTensor, num_tokens: int) -> keras.KerasTensor:
    """From distance to key: element `(q, k)` of the result is `x[q, k - q + T - 1]`.

    Laid out flat with one column more, row `q` begins where it is needed in rows of `2 T - 1`.
    """
    num_heads = x.shape[1]
    x = ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1)))  # (B, A, T, 2 T)
    x = ops.reshape(x, (-1, num_heads, 2 * num_tokens * num_tokens))
    x = ops.pad(x, ((0, 0), (0, 0), (0, num_tokens - 1)))
    x = ops.reshape(x, (-1, num_heads, num_tokens + 1, 2 * num_tokens - 1))
    return x[:, :, :num_tokens, num_tokens - 1 :]  # (B, A, T, T)
