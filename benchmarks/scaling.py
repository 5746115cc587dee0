"""Simulates how fast 1 to 1,024 replicas would train, from the step of one and the links.

    python benchmarks/scaling.py --network 100 --picture docs/pictures/scaling.png
    python benchmarks/scaling.py --steps docs/benchmarks/steps.jsonl --replicas-per-machine 1

A simulation (`simulate_scaling`), not a measurement. Without `--steps`, a replica is as fast as a
TPU v3 core was in Table 2 of https://arxiv.org/abs/2010.11929, from the core-days that the paper
gives for 14 epochs of 303 million images; `--steps` takes what `training_step.py steps` measured.
Prints the tables of docs/scaling.md, in seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

import keras_vit
from keras_vit.analysis.plots import SERIES, new_figure, style_axis

JFT_IMAGES, EPOCHS, SECONDS_A_DAY = 303e6, 14, 86_400
CORE_DAYS = {"vit_l16": 680, "vit_h14": 2500}
REPLICAS = [2**power for power in range(11)]
SHOWN = (1, 8, 64, 256, 1024)
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def gradient_bytes(model: Any) -> int:
    """Bytes of a model's gradients, which every training step sums over the replicas.

    Gradients have the type of their variables, which is float32 under mixed precision too.

    Args:
        model: A Keras model, whose trainable variables count, or what `count_parameters` takes,
            of which everything is trained in float32.
    """
    if not isinstance(model, keras.Model):
        return _BYTES["float32"] * keras_vit.evaluate.count_parameters(model)
    return sum(
        math.prod(variable.shape) * _BYTES[variable.dtype] for variable in model.trainable_variables
    )


def sent_bytes(reduced_bytes: float, replicas: int) -> float:
    """Bytes that each replica sends in a ring all-reduce of `reduced_bytes`.

    `2 (n - 1) / n` times the bytes: the reduce-scatter and the all-gather each send `(n - 1) / n`
    of them. Only switches that add can send less (https://doi.org/10.1016/j.jpdc.2008.09.002).
    """
    _check_positive(replicas=replicas)
    return 2 * (replicas - 1) / replicas * reduced_bytes


@dataclasses.dataclass(frozen=True)
class Interconnect:
    """The links between replicas and machines.

    Args:
        replicas_per_machine: Accelerators, or processes, in one machine.
        network: Bytes per second that a machine sends to other machines (full duplex).
        machine_link: Bytes per second that a replica sends to another of the same machine.
        latency: Seconds that a message takes from one replica to the next, at any size.
        storage: Bytes per second that all machines together read from storage, or `None` for no
            limit.

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
    """The simulated speed of one number of replicas.

    Args:
        replicas: Replicas that train together.
        images_per_second: Of all replicas together.
        efficiency: That speed over the sum of the speeds of single replicas.
        seconds: Seconds of a step by cause: `"compute"` (the mean step of a replica),
            `"stragglers"` (waiting for the slowest), `"machine"` and `"network"` (bytes of the
            all-reduce inside and between machines), `"latency"` (its messages), `"reading"`
            (waiting for data).
    """

    replicas: int
    images_per_second: float
    efficiency: float
    seconds: dict[str, float]

    @property
    def limited_by(self) -> str | None:
        """The cause of most of the lost time, or `None` if none is lost."""
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

    Each replica trains on `batch_size` images, then an all-reduce sums the gradients: a ring
    inside each machine, then a ring or a pipelined tree between machines. A step ends when the
    slowest replica is done; the step of each is drawn from the measured ones.

    Args:
        step_seconds: Measured seconds of a step of one replica: one number, or several.
        batch_size: Images of a replica's step.
        reduced_bytes: Bytes of the gradients, from `gradient_bytes`.
        replicas: Numbers of replicas to simulate.
        interconnect: The links; by default machines of one replica with 10 Gbit/s.
        image_bytes: Bytes that are read from storage for an image.
        overlap: Share of a step's computation, in [0, 1], that can run during the all-reduce. Our
            TensorFlow step starts the all-reduce after the whole backward pass: 0.

    Returns:
        A `ScalingPoint` for each of `replicas`.

    Raises:
        ValueError: If there are no measured steps, or a value is out of range.
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
    """Expected maximum of `n` steps, each drawn from the measured ones."""
    ordered, k = sorted(measured), len(measured)
    return sum(value * (((i + 1) / k) ** n - (i / k) ** n) for i, value in enumerate(ordered))


def _exchange(n: int, reduced_bytes: float, interconnect: Interconnect) -> dict[str, float]:
    """Seconds of the all-reduce: inside machines, between them, and latency."""
    local = min(n, interconnect.replicas_per_machine)
    machines = math.ceil(n / local)
    messages = 2 * (local - 1) + min(2 * (machines - 1), 2 * math.ceil(math.log2(machines)))
    return {
        "machine": sent_bytes(reduced_bytes, local) / interconnect.machine_link,
        "network": sent_bytes(reduced_bytes, machines) / interconnect.network,
        "latency": messages * interconnect.latency,
    }


def _waiting(seconds: dict[str, float], read_bytes: float, interconnect: Interconnect) -> float:
    """Seconds that a step waits for its data, which is read during the step before."""
    if interconnect.storage is None:
        return 0.0
    return max(0.0, read_bytes / interconnect.storage - sum(seconds.values()))


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"`{name}` must be above 0. Received: {name}={value!r}.")


