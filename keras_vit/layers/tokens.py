"""Learned tokens and position embeddings: class tokens, registers and positions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, check_choice, check_positive, pair
from keras_vit.config import POSITION_RESIZES
from keras_vit.layers.any_aspect import resampled_positions
from keras_vit.layers.any_size import grid_of, is_known, resampling
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.resize import sincos_2d

_KINDS = ("learned", "learned_2d", "sincos_2d")
_POSITION_STDDEV = 0.02  # as in the official model


@keras.saving.register_keras_serializable("keras_vit")
class ClassToken(Layer):
    """Puts learned tokens, the same for every image, among the tokens of each image.

    With the defaults, `x_class` of Eq. 1 in https://arxiv.org/abs/2010.11929. With other
    arguments it makes DeiT's distillation token (https://arxiv.org/abs/2012.12877) and registers
    (https://arxiv.org/abs/2309.16588).

    Args:
        num_tokens: How many tokens to learn.
        insert_at: How many tokens stay before them.
        stddev: Standard deviation of the normal start; 0 starts at zero, as the official code.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, T + num_tokens, D)`.

    Raises:
        ValueError: If `num_tokens` is not positive or there are fewer than `insert_at` tokens.
    """

    def __init__(self, num_tokens: int = 1, insert_at: int = 0, stddev: float = 0.0, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        check_positive("num_tokens", num_tokens)
        self.num_tokens = num_tokens
        self.insert_at = insert_at
        self.stddev = stddev

    def build(self, tokens_shape: Shape) -> None:
        if tokens_shape[1] is not None and not 0 <= self.insert_at <= tokens_shape[1]:
            raise ValueError(
                f"Tokens can be inserted at 0 to {tokens_shape[1]} of {tokens_shape[1]} tokens. "
                f"Received: insert_at={self.insert_at}."
            )
        shape = (1, self.num_tokens, tokens_shape[-1])
        start = keras.initializers.RandomNormal(stddev=self.stddev) if self.stddev else "zeros"
        self.token = self.add_weight(shape, start, name="token")

    def call(self, tokens: Tensor) -> Tensor:
        batch = ops.shape(tokens)[0]
        width = tokens.shape[-1]
        token = ops.cast(self.token, tokens.dtype)
        token = ops.broadcast_to(token, (batch, self.num_tokens, width))
        parts = [tokens[:, : self.insert_at], token, tokens[:, self.insert_at :]]
        return ops.concatenate(parts if self.insert_at else parts[1:], axis=1)

    def count_costs(self, *_: Shape) -> Cost:
        """Cost for one image: sums of constants."""
        return Cost()


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbedding(Layer):
    """Adds an embedding of its place to every token.

    The `+ E_pos` of Eq. 1 in https://arxiv.org/abs/2010.11929, and the alternatives of its
    Appendix D.4. The layer knows its grid, so that its weights can be resized to another image
    size.

    Args:
        grid: Patches along (height, width).
        num_prefix_tokens: Tokens before the patches that have a place too.
        kind: `"learned"` (a vector for every place), `"learned_2d"` (a half for the column, then
            a half for the row) or `"sincos_2d"` (fixed, https://arxiv.org/abs/2205.01580; prefix
            tokens get zeros).

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`, `T = num_prefix_tokens + N`.
        image_grids: Optional integer tensor of shape `(B, 2)`, rows and columns of the patches of
            each image, row by row before padding: the learned table is resampled to them.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        ValueError: If `T` does not fit `grid` and `num_prefix_tokens`, `kind` is unknown, or
            `image_grids` are given with another kind or prefix tokens.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        num_prefix_tokens: int = 1,
        kind: str = "learned",
        resize: str = "align_corners",
        **kwargs: Any,
    ):
        super().__init__(autocast=False, **kwargs)
        check_choice("resize", resize, POSITION_RESIZES)
        check_choice("kind", kind, _KINDS)
        self.grid = pair("grid", grid)
        self.num_prefix_tokens = num_prefix_tokens
        self.kind = kind
        self.resize = resize

    def build(
        self,
        tokens_shape: Shape,
        maps_shape: Shape | None = None,
        image_grids_shape: Shape | None = None,
    ) -> None:
        expected = self.num_prefix_tokens + self.grid[0] * self.grid[1]
        if image_grids_shape is not None:
            if self.kind != "learned" or self.num_prefix_tokens:
                raise ValueError(
                    "Only learned positions of patches alone are resampled for each image. "
                    f"Received: image_grids, with kind={self.kind!r} and num_prefix_tokens="
                    f"{self.num_prefix_tokens}."
                )
        elif maps_shape is None and tokens_shape[1] != expected:
            raise ValueError(
                f"A grid of {self.grid[0]} x {self.grid[1]} patches and {self.num_prefix_tokens} "
                f"prefix tokens make {expected} tokens. Received: {tokens_shape[1]} tokens, shape "
                f"{tuple(tokens_shape)}. Set `grid` and `num_prefix_tokens` to what comes before "
                "this layer."
            )
        width = tokens_shape[-1]
        if self.kind == "learned":
            self.embedding = self._add_table("embedding", expected, width)
        elif self.kind == "learned_2d":
            self.columns = self._add_table("columns", self.grid[1], width // 2)
            self.rows = self._add_table("rows", self.grid[0], width - width // 2)
            if self.num_prefix_tokens:
                self.prefix = self._add_table("prefix", self.num_prefix_tokens, width)
        else:
            prefix = np.zeros((self.num_prefix_tokens, width), "float32")
            self._fixed = np.concatenate([prefix, sincos_2d(self.grid, width)])[None]  # (1, T, D)

    def _add_table(self, name: str, places: int, width: int) -> keras.Variable:
        normal = keras.initializers.RandomNormal(stddev=_POSITION_STDDEV)
        return self.add_weight((1, places, width), normal, name=name)

    def call(
        self, tokens: Tensor, maps: Tensor | None = None, image_grids: Tensor | None = None
    ) -> Tensor:
        tokens = ops.cast(tokens, self.variable_dtype)  # also under half-precision policies
        if image_grids is not None:
            places = resampled_positions(self.table(), self.grid, image_grids, tokens.shape[1])
            return tokens + ops.cast(places, tokens.dtype)
        grid = self.grid if maps is None else grid_of(maps)
        is_own = is_known(grid) and grid == self.grid
        table = self.table() if is_own else self._resized(grid, tokens.shape[-1])
        return tokens + ops.cast(table, tokens.dtype)  # (B, T, D)

    def compute_output_spec(
        self, tokens: Tensor, maps: Tensor | None = None, image_grids: Tensor | None = None
    ) -> Tensor:
        return keras.KerasTensor(tokens.shape, dtype=self.variable_dtype)

    def _resized(self, grid: tuple[Any, Any], width: int) -> Tensor:
        """The table of another grid, whose sizes may be tensors, `(1, T, D)`."""
        if self.kind == "sincos_2d":
            xp = np if is_known(grid) else ops
            patches = ops.cast(sincos_2d(grid, width, xp=xp), self.variable_dtype)
            return ops.pad(patches, ((self.num_prefix_tokens, 0), (0, 0)))[None]
        rows, columns = (
            resampling(old, new, self.resize, self.variable_dtype)
            for old, new in zip(self.grid, grid, strict=True)
        )
        if self.kind == "learned_2d":
            rows, columns = ops.matmul(rows, self.rows), ops.matmul(columns, self.columns)
            return self._joined(rows, columns, grid)
        count = self.num_prefix_tokens
        prefix, cells = self.embedding[:, :count], self.embedding[:, count:]
        cells = ops.reshape(cells, (self.grid[0], self.grid[1] * width))
        cells = ops.reshape(ops.matmul(rows, cells), (-1, self.grid[1], width))
        cells = ops.matmul(columns, cells)  # (rows, columns, D)
        return ops.concatenate([prefix, ops.reshape(cells, (1, -1, width))], axis=1)

    def _joined(self, rows: Any, columns: Any, grid: tuple[Any, Any]) -> Tensor:
        """The table of "learned_2d", `(1, T, D)`, from its halves."""
        x = ops.tile(columns, (1, grid[0], 1))  # (1, N, D / 2)
        y = ops.repeat(rows, grid[1], axis=1)  # (1, N, D / 2)
        places = ops.concatenate([x, y], axis=-1)  # (1, N, D)
        if self.num_prefix_tokens:
            places = ops.concatenate([self.prefix, places], axis=1)  # (1, T, D)
        return places

    def table(self) -> Tensor:
        """The embedding of every place, a float tensor of shape `(1, T, D)`."""
        if self.kind == "learned":
            return ops.convert_to_tensor(self.embedding)
        if self.kind == "sincos_2d":
            return ops.convert_to_tensor(self._fixed)
        return self._joined(self.rows, self.columns, self.grid)

    def count_costs(self, *_: Shape) -> Cost:
        """Cost for one image: sums of constants."""
        return Cost()
