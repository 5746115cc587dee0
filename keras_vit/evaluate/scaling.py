"""What workers send one another in a training step, and how speed grows with their number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_vit.evaluate.counting import count_parameters

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def gradient_bytes(model: Any) -> int:
    """Bytes of a model's gradients: what every training step reduces over the replicas.

    Gradients have the type of their variables, which is float32 under mixed precision too.

    Args:
        model: A Keras model, whose trainable variables count, or what `count_parameters` takes,
            of which everything is trained in float32.

    Returns:
        Bytes; `sent_bytes` says how many of them go over the wire.
    """
    if not isinstance(model, keras.Model):
        return _BYTES["float32"] * count_parameters(model)
    return sum(
        math.prod(variable.shape) * _BYTES[variable.dtype] for variable in model.trainable_variables
    )


def sent_bytes(reduced_bytes: float, replicas: int) -> float:
    """Bytes that each of several replicas sends to sum `reduced_bytes` over all in a ring.

    Every replica sends each of the others' share of the sum once and its result once: `2 (n - 1) /
    n` times the bytes, and receives as many. Machines cannot send less, short of switches that
    add (https://doi.org/10.1016/j.jpdc.2008.09.002).

    Args:
        reduced_bytes: As from `gradient_bytes`.
        replicas: Replicas in the ring.

    Returns:
        Bytes of one step.

    Raises:
        ValueError: If there is no replica.
    """
    _check_positive(replicas=replicas)
    return 2 * (replicas - 1) / replicas * reduced_bytes


@dataclasses.dataclass(frozen=True)
class Interconnect:
    """Machines and what joins them.

    Args:
        replicas_per_machine: Accelerators, or processes, in one machine.
        network: Bytes a second that a machine sends to the others, and receives at once.
        machine_link: Bytes a second that a replica sends to another of its machine.
        latency: Seconds from one replica to the next in a ring, whatever the size.
        storage: Bytes a second that all machines together read of the data, or `None` where
            that is no limit.

    Raises:
        ValueError: If a value is not positive.
    """

    replicas_per_machine: int = 1
    network: float = 10e9 / 8
    machine_link: float = 100e9
    latency: float = 20e-6
    storage: float | None = None

    def __post_init__(self) -> None:
        _check_positive(**{k: v for k, v in dataclasses.asdict(self).items() if v is not None})


@dataclasses.dataclass(frozen=True)
class ScalingPoint:
    """What the simulation says of one number of replicas.

    Args:
        replicas: Replicas that train together.
        images_per_second: Of all of them.
        efficiency: That speed over the one that as many replicas by themselves would have.
        seconds: Of one step, by what they go to: `"compute"` (the mean step of a replica),
            `"stragglers"` (waiting for the slowest), `"machine"` and `"network"` (bytes of the
            exchange inside and between machines), `"latency"` (messages of it), `"reading"`
            (waiting for data). An exchange that hides behind the backward pass costs none.
    """

    replicas: int
    images_per_second: float
    efficiency: float
    seconds: dict[str, float]

    @property
    def limited_by(self) -> str | None:
        """What most of the lost time goes to, or `None` where none is lost."""
        lost = {name: value for name, value in self.seconds.items() if name != "compute"}
        name = max(lost, key=lambda key: lost[key])
        return name if lost[name] > 0 else None


def simulate_scaling(
    step_seconds: float | Sequence[float],
    batch_size: int,
    reduced_bytes: float,
    replicas: Iterable[int],
    interconnect: Interconnect | None = None,
    image_bytes: float = 0.0,
    overlap: float = 0.0,
) -> list[ScalingPoint]:
    """Speed and efficiency of synchronous training, from the measured steps of one replica.

    Every replica trains on `batch_size` images, then all sum their gradients: in a ring inside
    each machine, then between machines in a ring or a pipelined tree, which send as much, but the
    tree fewer messages one after the other. A step ends when the slowest replica has done; with
    several measured steps, each replica's is drawn from them.

    Args:
        step_seconds: Seconds of a step of one replica, as measured: one number, or several for
            the differences between them to count.
        batch_size: Images of one replica's step.
        reduced_bytes: As from `gradient_bytes`.
        replicas: Numbers of replicas to simulate.
        interconnect: The machines; machines of one replica with 10 Gbit/s where `None`.
        image_bytes: Bytes of storage that are read for an image.
        overlap: Share of a step's computation, in [0, 1], behind which the exchange can hide.
            TensorFlow's step here exchanges after the whole backward pass: 0.

    Returns:
        A `ScalingPoint` for each of `replicas`.

    Raises:
        ValueError: If there are no measured steps, or a value is out of its range.
    """
    measured = [step_seconds] if isinstance(step_seconds, int | float) else list(step_seconds)
    if not measured:
        raise ValueError("Pass the seconds of at least one measured step. Received: none.")
    _check_positive(step_seconds=min(measured), batch_size=batch_size)
    if not 0 <= overlap <= 1:
        raise ValueError(f"`overlap` is a share in [0, 1]. Received: {overlap}.")
    interconnect = interconnect or Interconnect()
    points = []
    for n in replicas:
        _check_positive(replicas=n)
        seconds = _parts(measured, n, reduced_bytes, interconnect, overlap)
        seconds["reading"] = _waiting(seconds, n * batch_size * image_bytes, interconnect)
        speed = n * batch_size / sum(seconds.values())
        alone = n * batch_size / seconds["compute"]
        points.append(ScalingPoint(n, speed, speed / alone, seconds))
    return points


def _parts(
    measured: list[float], n: int, reduced_bytes: float, interconnect: Interconnect, overlap: float
) -> dict[str, float]:
    compute = sum(measured) / len(measured)
    exchange = _exchange(n, reduced_bytes, interconnect)
    hidden = min(1.0, overlap * compute / max(sum(exchange.values()), 1e-300))
    return {
        "compute": compute,
        "stragglers": _slowest(measured, n) - compute,
        **{name: (1 - hidden) * value for name, value in exchange.items()},
    }


def _slowest(measured: list[float], n: int) -> float:
    """Expected longest of `n` steps, each drawn from the measured ones."""
    ordered, k = sorted(measured), len(measured)
    return sum(value * (((i + 1) / k) ** n - (i / k) ** n) for i, value in enumerate(ordered))


def _exchange(n: int, reduced_bytes: float, interconnect: Interconnect) -> dict[str, float]:
    """Seconds of the all-reduce: in machines, between them, and its messages."""
    local = min(n, interconnect.replicas_per_machine)
    machines = math.ceil(n / local)
    messages = 2 * (local - 1) + min(2 * (machines - 1), 2 * math.ceil(math.log2(machines)))
    return {
        "machine": sent_bytes(reduced_bytes, local) / interconnect.machine_link,
        "network": sent_bytes(reduced_bytes, machines) / interconnect.network,
        "latency": messages * interconnect.latency,
    }


def _waiting(seconds: dict[str, float], read_bytes: float, interconnect: Interconnect) -> float:
    """Seconds that a step waits for its data, which are read while the step before runs."""
    if interconnect.storage is None:
        return 0.0
    return max(0.0, read_bytes / interconnect.storage - sum(seconds.values()))


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"`{name}` must be above 0. Received: {name}={value!r}.")
