"""How fast 1 to 1,024 replicas would train, from the step of one and the links between them.

    python benchmarks/scaling.py --network 100 --picture docs/pictures/scaling.png
    python benchmarks/scaling.py --steps docs/benchmarks/steps.jsonl --replicas-per-machine 1

A simulation (`keras_vit.evaluate.simulate_scaling`), not a measurement. Without `--steps` a
replica is as fast as a TPU v3 core was in Table 2 of https://arxiv.org/abs/2010.11929, from the
core-days that the paper gives for 14 epochs of 303 million images; `--steps` takes what
`training_step.py steps` measured. Prints the table of docs/scaling.md, in seconds.
"""

from __future__ import annotations

import argparse
import json

import keras_vit

JFT_IMAGES, EPOCHS, SECONDS_A_DAY = 303e6, 14, 86_400
CORE_DAYS = {"vit_l16": 680, "vit_h14": 2500}
REPLICAS = [2**power for power in range(11)]
SHOWN = (1, 8, 64, 256, 1024)


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


def rows(points: dict[str, list]):
    """The lines of the table."""
    yield "| model | replicas | images/s | efficiency | most of the lost time: |"
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
    links = keras_vit.evaluate.Interconnect(
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
        reduced = keras_vit.evaluate.gradient_bytes(keras_vit.find_config(name))
        points[name] = keras_vit.evaluate.simulate_scaling(
            seconds, batch, reduced, REPLICAS, links, overlap=arguments.overlap
        )
        mean = sum(seconds) / len(seconds)
        print(
            f"{name}: {batch} images a step of {mean:.3g} s, {reduced / 1e6:,.1f} MB of gradients"
        )
    print("\n".join(rows(points)))
    if arguments.picture:
        keras_vit.analysis.plot_scaling(points).savefig(arguments.picture, dpi=120)


if __name__ == "__main__":
    main()
