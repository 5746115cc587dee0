"""Estimates the cost of training: exaFLOPs, device-days, FLOPs utilisation, memory."""

from __future__ import annotations

import dataclasses
import difflib
import math

import keras

from keras_vit.config import field_value
from keras_vit.evaluate.counting import (
    Countable,
    StageCount,
    count_activations,
    count_macs,
    count_parameters,
    count_stages,
    count_training_macs,
)
from keras_vit.layers.block import TransformerBlock
from keras_vit.runtime.private_names import flatten_layers

# Peak FLOP/s of dense matrix products in the precision of training (bfloat16 or float16 with
# float32 accumulation), without sparsity, from the manufacturers' data sheets.
DEVICES: dict[str, float] = {
    "tpu_v2_core": 22.5e12,  # half of a chip, as the paper counts
    "tpu_v3_core": 61.5e12,  # half of a chip
    "tpu_v4": 275e12,
    "tpu_v5e": 197e12,
    "tpu_v5p": 459e12,
    "v100": 125e12,
    "a100": 312e12,
    "h100_sxm": 989e12,
    "h200": 989e12,
    "l4": 121e12,
    "t4": 65e12,
}
_SECONDS_A_DAY = 86_400


def training_exaflops(model: Countable, images_seen: float) -> float:
    """Floating-point operations (FLOPs) of a training run, in 10^18.

    A multiply-accumulate of `count_training_macs` is two operations. With images of 224 pixels the
    result is within 2 % of Table 6 of the paper, for its ViTs and hybrids.

    Args:
        model: A model or configuration, as for `count_macs`.
        images_seen: Number of images in all epochs together, or steps times batch size.

    Returns:
        ExaFLOPs.
    """
    return 2 * count_training_macs(model) * images_seen / 1e18


