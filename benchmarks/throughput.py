"""Images a second and largest batch against the size of images, on this device.

    python benchmarks/throughput.py --models vit_b32 vit_b16 bit_r50x1 --sizes 64 128 224 384 512

The paper's Figure 12 for the reader's own machine. Writes throughput.json, .csv and .png into the
output folder, and a line for each model and size as it is done. On a CPU give --memory-gib, so that
the search for the largest batch stops before the machine swaps, and a small --max-batch. What the
output folder holds already is kept: a run that was cut off goes on, and models can be added.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib

import keras_vit

MODELS = ["vit_b32", "vit_b16", "r50_vit_b16", "bit_r50x1", "keras.applications.EfficientNetB0"]


def show(measurement):
    m = measurement
    speed = "does not fit" if m.images_per_second is None else f"{m.images_per_second:9.1f}"
    print(
        f"{m.model:36} {m.image_size:5} px {speed} images/s at batch {m.best_batch}, "
        f"largest batch {m.largest_batch} (limited by {m.limited_by})",
        flush=True,
    )


def read(path, conditions):
    """What was measured before, under the same conditions."""
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    if conditions != {name: before[name] for name in conditions}:
        raise SystemExit(f"{path} was measured with other settings. Choose another --output.")
    return keras_vit.evaluate.read_measurements(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 128, 224, 384, 512])
    parser.add_argument("--training", action="store_true", help="training steps, not inference")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--max-batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured at each batch")
    parser.add_argument("--memory-gib", type=float, help="main memory for each probe")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("throughput"))
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    conditions = {
        "training": options.training,
        "precision": options.precision,
        "max_batch": options.max_batch,
        "memory_gib": options.memory_gib,
    }
    path = options.output / "throughput.json"
    measurements = read(path, conditions)
    done = {(m.model, m.image_size) for m in measurements}
    for model, size in itertools.product(options.models, options.sizes):
        if (model, size) in done:
            continue
        measurements += keras_vit.evaluate.measure_throughput(
            [model],
            [size],
            training=options.training,
            precision=options.precision,
            max_batch=options.max_batch,
            seconds=options.seconds,
            memory_limit=int(options.memory_gib * 2**30) if options.memory_gib else None,
            report=show,
        )
        keras_vit.evaluate.write_measurements(measurements, path, **conditions)
    keras_vit.evaluate.write_measurements(measurements, path.with_suffix(".csv"))
    keras_vit.analysis.plot_throughput(measurements).savefig(path.with_suffix(".png"), dpi=130)
    return measurements


if __name__ == "__main__":
    main()
