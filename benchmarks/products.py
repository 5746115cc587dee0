"""What a library's plain matrix products take of a ViT: the least that a model in it can take.

    python benchmarks/products.py --library tensorflow --threads 2 >> docs/benchmarks/products.jsonl
    TORCH/bin/python benchmarks/products.py --library torch --threads 2 >> ...

All products of the blocks of a variant, and nothing between them: queries, keys and values in one,
attention's two, the output, the two of the MLP, with weights of their own for every block.
`tensorflow` is its graph, `xla` the same compiled. Prints a JSON line: medians of the seconds of a
pass on the wall clock and of the processor, and billions of multiplications and additions a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import numpy as np
from machine import describe_machine

SIZES = {  # width, depth, heads, MLP, tokens; as in the paper's Table 1
    "vit_ti16": (192, 12, 3, 768, 197),
    "vit_s16": (384, 12, 6, 1536, 197),
    "vit_b16": (768, 12, 12, 3072, 197),
}


def make_weights(variant: str) -> list[list[np.ndarray]]:
    width, depth, _, hidden, _ = SIZES[variant]
    rng = np.random.default_rng(0)
    shapes = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    return [
        [rng.normal(0, shape[0] ** -0.5, shape).astype("float32") for shape in shapes]
        for _ in range(depth)
    ]


def multiply_all(x, weights, matmul, heads: int, batch: int, tokens: int, to_heads, from_heads):
    for into_qkv, out, up, down in weights:
        queries, keys, values = to_heads(matmul(x, into_qkv), batch, tokens, heads)
        mixed = matmul(matmul(queries, keys), values)
        x = matmul(from_heads(mixed, batch * tokens), out)
        x = matmul(matmul(x, up), down)
    return x


def with_tensorflow(variant: str, batch: int, threads: int, jit_compile: bool):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    width, _, heads, _, tokens = SIZES[variant]

    def to_heads(x, *shape):
        x = tf.transpose(tf.reshape(x, (*shape[:2], 3, heads, -1)), (2, 0, 3, 1, 4))
        queries, keys, values = tf.unstack(x)
        return queries, tf.linalg.matrix_transpose(keys), values

    def from_heads(x, rows):
        return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (rows, width))

    weights = [[tf.Variable(each) for each in block] for block in make_weights(variant)]
    shape = (heads, batch, tokens, to_heads, from_heads)
    run = tf.function(
        lambda x: multiply_all(x, weights, tf.matmul, *shape), jit_compile=jit_compile
    )
    x = tf.random.normal((batch * tokens, width))
    return lambda: run(x).numpy(), tf.__version__


def with_torch(variant: str, batch: int, threads: int):
    import torch

    torch.set_num_threads(threads)
    width, _, heads, _, tokens = SIZES[variant]

    def to_heads(x, *shape):
        x = x.reshape(*shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
        return x[0], x[1].transpose(-1, -2), x[2]

    def from_heads(x, rows):
        return x.transpose(1, 2).reshape(rows, width)

    weights = [[torch.tensor(each) for each in block] for block in make_weights(variant)]
    shape = (heads, batch, tokens, to_heads, from_heads)
    x = torch.randn(batch * tokens, width)

    def run():
        with torch.inference_mode():
            return multiply_all(x, weights, torch.matmul, *shape)

    return run, torch.__version__


def count(variant: str, batch: int) -> int:
    """Multiplications and additions of a pass."""
    width, depth, _, hidden, tokens = SIZES[variant]
    dense = tokens * width * (4 * width + 2 * hidden)
    return 2 * batch * depth * (dense + 2 * tokens**2 * width)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--library", required=True, choices=("tensorflow", "xla", "torch"))
    parser.add_argument("--variant", default="vit_b16", choices=SIZES)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if args.library == "torch":
        run, version = with_torch(args.variant, args.batch, args.threads)
    else:
        run, version = with_tensorflow(
            args.variant, args.batch, args.threads, args.library == "xla"
        )
    run(), run()
    seconds = []
    for _ in range(args.rounds):
        begin = time.perf_counter(), time.process_time()
        run()
        seconds.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    wall, processor = (statistics.median(each) for each in zip(*seconds, strict=True))
    line = {
        **vars(args),
        "wall_ms": round(1e3 * wall, 1),
        "processor_ms": round(1e3 * processor, 1),
        "gflops": round(count(args.variant, args.batch) / wall / 1e9, 1),
        "version": version,
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
    }
    print(json.dumps({**line, **describe_machine()}), flush=True)


if __name__ == "__main__":
    main()