def device_days(exaflops: float, device: str | float, utilization: float = 1.0) -> float:
    """Days that one device needs for a number of operations.

    Args:
        exaflops: Operations in 10^18, as from `training_exaflops`.
        device: A name of `DEVICES`, or a peak in FLOP/s.
        utilization: FLOPs utilisation: share of the peak that training reaches, in (0, 1].

    Returns:
        Days of one device; divide by the number of devices for the wall-clock time.

    Raises:
        ValueError: If the device is unknown or `utilization` is not in (0, 1].
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"`utilization` must be in (0, 1]. Received: {utilization}.")
    return exaflops * 1e18 / (peak_flops(device) * utilization * _SECONDS_A_DAY)


def utilization(
    model: Countable, images_per_second: float, device: str | float, training: bool = True
) -> float:
    """FLOPs utilisation: share of a device's peak that a measured speed reaches.

    The "model FLOPs utilisation" of https://arxiv.org/abs/2204.02311. Rematerialisation lowers it,
    because its additional operations are not counted.

    Args:
        model: A model or configuration, as for `count_macs`.
        images_per_second: Images per second of one device.
        device: A name of `DEVICES`, or a peak in FLOP/s.
        training: Whether the speed is that of training; otherwise of inference.

    Returns:
        Utilisation as a fraction, where 1 is the peak.

    Raises:
        ValueError: If the device is unknown.
    """
    macs = count_training_macs(model) if training else count_macs(model)
    return images_per_second * 2 * macs / peak_flops(device)


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """Cost of a training run.

    Args:
        images_seen: Number of images in all steps together, repetitions included.
        exaflops: Floating-point operations, in 10^18.
        device_days: Days of one device.
    """

    images_seen: int
    exaflops: float
    device_days: float

    def days_on(self, devices: int) -> float:
        """Wall-clock days on several devices, if the speed grows linearly with their number."""
        return self.device_days / devices


def training_cost(
    model: Countable,
    device: str | float,
    utilization: float,
    *,
    images: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
) -> TrainingCost:
    """Cost of a training run on a device, for a number of epochs or of steps.

    Args:
        model: A model or configuration, as for `count_macs`, with the image size of the training.
        device: A name of `DEVICES`, or a peak in FLOP/s.
        utilization: FLOPs utilisation: share of the peak that training reaches, in (0, 1]. The
            function `utilization` computes it from a measured speed.
        images: Number of images in the training set; needs `epochs`.
        epochs: Number of epochs.
        steps: Number of steps, instead of `images` and `epochs`; needs `batch_size`.
        batch_size: Images per step, on all devices together.

    Returns:
        A `TrainingCost`.

    Raises:
        ValueError: If not exactly one of the two pairs is given, a number is not above 0, or the
            device is unknown.

    Example:

    >>> config = keras_vit.find_config("vit_b16")
    >>> cost = keras_vit.evaluate.training_cost(config, "a100", 0.4, images=1_281_167, epochs=300)
    >>> round(cost.exaflops, 1), round(cost.device_days, 1)
    (40.4, 3.7)
    """
    given = [pair for pair in ((images, epochs), (steps, batch_size)) if pair != (None, None)]
    factors = [number for number in given[0] if number and number > 0] if len(given) == 1 else []
    if len(factors) != 2:
        raise ValueError(
            "Pass `images` and `epochs`, or `steps` and `batch_size`, each above 0. Received: "
            f"images={images}, epochs={epochs}, steps={steps}, batch_size={batch_size}."
        )
    images_seen = round(math.prod(factors))
    exaflops = training_exaflops(model, images_seen)
    return TrainingCost(images_seen, exaflops, device_days(exaflops, device, utilization))


def peak_flops(device: str | float) -> float:
    """Peak of a device in FLOP/s, by its name in `DEVICES`; a number is returned unchanged.

    Raises:
        ValueError: If the name is unknown.
    """
    if not isinstance(device, str):
        return float(device)
    if device not in DEVICES:
        nearest = difflib.get_close_matches(device, DEVICES, n=2)
        advice = f"Did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
        raise ValueError(
            f"There is no device {device!r}. {advice}All: {', '.join(DEVICES)}; or pass the peak "
            "in FLOP/s."
        )
    return DEVICES[device]


@dataclasses.dataclass(frozen=True)
class TrainingMemory:
    """Memory of a training step in bytes, by purpose.

    Args:
        weights: Parameters of the model.
        optimizer: State of the optimizer.
        gradients: Gradients of all parameters.
        activations: Activations that the forward pass stores for the backward pass.
        step: Gradients, activations and temporary values together at the peak of the backward
            pass, which makes gradients and frees activations stage by stage.
    """

    weights: int
    optimizer: int
    gradients: int
    activations: int
    step: int

    @property
    def total(self) -> int:
        """Peak memory in bytes: weights, optimizer state and `step`."""
        return self.weights + self.optimizer + self.step


def training_memory(
    model: Countable,
    batch_size: int,
    optimizer_slots: int = 2,
    bytes_per_activation: int = 4,
    rematerialize: bool | None = None,
) -> TrainingMemory:
    """Estimates the memory of a training step on one device, compiled with XLA.

    For our models the estimate is within a fifth of XLA's memory analysis
    (`benchmarks/training_memory.py`). Without XLA, TensorFlow needs more.

    Args:
        model: A model or configuration, as for `count_stages`.
        batch_size: Images per step on the device.
        optimizer_slots: Numbers per parameter in the optimizer state: 2 for Adam, 1 for SGD with
            momentum, 0 for SGD.
        bytes_per_activation: 4 in float32, 2 in mixed precision. Weights have 4 in both.
        rematerialize: Whether the backward pass recomputes blocks; `None` follows the
            configuration, or the blocks of the model.

    Returns:
        A `TrainingMemory`, in bytes.
    """
    if rematerialize is None:
        rematerialize = _rematerializes(model)
    stages, step, size = count_stages(model, training=True), 0, bytes_per_activation
    waiting = [_kept(stage, batch_size, size, rematerialize) for stage in stages]
    for index, stage in enumerate(stages):  # the backward pass is at this stage
        at_work = _kept(stage, batch_size, size) + batch_size * stage.work * _size(stage, size)
        gradients = 4 * sum(later.parameters for later in stages[index:])
        step = max(step, sum(waiting[:index]) + at_work + gradients)
    weights = 4 * count_parameters(model)
    float32_bytes = sum(stage.activations for stage in stages if stage.in_float32) * (4 - size)
    activations = size * count_activations(model, rematerialize) + float32_bytes
    return TrainingMemory(
        weights=weights,
        optimizer=optimizer_slots * weights,
        gradients=weights,
        activations=batch_size * activations,
        step=step,
    )


def _rematerializes(model: Countable) -> bool:
    """Whether a configuration, or any block of a model, recomputes its activations."""
    if not isinstance(model, keras.Model):
        return field_value(model, "rematerialize", False)
    blocks = (x for x in flatten_layers(model) if isinstance(x, TransformerBlock))
    return any(block.options.rematerialize for block in blocks)


def _size(stage: StageCount, bytes_per_activation: int) -> int:
    return 4 if stage.in_float32 else bytes_per_activation


def _kept(
    stage: StageCount, batch_size: int, bytes_per_activation: int, rematerialize: bool = False
) -> int:
    """Bytes that a stage stores for the backward pass: activations, or inputs to recompute."""
    numbers = stage.inputs if rematerialize and stage.inputs else stage.activations
    kernels = 2 * stage.kernels  # standardised kernels: centred, and scaled
    return (batch_size * numbers + kernels) * _size(stage, bytes_per_activation)
