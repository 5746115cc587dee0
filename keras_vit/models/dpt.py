"""The dense prediction Transformer (https://arxiv.org/abs/2103.13413): maps fused to a fine one."""

from __future__ import annotations

import dataclasses

import keras

from keras_vit.layers.layer import Tensor
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.pyramid import conv, exact_gelu, up_conv

NORM = {"momentum": 0.9, "epsilon": 1e-5}  # PyTorch's, as in the heads' projects
_LAST = "channels_last"  # whatever `keras.config.image_data_format()` is


@dataclasses.dataclass(frozen=True)
class DptHead:
    """What differs between the heads of projects.

    Args:
        channels: Channels of the fused map.
        widths: Channels of the four maps before they are fused; empty for an eighth, a half, ...
            of `channels`, as the authors of DPT.
        factors: Sizes of the maps, as multiples of the grid of patches.
        batch_norm: Whether residual units have batch norms.
        bias: Whether their convolutions have biases.
        doubles: Whether a fused map grows to twice its size, and the next one is resized to it;
            otherwise it grows to the size of the next one.
    """

    channels: int
    widths: tuple[int, ...] = ()
    factors: tuple[float, ...] = (4, 2, 1, 0.5)
    batch_norm: bool = True
    bias: bool = False
    doubles: bool = False


def fuse_dpt(maps: list[Tensor], tokens: list[Tensor], head: DptHead) -> Tensor:
    """Reassembles four maps at four sizes, and fuses them from coarse to fine.

    Args:
        maps: Maps of shape `(B, rows, columns, D)`, the first block first.
        tokens: Class tokens of shape `(B, D)` that are joined to them; empty for none.
        head: What differs between projects.

    Returns:
        A map of shape `(B, 8 rows, 8 columns, head.channels)`, with the default factors.

    Raises:
        ValueError: If maps are not four, or differ in size.
    """
    if len(maps) != len(head.factors):
        raise ValueError(f'The "dpt" head reads four blocks. Received: {len(maps)}.')
    if len({tuple(x.shape[1:]) for x in maps}) != 1:
        raise ValueError(
            'The "dpt" head reads maps of one size, those of Transformer blocks. Received: '
            f'{[tuple(x.shape[1:]) for x in maps]}. Choose head="mlp" for stages of a ResNet.'
        )
    levels = [
        _reassemble(x, tokens[index] if tokens else None, index, head)
        for index, x in enumerate(maps)
    ]
    fused = None
    for index in reversed(range(len(levels))):
        x = levels[index]
        if fused is not None:
            if head.doubles:
                x = ResizeMaps(name=f"dpt_skip_{index}_resize")(x, fused)
            skip = _residual(x, f"dpt_skip_{index}", head)
            x = keras.layers.Add(name=f"dpt_add_{index}")([fused, skip])
        x = _residual(x, f"dpt_fuse_{index}", head)
        name = f"dpt_up_{index}"
        if head.doubles or not index:
            x = ResizeMaps(method="align_corners", factor=2, name=name)(x)
        else:
            x = ResizeMaps(method="align_corners", name=name)(x, levels[index - 1])
        fused = conv(head.channels, 1, f"dpt_project_{index}")(x)
    return fused


def dpt_names(head: DptHead) -> dict[str, str]:
    """Names of the layers, and what stands before their arrays in files of transformers."""
    names = {}
    for index, factor in enumerate(head.factors):
        fusion = f"neck.fusion_stage.layers.{len(head.factors) - 1 - index}"
        part = f"neck.reassemble_stage.layers.{index}"
        names[f"dpt_{index}_reduce"] = f"{part}.projection"
        if factor != 1:
            names[f"dpt_{index}_resample"] = f"{part}.resize"
        names[f"dpt_{index}_readout"] = f"neck.reassemble_stage.readout_projects.{index}.0"
        names[f"dpt_{index}_project"] = f"neck.convs.{index}"
        names[f"dpt_project_{index}"] = f"{fusion}.projection"
        for unit, number in (("skip", 1), ("fuse", 2)):
            for step in (1, 2):
                theirs = f"{fusion}.residual_layer{number}"
                names[f"dpt_{unit}_{index}_conv_{step}"] = f"{theirs}.convolution{step}"
                if head.batch_norm:
                    names[f"dpt_{unit}_{index}_norm_{step}"] = f"{theirs}.batch_norm{step}"
    return names


def _reassemble(x: Tensor, token: Tensor | None, index: int, head: DptHead) -> Tensor:
    """Joins the class token to a map, and resamples it; sections 3 and A of the paper."""
    name, width, factor = f"dpt_{index}", x.shape[-1], head.factors[index]
    if token is not None:
        token = token[:, None, None] + keras.ops.zeros_like(x)
        x = keras.layers.Concatenate(name=f"{name}_join")([x, token])  # (B, rows, columns, 2 D)
        x = keras.layers.Dense(width, activation=exact_gelu, name=f"{name}_readout")(x)
    reduced = head.widths[index] if head.widths else head.channels * 2 ** min(index, 2) // 4 or 1
    x = conv(reduced, 1, f"{name}_reduce")(x)
    if factor > 1:
        stride = int(factor)
        x = up_conv(reduced, stride, f"{name}_resample")(x)
    elif factor < 1:
        # As PyTorch pads.
        x = keras.layers.ZeroPadding2D(1, data_format=_LAST, name=f"{name}_pad")(x)
        strides = int(1 / factor)
        x = conv(reduced, 3, f"{name}_resample", strides=strides, padding="valid")(x)
    return conv(head.channels, 3, f"{name}_project", use_bias=False)(x)


def _residual(x: Tensor, name: str, head: DptHead) -> Tensor:
    """A residual convolution unit of RefineNet (https://arxiv.org/abs/1611.06612).

    With batch norm, as the authors' models for segmentation (isl-org/DPT, `DPTSegmentationModel`).
    """
    y = x
    for step in (1, 2):
        y = keras.layers.ReLU(name=f"{name}_relu_{step}")(y)
        y = conv(x.shape[-1], 3, f"{name}_conv_{step}", use_bias=head.bias)(y)
        if head.batch_norm:
            y = keras.layers.BatchNormalization(**NORM, name=f"{name}_norm_{step}")(y)
    return keras.layers.Add(name=f"{name}_add")([x, y])
