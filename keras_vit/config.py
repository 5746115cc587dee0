"""Configurations of models and preprocessing: frozen dataclasses that check their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from keras_vit.checks import (
    check_choice,
    check_fields,
    check_heads,
    check_names,
    check_positive,
    check_rate,
    check_whole_patches,
    chosen_names,
    counts,
    from_fields,
    pair,
)

# What the outputs of a model mean.
TASKS = ("single_label", "multi_label", "regression")
POOLINGS = ("token", "gap", "map", "token_gap", "attention")
# Biases of the blocks for the rows and columns between two patches.
POSITION_BIASES = ("relative_bias", "learned_relative_bias")
# Positions that the blocks take care of.
BLOCK_POSITIONS = ("relative", "relative_bias")
POSITION_EMBEDDINGS = ("learned", "none", "learned_2d", "sincos_2d", "relative", *POSITION_BIASES)
# Kinds of `GridAttention`, whose weights come from positions.
GRID_ATTENTIONS = ("relative_2d", "offsets", "quadratic")
GELUS = ("tanh", "exact", "quick", "relu")
NORMS = ("layer", "rms")
# Parts of a model that have biases to leave out.
BIASES = ("patch", "query", "key", "value", "projection", "mlp")
# Methods of `resize_positions`, and of `resize_position_bias`.
POSITION_RESIZES = ("align_corners", "linear", "bilinear", "bicubic", "bicubic_plain")
BIAS_RESIZES = (*POSITION_RESIZES, "geometric")
# Whose rules resizing and cropping follow, and how the crop lies in the image.
LIBRARIES = ("tensorflow", "timm", "transformers")
CROP_MODES = ("center", "squash", "border")
_MAX_CHANNELS = 1 << 16
RESNET_POOLINGS = ("gap",)
# Masked patch prediction: what is predicted of a patch, and levels per channel of its colours.
PATCH_TARGETS = ("mean_color", "small_patch", "pixels")
COLOR_LEVELS = 8
STANDARDIZATIONS = ("std", "variance", "torch")
Config = TypeVar("Config", bound="ViTConfig | ResNetConfig")
_CHOICES = {
    "interpolation": ("bilinear", "bicubic", "area", "nearest"),
    "library": LIBRARIES,
    "crop_mode": CROP_MODES,
    "standardization": STANDARDIZATIONS,
    "coordinates": ("index", "centered"),
    "order": ("hw", "wh"),
    "gelu": GELUS,
    "norm": NORMS,
    "pooling": POOLINGS,
    "grid_attention": GRID_ATTENTIONS,
    "position_embedding": POSITION_EMBEDDINGS,
}
_COUNTS = (
    "width", "depth", "channels", "classes", "pre_logits", "map_heads", "map_mlp_dim", "num_heads",
    "max_num_patches", "mlp_dim", "head_width", "query_chunk_size", "width_factor",
)  # fmt: skip
_RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate")
# How fields are checked and converted, by their names.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_COUNTS, check_positive),
    **dict.fromkeys(_RATES, check_rate),
    **dict.fromkeys(("patch_size", "image_size", "window_size", "reference_grid"), pair),
    **{name: partial(check_choice, choices=known) for name, known in _CHOICES.items()},
    "stages": counts,
    "inner_norms": partial(chosen_names, known=("attention", "mlp")),
    "without_bias": partial(chosen_names, known=BIASES),
}


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of pixels in [0, 255] for the first layer.

    The model, the input pipeline and every export use this object.

    Args:
        mean: Per-channel mean in [0, 255]. One value serves all channels.
        std: Per-channel standard deviation in [0, 255], above 0.
        interpolation: How images are resized: `"bilinear"`, `"bicubic"`, `"area"` or `"nearest"`.
        crop_ratio: Side of the centre crop over the shorter side of the resized image, in (0, 1].
            `None` squashes the whole image to the model's size, as the official code does.
        library: Whose code resizes and crops in evaluation: `"tensorflow"`, as the official code
            and big_vision, or `"timm"` or `"transformers"`, whose resampling is Pillow's and whose
            sizes and offsets round differently. The pixels are theirs.
        crop_mode: What is resized to the model's size divided by `crop_ratio`: `"center"` the
            shorter side, `"squash"` both sides, or `"border"` the longer side, with a border of the
            mean colour. Names and meaning are timm's.
        exif_orientation: Whether JPEG, PNG and WebP files are turned as their EXIF orientation
            says, in training too.

    Raises:
        ValueError: If a value is out of its range, values do not fit together, or the lengths of
            `mean` and `std` differ.
    """

    mean: tuple[float, ...] = (127.5,)
    std: tuple[float, ...] = (127.5,)
    interpolation: str = "bilinear"
    crop_ratio: float | None = None
    library: str = "tensorflow"
    crop_mode: str = "center"
    exif_orientation: bool = True

    def __post_init__(self) -> None:
        for field in ("mean", "std"):
            value = getattr(self, field)
            values = value if isinstance(value, Iterable) else (value,)
            object.__setattr__(self, field, tuple(float(v) for v in values))
        if len(self.mean) != len(self.std):
            raise ValueError(
                "`mean` and `std` need one value a channel, or one value each. "
                f"Received: mean={self.mean}, std={self.std}."
            )
        if min(self.std) <= 0:
            raise ValueError(f"`std` must be above 0. Received: std={self.std}.")
        check_fields(self, _CHECKS)
        if self.crop_ratio is not None and not 0 < self.crop_ratio <= 1:
            raise ValueError(
                f"`crop_ratio` must be in (0, 1], or None. Received: {self.crop_ratio}."
            )
        if self.library != "tensorflow":
            check_choice("interpolation", self.interpolation, ("bilinear", "bicubic"))
        if self.crop_mode == "border" and (self.library != "timm" or self.crop_ratio is None):
            raise ValueError(
                'crop_mode="border" is timm\'s: it needs library="timm" and a `crop_ratio`. '
                f"Received: library={self.library!r}, crop_ratio={self.crop_ratio}."
            )

    def per_channel(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns mean and standard deviation of each of `channels` channels.

        Raises:
            ValueError: If there are statistics for another number of channels.
        """
        if len(self.mean) not in (1, channels):
            raise ValueError(
                f"The preprocessing has statistics for {len(self.mean)} channels, the image has "
                f"{channels}. Pass preprocessing=Preprocessing(mean, std) with 1 or {channels} "
                "values each."
            )
        if channels > _MAX_CHANNELS:
            raise ValueError(
                f"`channels` must be {_MAX_CHANNELS:,} or fewer. Received: {channels}."
            )
        repeats = channels // len(self.mean)
        return self.mean * repeats, self.std * repeats


@dataclasses.dataclass(frozen=True)
class ResNetStem:
    """The ResNet before the transformer of a hybrid, Section 3.1 of the ViT paper.

    The root makes feature maps of a quarter of the image size. Each stage of bottleneck units
    but the first halves them again. Norms follow convolutions, unlike those of `ResNetConfig`.

    Args:
        stages: Units in each stage; `()` is the root alone.
        width_factor: Multiple of the channels of a ResNet, 64 after the root.
        norm_epsilon: Added to the variance in every group norm.
        standardization: `"std"` standardises the kernels of the convolutions as the official
            code does, `"torch"` as timm and transformers do; `None` is for kernels that are so
            already, see `fold_standardization`.

    Raises:
        ValueError: If a value is out of its range.
    """

    stages: tuple[int, ...] = ()
    width_factor: int = 1
    norm_epsilon: float = 1e-6
    standardization: str | None = "std"

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)

    @property
    def channels(self) -> int:
        """Channels of the feature maps."""
        root = 64 * self.width_factor
        return 4 * root * 2 ** (len(self.stages) - 1) if self.stages else root

    @property
    def stride(self) -> int:
        """Pixels of the image per position of the feature maps."""
        return 4 * 2 ** max(0, len(self.stages) - 1)

    def map_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the feature maps for images of `image_size` pixels."""
        height, width = image_size
        return -(-height // self.stride), -(-width // self.stride)  # rounded up


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """A BiT ResNet (https://arxiv.org/abs/1912.11370), the baseline of the ViT paper.

    Pre-activation units, group norm in place of batch norm, and standardised kernels.

    Args:
        stages: Units in each stage, `(3, 4, 6, 3)` in the R50.
        width_factor: Multiple of the channels of a ResNet, 64 after the root.
        image_size: Pixels along (height, width); an integer means a square. `None` makes a model
            for images of any size.
        channels: Channels of an image.
        classes: Outputs of the head, or `None` for a backbone without one.
        pooling: `"gap"` (mean over positions), or `None` (the feature maps; without a head only).
        norm_epsilon: Added to the variance in every group norm.
        standardization: `"variance"` standardises the kernels of the convolutions as the official
            code does, `"torch"` as timm and transformers do; `None` is for kernels that are so
            already, see `fold_standardization`.
        classifier_activation: Activation of the head by its name in Keras; `None` gives logits.
        head_bias: Initial bias of the head.
        preprocessing: From pixels to the model's range; used by the data pipeline and exports too.
        include_preprocessing: Whether the model applies it, and so takes pixels in [0, 255].

    Raises:
        ValueError: If a value is out of its range or two do not fit together.
    """

    stages: tuple[int, ...]
    width_factor: int = 1
    image_size: tuple[int, int] | None = (224, 224)
    channels: int = 3
    classes: int | None = 1000
    pooling: str | None = "gap"
    norm_epsilon: float = 1e-5
    standardization: str | None = "variance"
    classifier_activation: str | None = None
    head_bias: float = 0.0
    preprocessing: Preprocessing = Preprocessing()
    include_preprocessing: bool = True

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, (None, *RESNET_POOLINGS))
        check_fields(self, _CHECKS)
        if not self.stages:
            raise ValueError("A ResNet needs a stage. Received: stages=().")
        if self.pooling is None and self.classes is not None:
            raise ValueError(
                'The head reads the mean of the maps. Choose pooling="gap", or classes=None. '
                f"Received: pooling=None, classes={self.classes}."
            )
        self.preprocessing.per_channel(self.channels)

    @property
    def input_shape(self) -> tuple[int | None, int | None, int]:
        """Height, width and channels of an image; `None` for images of any size."""
        height, width = self.image_size or (None, None)
        return height, width, self.channels

    @property
    def width(self) -> int:
        """Channels of the last feature maps, and of the head's input."""
        return 256 * self.width_factor * 2 ** (len(self.stages) - 1)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for `ResNetConfig(**fields)`."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class RotaryPositions:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864) of patches on a grid.

    The channels of a head form pairs, and the position of a patch turns the pairs of its query and
    key: half of them by angles that grow with the row, half with the column. Pair `k` of `n` in a
    half has the frequency `base ** (-k / n)`. Class tokens are not rotated.

    Args:
        coordinates: `"index"` counts rows and columns (EVA-02, https://arxiv.org/abs/2303.11331),
            one radian a patch at the highest frequency; `"centered"` takes the centres of patches
            in an image from -1 to 1 (DINOv3, https://arxiv.org/abs/2508.10104), `2 pi` radians a
            unit.
        base: Base of the frequencies.
        interleaved: Whether neighbouring channels make a pair, as in EVA-02, or channels half a
            head apart, as in DINOv3.
        offset: Added to the indices, before they are scaled to `reference_grid`.
        reference_grid: Patches along (height, width) that indices are scaled to, so that images of
            another size have the angles of the pre-training; `None` leaves them as they are.
        order: `"hw"` if the row turns the first half of the pairs, `"wh"` if the column does.
        register_base: Base of the frequencies of registers, which are rotated as the patches of a
            square grid of their own, as in ViT-5 (https://arxiv.org/abs/2602.08071); `None` leaves
            them as they are.

    Raises:
        ValueError: If a value is out of its range or two do not fit together.
    """

    coordinates: str = "index"
    base: float = 10000.0
    interleaved: bool = True
    offset: float = 0.0
    reference_grid: tuple[int, int] | None = None
    order: str = "hw"
    register_base: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        for field in ("base", "register_base"):
            value = getattr(self, field)
            if value is not None and value <= 1:
                raise ValueError(f"`{field}` must be above 1. Received: {value}.")
        if self.coordinates == "centered" and (self.offset or self.reference_grid):
            raise ValueError(
                '`offset` and `reference_grid` belong to coordinates="index"; centres of patches '
                f"need neither. Received: offset={self.offset}, "
                f"reference_grid={self.reference_grid}."
            )

    def check_registers(self, num_registers: int) -> None:
        """Raises ValueError if rotated registers do not form a square grid."""
        square = num_registers > 0 and math.isqrt(num_registers) ** 2 == num_registers
        if self.register_base is not None and not square:
            raise ValueError(
                "Rotated registers must form a square grid: 1, 4, 9, ... Received: "
                f"num_registers={num_registers}, register_base={self.register_base}. Change "
                "num_registers, or set register_base to None."
            )


def kept_of(num_patches: int, patch_dropout_rate: float) -> int:
    """Number of patch tokens that patch dropout keeps in training: at least one."""
    return max(1, round(num_patches * (1 - patch_dropout_rate)))


def merged_of(num_patches: int, num_merged_tokens: int) -> int:
    """Number of patch tokens that a block merges: at most half of them."""
    return min(num_merged_tokens, num_patches // 2)


@dataclasses.dataclass(frozen=True)
class BlockOptions:
    """Options of a transformer block, for `ViTConfig.block` and `TransformerBlock`.

    A switch of the block is declared here alone, and acts in `keras_vit.layers`.

    Args:
        num_heads: Attention heads, which divide `width` unless there is a `head_width`.
        mlp_dim: Hidden dimension of the MLP.
        head_width: Dimension of queries, keys and values of one head; `None` divides `width` among
            the heads.
        gelu: `"tanh"` as in the official code, `"exact"` as in timm and transformers, `"quick"`, `x
            * sigmoid(1.702 x)` (https://arxiv.org/abs/1606.08415), as in OpenAI's CLIP, or
            `"relu"`, `max(x, 0)` in its place.
        swiglu: Whether the MLP of a block has a gate, `silu(a) * b` in place of `gelu(a)`
            (https://arxiv.org/abs/2002.05202). `mlp_dim` is the dimension after the gate.
        norm: `"layer"`, or `"rms"` without mean and shift (https://arxiv.org/abs/1910.07467).
        norm_epsilon: Added to the variance in every norm.
        inner_norms: Norms before the last product of a branch: `"attention"` and `"mlp"`
            (https://arxiv.org/abs/2110.09456), as in EVA-02.
        qk_norm: Whether queries and keys are normalised per head
            (https://arxiv.org/abs/2302.05442).
        qk_norm_bias: Whether these norms have a bias, as timm's; RMS norms have none.
        layer_scale: Initial value of the learned scale of every branch, or `None` for no scale.
        without_bias: Dense layers without bias: any of `"patch"`, `"query"`, `"key"`, `"value"`,
            `"projection"` (of the attention) and `"mlp"`. The bias of keys changes no output but
            with `rope` or `qk_norm`.
        rope: Rotary position embedding of queries and keys, a `RotaryPositions`, in place of
            `position_embedding` or together with it.
        dropout_rate: After the position embedding and every dense layer but q, k, v; in [0, 1).
        attention_dropout_rate: On the attention weights, in [0, 1).
        rematerialize: Whether training stores only the input of each block and recomputes the rest
            for the gradient: less memory, about a third more computation.
        query_chunk_size: Queries whose attention weights are computed at a time, or `None` for all:
            less memory for large images.

    Raises:
        ValueError: If a value is out of its range or two do not fit together.
    """

    num_heads: int
    mlp_dim: int
    head_width: int | None = None
    gelu: str = "tanh"
    swiglu: bool = False
    norm: str = "layer"
    norm_epsilon: float = 1e-6
    inner_norms: tuple[str, ...] = ()
    qk_norm: bool = False
    qk_norm_bias: bool = False
    layer_scale: float | None = None
    without_bias: tuple[str, ...] = ()
    rope: RotaryPositions | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    rematerialize: bool = False
    query_chunk_size: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        check_exclusions(vars(self))


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """A Vision Transformer, https://arxiv.org/abs/2010.11929: Table 1 and what varies around it.

    Args:
        patch_size: Pixels along (height, width) of a patch, or positions of the stem's feature
            maps; an integer means a square.
        width: Dimension `D` of a token.
        depth: Number of transformer blocks.
        block: What the blocks are made of, `BlockOptions` or its fields.
        image_size: Pixels along (height, width); an integer means a square.
        channels: Channels of an image.
        classes: Outputs of the head, or `None` for a backbone without one.
        pooling: Input of the head: the class `"token"`, `"gap"` (mean of the patch tokens), `"map"`
            (attention with a learned query, and an MLP), `"attention"` (the same without MLP, as in
            AIMv2), `"token_gap"` (the class token, then the mean of the patch tokens, as DINOv2's
            classifier), or `None` (every token).
        map_prefix_tokens: Whether `"map"` and `"attention"` also attend to the class token and
            registers.
        gap_prefix_tokens: Whether `"gap"` is the mean of all tokens, class token and registers too.
        map_heads: Attention heads of `"map"` and `"attention"`; `None` takes `num_heads`.
        map_mlp_dim: Hidden dimension of the MLP of `"map"`; `None` takes `mlp_dim`.
        class_token: Whether a learned token precedes the patches.
        distillation_token: Whether DeiT's second learned token follows the class token.
        num_registers: Learned tokens after the class token that no head reads.
        position_embedding: `"learned"` (a vector per position, the paper's), `"learned_2d"` (a row
            and a column half), `"sincos_2d"` (fixed), `"relative"` (learned key offsets in every
            block), `"relative_bias"` (a learned bias of every head and block for the rows and
            columns between two patches, as in BEiT, https://arxiv.org/abs/2106.08254),
            `"learned_relative_bias"` (both), or `"none"`.
        grid_attention: Attention of https://arxiv.org/abs/1911.03584 in place of that of the
            blocks: `"relative_2d"`, `"offsets"` or `"quadratic"`, see `GridAttention`; or `None`.
        position_on_class_token: Whether the class and distillation tokens have positions.
        position_resize: How `adapt_model` and `fine_tune` resize positions to another image size, a
            method of `resize_positions`, or of `resize_position_bias` for `"relative_bias"`.
            Loading a checkpoint sets the method of its project.
        pre_logits: Width of the tanh layer before the head, or `None` for a linear head.
        norm_patches: Whether patches are normalised before class tokens and positions, as in AIMv2
            (https://arxiv.org/abs/2411.14402).
        norm_before_blocks: Whether tokens are normalised before the first block, as in CLIP
            (https://arxiv.org/abs/2103.00020).
        norm_after_blocks: Whether the tokens of the last block are normalised; `False` in the
            Perception Encoder for language and for dense prediction
            (https://arxiv.org/abs/2504.13181).
        norm_after_pooling: Whether the last norm follows the pooling, as in timm's `avg` models.
        stochastic_depth_rate: Probability that the last block's branches are dropped, growing
            linearly from 0 at the first block; in [0, 1).
        patch_dropout_rate: Share of the patch tokens left out of each training image, in [0, 1).
        post_norm: Whether norms follow the sums of the blocks, as in the first transformer
            (https://arxiv.org/abs/1706.03762), in place of norms before attention and MLP and after
            the last block.
        num_merged_tokens: Patch tokens that every block merges into their most similar ones, at
            most half of its input (https://arxiv.org/abs/2210.09461): faster, a little less
            accurate, with the same weights.
        window_size: Patches along (height, width) of the windows that patches attend to, as in
            ViTDet (https://arxiv.org/abs/2203.16527, 14 there), or `None` for all patches. Class
            token and registers attend to everything, and everything to them. The weights are the
            same, and so are the outputs where one window covers the image.
        global_blocks: Indices of the blocks whose patches attend to all patches in spite of
            `window_size`; `None` takes the last of each quarter of the blocks.
        classifier_activation: Activation of the head by its name in Keras; `None` gives logits.
        head_bias: Initial bias of the head; -10 in the official ImageNet-21k pre-training. `None`
            leaves it out, as in the projection of CLIP.
        stem: A ResNet whose feature maps are split into patches, the paper's hybrid.
        max_num_patches: Tokens of an image of any aspect ratio, its patches and padding, as in the
            NaFlex models of SigLIP 2 (https://arxiv.org/abs/2502.14786): the model takes what
            `keras_vit.data.fit_patches` makes of an image, and `image_size` is that of the table of
            positions. `None` for images of one size.
        preprocessing: From pixels to the model's range; used by the data pipeline and exports too.
        include_preprocessing: Whether the model applies it, and so takes pixels in [0, 255].
        any_size: Whether the model takes images of any size: `image_size` is the size that learned
            positions are for, and they are resized to that of each batch by `position_resize`.
            Zeros after the preprocessing fill images up to whole patches, at the bottom and at the
            right.

    Raises:
        ValueError: If a value is out of its range or two do not fit together.
    """

    patch_size: tuple[int, int]
    width: int
    depth: int
    block: BlockOptions
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    classes: int | None = 1000
    pooling: str | None = "token"
    map_prefix_tokens: bool = True
    gap_prefix_tokens: bool = False
    map_heads: int | None = None
    map_mlp_dim: int | None = None
    class_token: bool = True
    distillation_token: bool = False
    num_registers: int = 0
    position_embedding: str = "learned"
    grid_attention: str | None = None
    position_on_class_token: bool = True
    position_resize: str = "align_corners"
    pre_logits: int | None = None
    norm_patches: bool = False
    norm_before_blocks: bool = False
    norm_after_blocks: bool = True
    norm_after_pooling: bool = False
    stochastic_depth_rate: float = 0.0
    patch_dropout_rate: float = 0.0
    post_norm: bool = False
    num_merged_tokens: int = 0
    window_size: tuple[int, int] | None = None
    global_blocks: tuple[int, ...] | None = None
    classifier_activation: str | None = None
    head_bias: float | None = 0.0
    stem: ResNetStem | None = None
    max_num_patches: int | None = None
    preprocessing: Preprocessing = Preprocessing()
    include_preprocessing: bool = True
    any_size: bool = False

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        if self.global_blocks is not None:
            blocks = tuple(sorted(set(self.global_blocks)))
            object.__setattr__(self, "global_blocks", blocks)
        if self.num_merged_tokens:
            check_positive("num_merged_tokens", self.num_merged_tokens)
        if self.num_registers < 0:
            raise ValueError(f"`num_registers` must be 0 or more. Received: {self.num_registers}.")
        bias = self.position_embedding in POSITION_BIASES
        methods = BIAS_RESIZES if bias else POSITION_RESIZES
        check_choice("position_resize", self.position_resize, methods)
        check_exclusions({**vars(self), **vars(self.block)})
        self._check_sizes()
        self.preprocessing.per_channel(self.channels)

    def _check_sizes(self) -> None:
        """Raises ValueError if sizes do not divide one another."""
        if self.block.head_width is None:
            check_heads(self.width, self.block.num_heads)
        if self.block.head_width is None or self.pooling in ("map", "attention"):
            check_heads(self.width, self.map_heads or self.block.num_heads)
        if self.stem is None:
            check_whole_patches(self.image_size, self.patch_size)
        else:
            maps = self.stem.map_size(self.image_size)
            check_whole_patches(self.image_size, self.patch_size, maps, self.stem.stride)
        multiple = {"sincos_2d": 4, "learned_2d": 2}.get(self.position_embedding, 1)
        if self.width % multiple:
            raise ValueError(
                f"position_embedding={self.position_embedding!r} needs a width that {multiple} "
                f"divides. Received: width={self.width}."
            )
        if self.block.rope is not None:
            self.block.rope.check_registers(self.num_registers)
        if self.block.rope is not None and self.head_dim % 4:
            raise ValueError(
                "Rotary positions turn pairs of channels for rows and columns, so 4 must divide "
                f"the dimension of a head. Received: width={self.width}, num_heads="
                f"{self.block.num_heads}, {self.head_dim} channels a head. Choose other num_heads."
            )
        if self.num_merged_tokens > self.num_patches // 2:
            raise ValueError(
                f"A block merges at most half of the patch tokens, here {self.num_patches // 2} of "
                f"{self.num_patches}. Received: num_merged_tokens={self.num_merged_tokens}."
            )
        if not all(0 <= index < self.depth for index in self.global_blocks or ()):
            raise ValueError(
                f"`global_blocks` are some of the blocks 0 to {self.depth - 1} of a model with "
                f"`window_size`. Received: {self.global_blocks}, window_size={self.window_size}."
            )

    def window_of(self, index: int) -> tuple[int, int] | None:
        """The `window_size` of one block, `None` for a global one."""
        quarters = tuple(self.depth * part // 4 - 1 for part in (1, 2, 3, 4))
        chosen = quarters if self.global_blocks is None else self.global_blocks
        return None if index in chosen else self.window_size

    @property
    def takes_patches(self) -> bool:
        """Whether the model takes patches of images of any aspect ratio."""
        return self.max_num_patches is not None

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along (height, width), of images of `image_size`."""
        size = self.image_size if self.stem is None else self.stem.map_size(self.image_size)
        (height, width), (rows, columns) = size, self.patch_size
        return height // rows, width // columns

    @property
    def num_patches(self) -> int:
        """Patch tokens of one image, with padding."""
        rows, columns = self.grid
        return self.max_num_patches or rows * columns

    @property
    def num_class_tokens(self) -> int:
        """Number of class and distillation tokens."""
        return int(self.class_token) + int(self.distillation_token)

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches: class, distillation, registers."""
        return self.num_class_tokens + self.num_registers

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """Number of tokens in the input of each block, and in the output of the last."""
        patches = [self.num_patches]
        for _ in range(self.depth):
            patches.append(patches[-1] - merged_of(patches[-1], self.num_merged_tokens))
        return tuple(self.num_prefix_tokens + count for count in patches)

    @property
    def head_dim(self) -> int:
        """Dimension of one attention head."""
        return self.block.head_width or self.width // self.block.num_heads

    @property
    def block_positions(self) -> str | None:
        """Positions that the blocks take care of, one of `BLOCK_POSITIONS`."""
        found = self.position_embedding.removeprefix("learned_")
        return found if found in BLOCK_POSITIONS else None

    @property
    def learned_resize(self) -> str:
        """How learned positions are resized; beside biases, as their projects resize both."""
        both = {"geometric": "bicubic", "bilinear": "bicubic_plain"}
        method = self.position_resize
        return both.get(method, method) if self.block_positions else method

    @property
    def ends_in_norm(self) -> bool:
        """Whether the last layer before any pooling is a norm, and not a block."""
        return self.norm_after_blocks and not (self.norm_after_pooling or self.post_norm)

    @property
    def input_shape(self) -> tuple[int | None, int | None, int]:
        """Height, width and channels of an image; `None` for images of any size."""
        height, width = (None, None) if self.any_size else self.image_size
        return height, width, self.channels

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, those of the block among them, for `make_config`."""
        fields = dataclasses.asdict(self)
        block = fields.pop("block")
        return {**fields, **block}


_PARTS = {
    "block": BlockOptions,
    "rope": RotaryPositions,
    "stem": ResNetStem,
    "preprocessing": Preprocessing,
}
_CHECKS |= {name: partial(from_fields, kind=kind) for name, kind in _PARTS.items()}
# Fields that stand in `ViTConfig.block`, and by the names of which everybody else asks for them:
# tables of families, cards, options of `create_model`, keys of files.
BLOCK_FIELDS = tuple(field.name for field in dataclasses.fields(BlockOptions))
_OF_LAYERS = ("name", "dtype", "trainable", "activity_regularizer")  # arguments of Keras layers


def take_options(**kwargs: Any) -> tuple[BlockOptions, dict[str, Any]]:
    """Makes the options of a block from the keywords of a layer.

    Returns:
        The options, and the keywords of every Keras layer.

    Raises:
        ValueError: If a keyword is of neither, or a value is out of its range.
    """
    check_names("option", kwargs, (*BLOCK_FIELDS, *_OF_LAYERS))
    fields = {name: kwargs.pop(name) for name in BLOCK_FIELDS if name in kwargs}
    return BlockOptions(**fields), kwargs


def field_names(config: Any) -> tuple[str, ...]:
    """Names of the fields of a configuration, with those of its block in place of `block`."""
    names = tuple(field.name for field in dataclasses.fields(config))
    return (*(name for name in names if name != "block"), *BLOCK_FIELDS * ("block" in names))


def field_value(config: Any, name: str, *default: Any) -> Any:
    """The value of a field of a configuration or of its block, as `getattr`."""
    is_of_block = isinstance(config, ViTConfig) and name in BLOCK_FIELDS
    return getattr(config.block if is_of_block else config, name, *default)


def make_config(**fields: Any) -> ViTConfig:
    """Makes a `ViTConfig` from its fields and those of its block, `BlockOptions`, by name.

    Args:
        **fields: Fields of `ViTConfig` but `block`, and fields of `BlockOptions`.

    Returns:
        The configuration.

    Raises:
        ValueError: If there is no such field, a value is out of its range or two do not fit
            together.

    Example:

    >>> config = keras_vit.make_config(patch_size=16, width=192, depth=12, num_heads=3, mlp_dim=768)
    >>> config.block.num_heads
    3
    """
    check_names("field", fields, field_names(ViTConfig))
    block = {name: fields.pop(name) for name in BLOCK_FIELDS if name in fields}
    return ViTConfig(**fields, block=BlockOptions(**block))


def replace_fields(config: Config, **changes: Any) -> Config:
    """As `dataclasses.replace`, also for fields of the block.

    Args:
        config: A `ViTConfig` or a `ResNetConfig`.
        **changes: New values, by the names of fields.

    Returns:
        A configuration of the same family.

    Raises:
        ValueError: If there is no such field, a value is out of its range or two do not fit
            together.
    """
    check_names("field", changes, field_names(config))
    if isinstance(config, ViTConfig):
        block = {name: changes.pop(name) for name in BLOCK_FIELDS if name in changes}
        changes["block"] = dataclasses.replace(config.block, **block)
    return dataclasses.replace(config, **changes)


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """One row of `EXCLUSIONS`: the demands of a choice on other fields.

    Args:
        field: The field that is chosen, of `ViTConfig` or its block.
        values: The values that the row is about; `()` stands for all but the default.
        needs: The values that other fields may have then.
        reason: Why, in a sentence.
    """

    field: str
    values: tuple[Any, ...]
    needs: dict[str, tuple[Any, ...]]
    reason: str

    def applies(self, value: Any) -> bool:
        """Whether the row is about this value of its field."""
        return value in self.values if self.values else value != _DEFAULTS[self.field]


_DEFAULTS = {
    field.name: field.default
    for kind in (BlockOptions, ViTConfig)
    for field in dataclasses.fields(kind)
}


def _off(*fields: str) -> dict[str, tuple[Any, ...]]:
    """The defaults of fields, as `needs`."""
    return {field: (_DEFAULTS[field],) for field in fields}


_NO_LOSS = _off("patch_dropout_rate", "num_merged_tokens")  # every patch is in its place
# What excludes what. docs/configuration.md shows the table.
EXCLUSIONS = (
    Exclusion("position_embedding", ("relative", *POSITION_BIASES),
              {**_NO_LOSS, **_off("rope", "window_size", "any_size")},
              "Relative positions need every patch of one grid in its place, and are enough."),
    Exclusion("position_embedding", POSITION_BIASES, _off("num_registers", "distillation_token"),
              "The table of biases has entries for one class token, and none for other tokens."),
    Exclusion("grid_attention", (),
              {"position_embedding": ("none",), "class_token": (False,), **_NO_LOSS,
               **_off("num_registers", "qk_norm", "query_chunk_size", "inner_norms"),
               **_off("without_bias", "rope", "window_size", "any_size", "max_num_patches")},
              "Attention by positions on one grid is of all patches, of nothing else, and has no "
              "parts."),
    Exclusion("rope", (), _NO_LOSS, "Rotary positions need every patch in its place."),
    Exclusion("qk_norm_bias", (), {"qk_norm": (True,), "norm": ("layer",)},
              "The bias is one of layer norms of queries and keys."),
    Exclusion("num_merged_tokens", (), {"pooling": POOLINGS, **_off("rematerialize")},
              "A block that merges tokens hands on their sizes, and its tokens are of no single "
              "patch."),
    Exclusion("window_size", (), {**_NO_LOSS, **_off("any_size", "max_num_patches")},
              "Windows need every patch in its place on a known grid."),
    Exclusion("window_size", (None,), _off("global_blocks"),
              "Without windows, all blocks are global."),
    Exclusion("any_size", (), {**_NO_LOSS, **_off("query_chunk_size")},
              "The number of patches must be known: build the model for one size."),
    Exclusion("max_num_patches", (),
              {"class_token": (False,), **_NO_LOSS, **_off("position_embedding", "num_registers"),
               **_off("rope", "stem", "rematerialize", "any_size")},
              "Images of any aspect ratio (max_num_patches) are patches and padding, with learned "
              "positions that are resampled for each."),
    Exclusion("pooling", ("token", "token_gap"), {"class_token": (True,)},
              'The pooling reads the class token, which pooling="gap" and "map" do not need.'),
    Exclusion("pooling", ("token_gap",), _off("norm_after_pooling"),
              "The pooling joins two vectors, each normalised before."),
    Exclusion("norm_after_pooling", (), {"norm_after_blocks": (True,)},
              "The norm after the pooling is the one after the blocks, at another position."),
    Exclusion("distillation_token", (), {"pooling": ("token", None)},
              "A distillation token is read together with the class token."),
    Exclusion("classes", (None,), _off("pre_logits"),
              "`pre_logits` is a layer of the head, and classes=None asks for no head."),
)  # fmt: skip


def check_exclusions(values: Mapping[str, Any]) -> None:
    """Checks fields, or those of them that there are, against `EXCLUSIONS`.

    Raises:
        ValueError: If two exclude each other.
    """
    for row in EXCLUSIONS:
        if row.field not in values or not row.applies(values[row.field]):
            continue
        for field, allowed in row.needs.items():
            if field in values and values[field] not in allowed:
                other = f"choose another {row.field}"
                if not row.values:
                    other = f"{row.field} to {_DEFAULTS[row.field]!r}"
                raise ValueError(
                    f"{row.reason} Received: {row.field}={values[row.field]!r}, "
                    f"{field}={values[field]!r}; set {field} to "
                    f"{' or '.join(map(repr, allowed))}, or {other}."
                )


# The official code's range [-1, 1], and the ImageNet statistics of DeiT, MAE and DINOv2.
UNIT_RANGE = Preprocessing()
IMAGENET_STATISTICS = Preprocessing(
    mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), interpolation="bicubic"
)
