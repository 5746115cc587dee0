"""What training costs: exaFLOPs, device-days, utilisation, memory."""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import TYPE_CHECKING

from keras_vit.evaluate.counting import (
    StageCount,
    count_activations,
    count_macs,
    count_parameters,
    count_stages,
    count_training_macs,
)

if TYPE_CHECKING:
    import keras

    from keras_vit.config import ResNetConfig, ViTConfig

# Peak of dense products in FLOP/s at the precision that models are trained in (bfloat16 or float16
# with float32 sums), from the makers' data sheets; without sparsity.
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


def training_exaflops(model: keras.Model | ViTConfig | ResNetConfig, images_seen: float) -> float:
    """Floating-point operations of a training run, in 10^18.

    Two operations a multiply-accumulate of `count_training_macs`: with images of 224 pixels, the
    paper's Table 6 within 2 % for its ViTs and hybrids.

    Args:
        model: What `count_macs` takes.
        images_seen: Images in all epochs together, or steps times the size of a batch.

    Returns:
        ExaFLOPs.
    """
    return 2 * count_training_macs(model) * images_seen / 1e18


def device_days(exaflops: float, device: str | float, utilization: float = 1.0) -> float:
    """Days that one device takes for a number of operations.

    Args:
        exaflops: As from `training_exaflops`.
        device: A name of `DEVICES`, or a peak in FLOP/s.
        utilization: Share of the peak that the training reaches, in (0, 1].

    Returns:
        Days of one device; divide by the number of devices for the time on the clock.

    Raises:
        ValueError: If the device is unknown or the share is not in (0, 1].
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"`utilization` must be in (0, 1]. Received: {utilization}.")
    return exaflops * 1e18 / (peak_flops(device) * utilization * _SECONDS_A_DAY)


def utilization(
    model: keras.Model | ViTConfig | ResNetConfig,
    images_per_second: float,
    device: str | float,
    training: bool = True,
) -> float:
    """Share of a device's peak that a measured speed comes to.

    The "model FLOPs utilisation" of https://arxiv.org/abs/2204.02311: rematerialisation, which
    computes more for the same images, lowers it.

    Args:
        model: What `count_macs` takes.
        images_per_second: Images a second of one device.
        device: A name of `DEVICES`, or a peak in FLOP/s.
        training: Whether the images were trained on.

    Returns:
        A share of 1.

    Raises:
        ValueError: If the device is unknown.
    """
    macs = count_training_macs(model) if training else count_macs(model)
    return images_per_second * 2 * macs / peak_flops(device)


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """What a training run costs.

    Args:
        images_seen: Images in all steps together, repeated ones too.
        exaflops: Floating-point operations, in 10^18.
        device_days: Days of one device.
    """

    images_seen: int
    exaflops: float
    device_days: float

    def days_on(self, devices: int) -> float:
        """Days on the clock, where so many devices share the work without loss."""
        return self.device_days / devices


def training_cost(
    model: keras.Model | ViTConfig | ResNetConfig,
    device: str | float,
    utilization: float,
    *,
    images: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
) -> TrainingCost:
    """What a recipe costs on a device: of so many epochs, or so many steps.

    Args:
        model: What `count_macs` takes, with images of the size that is trained on.
        device: A name of `DEVICES`, or a peak in FLOP/s.
        utilization: Share of the peak that the training reaches, in (0, 1]: what `utilization`
            makes of a measured speed.
        images: Images of the training set, with `epochs`.
        epochs: How often each is seen.
        steps: Steps of the optimizer, with `batch_size`, in place of `images` and `epochs`.
        batch_size: Images a step, on all devices together.

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
    """Peak of a device in FLOP/s, by its name in `DEVICES` or as it is.

    Raises:
        ValueError: If nothing has that name.
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
    """Bytes that a training step needs, by what they are for.

    Args:
        weights: The parameters.
        optimizer: What the optimizer remembers for each.
        gradients: A gradient for each.
        activations: What the forward pass keeps for the backward pass.
        step: Gradients, activations and all else at the worst moment of the backward pass, which
            makes the ones and frees the others stage by stage.
    """

    weights: int
    optimizer: int
    gradients: int
    activations: int
    step: int

    @property
    def total(self) -> int:
        """All that is needed at the worst moment, in bytes."""
        return self.weights + self.optimizer + self.step


def training_memory(
    model: keras.Model | ViTConfig | ResNetConfig,
    batch_size: int,
    optimizer_slots: int = 2,
    bytes_per_activation: int = 4,
    rematerialize: bool | None = None,
) -> TrainingMemory:
    """Memory of a training step on one device, compiled with XLA.

    An estimate: within a fifth of what XLA's own account says of our models
    (`benchmarks/training_memory.py`). Without XLA, TensorFlow needs more.

    Args:
        model: What `count_stages` takes.
        batch_size: Images on the device.
        optimizer_slots: Numbers the optimizer remembers a parameter: 2 for Adam, 1 for SGD with
            momentum, 0 for SGD.
        bytes_per_activation: 4 in float32, 2 under mixed precision. Weights have 4 in both.
        rematerialize: Whether blocks are computed a second time for their gradients; `None` does
            as the model's configuration says.

    Returns:
        A `TrainingMemory`, in bytes.
    """
    if rematerialize is None:
        rematerialize = getattr(getattr(model, "config", model), "rematerialize", False)
    stages, step = count_stages(model), 0
    waiting = [_kept(stage, batch_size, rematerialize) for stage in stages]
    for index, stage in enumerate(stages):  # the backward pass, from the end, has come to this one
        at_work = _kept(stage, batch_size) + batch_size * stage.work
        gradients = 4 * sum(later.parameters for later in stages[index:])
        step = max(step, bytes_per_activation * (sum(waiting[:index]) + at_work) + gradients)
    weights = 4 * count_parameters(model)
    return TrainingMemory(
        weights=weights,
        optimizer=optimizer_slots * weights,
        gradients=weights,
        activations=bytes_per_activation * batch_size * count_activations(model, rematerialize),
        step=step,
    )


def _kept(stage: StageCount, batch_size: int, rematerialize: bool = False) -> int:
    """Numbers of a stage that wait for the backward pass: all, or what they are made from again."""
    numbers = stage.inputs if rematerialize and stage.inputs else stage.activations
    return batch_size * numbers + 2 * stage.kernels  # kernels centred, and scaled