def plot_scaling(points: Mapping[str, Sequence[ScalingPoint]]) -> Any:
    """Images a second, and the efficiency, against the number of replicas.

    Args:
        points: For the name of each curve what `simulate_scaling` returns.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    figure = new_figure(9.5, 3.8)
    left, right = figure.subplots(1, 2)
    for index, (name, row) in enumerate(points.items()):
        style = {"color": SERIES[index % 6], "marker": "osD^v"[index // 6 % 5], "markersize": 4}
        replicas = [point.replicas for point in row]
        left.plot(replicas, [point.images_per_second for point in row], label=name, **style)
        right.plot(replicas, [100 * point.efficiency for point in row], **style)
    style_axis(left, "replicas", "images a second")
    left.set_yscale("log")
    style_axis(right, "replicas", "efficiency (%)")
    right.set_ylim(0, 104)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def published_steps(batch: int) -> dict[str, list[float]]:
    """Seconds of a step of `batch` images on a TPU v3 core."""
    speeds = {
        name: EPOCHS * JFT_IMAGES / (days * SECONDS_A_DAY) for name, days in CORE_DAYS.items()
    }
    # Not in the paper: B/16 at as many operations a second as L/16.
    macs = {name: keras_vit.evaluate.count_macs(keras_vit.find_config(name)) for name in speeds}
    macs["vit_b16"] = keras_vit.evaluate.count_macs(keras_vit.find_config("vit_b16"))
    speeds["vit_b16"] = speeds["vit_l16"] * macs["vit_l16"] / macs["vit_b16"]
    return {name: [batch / speeds[name]] for name in ("vit_b16", "vit_l16", "vit_h14")}


def measured_steps(path: str) -> dict[str, tuple[int, list[float]]]:
    with open(path) as file:
        rows = [row for row in map(json.loads, file) if row["what"] == "steps"]
    return {row["variant"]: (row["batch"], row["step_seconds"]) for row in rows}


def table_lines(points: dict[str, list[ScalingPoint]]) -> Iterator[str]:
    """The lines of the tables in docs/scaling.md."""
    yield "| model | replicas | images/s | efficiency | largest loss |"
    yield "|---|---|---|---|---|"
    for name, row in points.items():
        for point in row:
            if point.replicas in SHOWN:
                speed = f"{point.images_per_second:,.0f}"
                if point.images_per_second < 10:
                    speed = f"{point.images_per_second:.2f}"
                lost = point.limited_by or "-"
                yield f"| {name} | {point.replicas} | {speed} | {point.efficiency:.1%} | {lost} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", help="JSON lines of `training_step.py steps`")
    parser.add_argument("--batch", type=int, default=32, help="images of a replica's step")
    parser.add_argument("--network", type=float, default=100, help="Gbit/s of a machine")
    parser.add_argument("--replicas-per-machine", type=int, default=8)
    parser.add_argument("--machine-link", type=float, default=100, help="GB/s inside a machine")
    parser.add_argument("--latency", type=float, default=20, help="microseconds of a message")
    parser.add_argument("--overlap", type=float, default=0.0, help="share of a step, 0 to 1")
    parser.add_argument("--picture", help="a file to draw into")
    arguments = parser.parse_args()
    links = Interconnect(
        replicas_per_machine=arguments.replicas_per_machine,
        network=arguments.network * 1e9 / 8,
        machine_link=arguments.machine_link * 1e9,
        latency=arguments.latency * 1e-6,
    )
    if arguments.steps:
        steps = measured_steps(arguments.steps)
    else:
        published = published_steps(arguments.batch)
        steps = {name: (arguments.batch, seconds) for name, seconds in published.items()}
    points = {}
    for name, (batch, seconds) in steps.items():
        reduced = gradient_bytes(keras_vit.find_config(name))
        points[name] = simulate_scaling(
            seconds, batch, reduced, REPLICAS, links, overlap=arguments.overlap
        )
        mean = sum(seconds) / len(seconds)
        print(
            f"{name}: {batch} images a step of {mean:.3g} s, {reduced / 1e6:,.1f} MB of gradients"
        )
    print("\n".join(table_lines(points)))
    if arguments.picture:
        plot_scaling(points).savefig(arguments.picture, dpi=120)


if __name__ == "__main__":
    main()
