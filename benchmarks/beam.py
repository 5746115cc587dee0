"""Measures what Apache Beam costs beside a plain loop, for images of an archive.

    BEAM_PYTHON=/path/to/python python benchmarks/beam.py serving/s16/1 'photos/*/*.jpg' \
        --output docs/benchmarks/beam.jsonl

Runs `export/beam/archive.py predict` with one and with two worker processes, and a loop in one
process that reads, predicts by the same signature in batches of the same size, and writes Parquet.
Each is a process of its own, from start to end. Processor seconds count those of all processes, so
they change less than seconds where other programs run. Needs apache-beam in the environment of
`BEAM_PYTHON`. Five minutes for 1,000 images and S/16 on two cores.
"""

from __future__ import annotations

import argparse
import glob
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from machine import write_row

ARCHIVE = pathlib.Path(__file__).parents[1] / "export/beam/archive.py"
LOOP = """
import sys, time
start = time.process_time()
import pyarrow, pyarrow.parquet
import tensorflow as tf
paths, model, batch, output = sys.argv[4:], sys.argv[1], int(sys.argv[2]), sys.argv[3]
signature = tf.saved_model.load(model).signatures["tolerant"]
ready, rows = time.process_time(), []
for i in range(0, len(paths), batch):
    images = [open(path, "rb").read() for path in paths[i : i + batch]]
    found = signature(image_bytes=tf.constant(images))
    names, scores = found["classes"].numpy().tolist(), found["scores"].numpy().tolist()
    rows += zip(paths[i : i + batch], names, scores)
columns = dict(zip(("name", "classes", "scores"), zip(*rows)))
pyarrow.parquet.write_table(pyarrow.table({k: list(v) for k, v in columns.items()}), output)
print("start", ready - start)
"""
VERSIONS = "import apache_beam as b, tensorflow as t; print(b.__version__, t.__version__)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a version of export_saved_model")
    parser.add_argument("images", help="pattern of image files")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines file to append to")
    options = parser.parse_args()
    python = os.environ.get("BEAM_PYTHON", sys.executable)
    versions = run([python, "-c", VERSIONS])[2].split()[-2:]
    paths = sorted(glob.glob(options.images))[: options.count]
    batch = str(options.batch_size)
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for i, path in enumerate(paths):
                os.symlink(os.path.abspath(path), f"{folder}/{i:06}{pathlib.Path(path).suffix}")
            links = sorted(glob.glob(f"{folder}/*"))
            ways = {
                "plain loop": [python, "-c", LOOP, options.model, batch, f"{folder}/rows", *links]
            }
            for workers in (1, 2):
                ways[f"Beam, {workers} processes"] = [
                    python, str(ARCHIVE), "predict", f"{folder}/*.*", "--model", options.model,
                    "--output", f"{folder}/found-{workers}", "--batch-size", batch,
                    "--per-part", "250", "--runner", "DirectRunner", "--attempts", "1",
                    "--threads", str(max(1, (os.cpu_count() or 1) // workers)),
                    "--direct_running_mode", "multi_processing",
                    "--direct_num_workers", str(workers),
                ]  # fmt: skip
            for way, command in ways.items():
                seconds, used, _ = run(command)
                row = {"way": way, "model": pathlib.Path(options.model).parent.name}
                row |= {"images": len(paths), "batch_size": options.batch_size, "round": number}
                row |= {"seconds": round(seconds, 1), "processor_seconds": round(used, 1)}
                row |= dict(zip(("apache_beam", "tensorflow"), versions, strict=True))
                write_row(row, options.output)


def run(command: list[str]) -> tuple[float, float, str]:
    """Seconds, seconds of processors of all processes, and what is printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in ("PYTHONPATH", "XLA_FLAGS"):
        environment.pop(name, None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, env=environment, text=True, **pipes)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - start, used, done.stdout


if __name__ == "__main__":
    main()
