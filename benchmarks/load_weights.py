"""Time and memory of loading an official file, beside numpy.load and building the model.

`python benchmarks/load_weights.py --variant vit_b16` writes a file of random weights in the
official layout, then measures in fresh processes: reading all its arrays with `numpy.load`,
building the model alone, and building it with the file's weights. Prints one JSON line with
seconds (median of `--rounds`) and peak memory in MiB, and `ratio`: seconds of loading over those
of 1.5 readings with `numpy.load` and one building; at most 1 is the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

STEPS = ("write", "start", "numpy", "build", "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="vit_b16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", choices=STEPS, help="one step, in this process")
    parser.add_argument("--file", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measure(arguments.step, arguments.variant, arguments.file)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "weights.npz"
        in_a_process("write", arguments.variant, file)
        steps = {
            step: [in_a_process(step, arguments.variant, file) for _ in range(arguments.rounds)]
            for step in STEPS[1:]
        }
        mebibytes = file.stat().st_size / 2**20
    seconds = {
        step: statistics.median(round_["seconds"] for round_ in rounds)
        for step, rounds in steps.items()
    }
    peaks = {step: max(round_["peak_mib"] for round_ in rounds) for step, rounds in steps.items()}
    print(
        json.dumps(
            {
                "variant": arguments.variant,
                "file_mib": round(mebibytes, 1),
                "seconds": {step: round(value, 3) for step, value in seconds.items()},
                "peak_mib": peaks,
                "ratio": round(seconds["load"] / (1.5 * seconds["numpy"] + seconds["build"]), 3),
                "load_above_build_mib": round(peaks["load"] - peaks["build"], 1),
                "versions": steps["load"][0]["versions"],
                "processor": platform.processor() or platform.machine(),
            }
        )
    )


def in_a_process(step: str, variant: str, file: pathlib.Path) -> dict:
    command = [sys.executable, __file__, "--step", step, "--variant", variant, "--file", str(file)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def measure(step: str, variant: str, file: pathlib.Path) -> dict:
    """Seconds of one step, imports left out, and the peak memory of the process."""
    import resource
    import time

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import numpy as np

    import keras_vit

    keras_vit.create_model("vit_ti16", depth=1)  # first use of Keras, not measured
    start = time.perf_counter()
    if step == "numpy":
        with np.load(file) as arrays:
            kept = [arrays[name] for name in arrays.files]
    elif step == "build":
        kept = keras_vit.create_model(variant)
    elif step == "load":
        kept = keras_vit.create_model(variant, weights=file)
        assert not kept.load_report.fresh
    elif step == "write":
        kept = keras_vit.create_model(variant)
        keras_vit.save_weights(kept, file)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    versions = {
        "keras": keras.__version__,
        "numpy": np.__version__,
        "backend": keras.backend.backend(),
    }
    return {"seconds": seconds, "peak_mib": round(peak, 1), "versions": versions}


if __name__ == "__main__":
    main()
