"""Training steps of a masked autoencoder: by this package and by transformers.

    python benchmarks/masked_autoencoder.py --theirs TORCH/bin/python \
        --output docs/benchmarks/masked_autoencoder.jsonl

transformers makes `ViTMAEForPreTraining` of ViT-B/16 with random weights and normalised pixels, and
this package reads its folder. Both then train on the same images on two threads with AdamW, each in
a process of its own, in turns: a step of one, then of the other. A JSON line for each: seconds of a
step (the median, and all), the largest resident memory, the loss of the first step, versions, date
and machine. `keras_vit, whole` also sees the hidden patches: what leaving them out saves. The first
environment needs transformers and PyTorch. Run it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from machine import print_machine, write_row

SIZE, PATCHES = 224, 196


def data(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Normalised images, and noise."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, SIZE, SIZE, 3)).astype("float32")
    return images, rng.random((batch, PATCHES), "float32")


def ours(folder: str, batch: int, whole: bool):
    """A function that trains on one batch and returns the loss, and versions."""
    import keras
    import tensorflow as tf

    from keras_vit.self_supervised import build_masked_autoencoder, load_masked_autoencoder

    tf.config.threading.set_intra_op_parallelism_threads(2)
    autoencoder = load_masked_autoencoder(folder, include_preprocessing=False)
    if whole:  # hides one of 196
        autoencoder = build_masked_autoencoder(autoencoder.encoder, mask_rate=1 / PATCHES)
    model = autoencoder.model
    model.compile(keras.optimizers.AdamW(1e-4, weight_decay=0.05))
    images, _ = data(batch)
    batches = tf.data.Dataset.from_tensors(images).cache().repeat()
    model.fit(batches, steps_per_epoch=1, verbose=0, shuffle=False)

    def step() -> float:
        return model.fit(batches, steps_per_epoch=1, verbose=0, shuffle=False).history["loss"][0]

    return step, {"keras": keras.__version__, "tensorflow": tf.__version__}


def theirs(folder: str, batch: int):
    """The same by transformers."""
    import torch
    import transformers

    torch.set_num_threads(2)
    model = transformers.ViTMAEForPreTraining.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.05)
    images = torch.from_numpy(data(batch)[0].transpose(0, 3, 1, 2).copy())

    def step() -> float:
        optimizer.zero_grad()
        loss = model(images).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    return step, {"torch": torch.__version__, "transformers": transformers.__version__}


def make(folder: str) -> None:
    """Writes the network of transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(norm_pix_loss=True, layer_norm_eps=1e-6)
    transformers.ViTMAEForPreTraining(config).save_pretrained(folder)


def work(who: str, folder: str, batch: int) -> None:
    """One contestant: a line for each step that is asked for."""
    if who == "make":
        return make(folder)
    step, versions = theirs(folder, batch) if who == "transformers" else ours(
        folder, batch, who.endswith("whole"))  # fmt: skip
    print(json.dumps(versions), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            json.dumps({"seconds": round(seconds, 4), "loss": loss, "memory_mb": peak}), flush=True
        )
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--theirs", metavar="PYTHON", help="with transformers")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--work", nargs=2, metavar=("WHO", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        who, folder = options.work
        work(who, folder, options.batch)
        return
    print_machine()
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory() as folder:

        def start(python: str, who: str) -> Any:
            words = [python, __file__, "--batch", str(options.batch), "--work", who, folder]
            pipes: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "text": True,
            }
            return subprocess.Popen(words, env=environment, **pipes)

        if start(options.theirs, "make").wait():
            sys.exit("transformers made no network.")
        pythons = {"keras_vit": sys.executable, "transformers": options.theirs}
        pythons["keras_vit, whole"] = sys.executable
        workers = {who: start(python, who) for who, python in pythons.items()}
        versions = {who: json.loads(worker.stdout.readline()) for who, worker in workers.items()}
        notes: dict[str, list[dict]] = {who: [] for who in workers}
        for _ in range(options.steps):
            for who, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                notes[who].append(json.loads(worker.stdout.readline()))
        for who, worker in workers.items():
            worker.stdin.close()
            worker.wait()
            seconds = [note["seconds"] for note in notes[who]]
            row = {"contestant": who, "batch": options.batch, "threads": 2}
            row |= {"seconds": statistics.median(seconds), "all": seconds}
            row |= {"memory_mb": notes[who][-1]["memory_mb"], "loss": notes[who][0]["loss"]}
            write_row({**row, "versions": versions[who]}, options.output)


if __name__ == "__main__":
    main()
