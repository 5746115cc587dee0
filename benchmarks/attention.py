"""Speed and memory of attention: with all scores, in chunks of queries, and fused by Keras.

    python benchmarks/attention.py --output docs/benchmarks/attention.jsonl
    python benchmarks/attention.py --backends torch --python PYTHON_WITH_TORCH

One `SelfAttention` layer of a ViT-Ti (192 channels, 3 heads) on the tokens of one image, compiled
as each backend of Keras compiles. A process for each backend; in it all ways run in turns, and the
least processor time of a call counts. `fused` is `keras.ops.dot_product_attention`, also where
`SelfAttention` would not take it. Memory is how far that of the process has risen after the first
call at the largest size, for the ways in the order of their memory, as it is not given back.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

SIDES = (224, 1024)
CHUNK = 256
# Keras's backend, and how a call is compiled.
BACKENDS = ("tensorflow graph", "tensorflow xla", "jax jit", "torch eager")


def ways() -> dict:
    """The layer by way of computing, with the same weights."""
    from keras_vit.layers import SelfAttention, attention

    sizes = {"chunks": CHUNK, "fused": None, "all scores": 10**9}
    layers = {name: SelfAttention(3, query_chunk_size=size) for name, size in sizes.items()}
    attention.fusion_pays = lambda queries: True
    return layers


def compiled(layer, kind: str):
    """A function from a NumPy array to a NumPy array."""
    import numpy as np

    if kind == "eager":
        import torch

        def call(x):
            with torch.no_grad():
                return layer(torch.from_numpy(x)).float().numpy()

        return call
    if kind == "jit":
        import jax

        weights = [variable.value for variable in layer.variables]
        function = jax.jit(lambda weights, x: layer.stateless_call(weights, [], x)[0])
        return lambda x: np.asarray(function(weights, x), "float32")
    import tensorflow as tf

    function = tf.function(layer, jit_compile=kind == "xla")
    return lambda x: tf.cast(function(tf.constant(x)), "float32").numpy()


def measure(kind: str, policy: str, seconds: float) -> None:
    """Prints a line of JSON for every size and way."""
    import keras
    import numpy as np
    from contestants.worker import peak_bytes, resident_bytes, versions
    from machine import describe_machine

    keras.config.set_dtype_policy(policy)
    layers, memory = ways(), {}
    for layer in layers.values():
        keras.utils.set_random_seed(0)
        layer.build((None, None, 192))
    for side in sorted(SIDES, reverse=True):
        tokens = np.random.default_rng(0).normal(size=(1, (side // 16) ** 2 + 1, 192))
        tokens = tokens.astype("float32")
        answers, times = {}, {name: [] for name in layers}
        calls = {name: compiled(layer, kind) for name, layer in layers.items()}
        before = resident_bytes()
        for name, call in calls.items():
            answers[name] = call(tokens)
            memory.setdefault(name, (peak_bytes() - before) / 2**20)
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(times["fused"]) < 3:
            for name, call in calls.items():
                begin = time.process_time()
                call(tokens)
                times[name].append(time.process_time() - begin)
        for name in layers:
            distance = np.abs(answers[name] - answers["all scores"]).max()
            row = {
                "backend": f"{keras.backend.backend()} {kind}",
                "precision": policy,
                "side": side,
                "way": name,
                "processor_ms": round(1e3 * min(times[name]), 3),
                "speed": round(min(times["all scores"]) / min(times[name]), 3),
                "memory_mb": round(memory[name], 1) if side == max(SIDES) else None,
                "difference": float(f"{distance / np.abs(answers['all scores']).max():.1e}"),
                "versions": versions(),
                **describe_machine(),
            }
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--policies", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=6, help="of each size, at least")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "POLICY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure, options.seconds)
        return
    for name in options.backends:
        backend, kind = name.split()
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
        for policy in options.policies:
            command = [options.python, __file__, "--measure", kind, policy]
            command += ["--seconds", str(options.seconds)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(name, policy, done.stderr[-300:], file=sys.stderr)
            for line in done.stdout.splitlines():
                row = json.loads(line)
                shown = ("backend", "precision", "side", "way", "processor_ms", "speed")
                print(*(row[key] for key in (*shown, "memory_mb", "difference")), flush=True)
                if options.output:
                    with open(options.output, "a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
