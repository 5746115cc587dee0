"""What merging tokens saves at inference: full-size models with random weights, in turns.

    python benchmarks/token_merging.py --output token_merging.jsonl
    python benchmarks/token_merging.py --show docs/benchmarks/token_merging.jsonl \
        --picture docs/pictures/token_merging_speed.png

`num_merged_tokens` is chosen so that a share of the patches is gone before the last block; what it
costs in accuracy is in examples/token_merging.py. Each round runs every model once. Ratios are of
the seconds that the process spent on the processor, medians over rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time

from machine import describe_machine, require

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
CASES = (("vit_s16", 224), ("vit_s16", 384), ("vit_b16", 224), ("vit_b16", 384))


def merging_config(name, image_size, share):
    """A variant that merges so many tokens a block that a share of its patches goes."""
    import keras_vit

    config = dataclasses.replace(keras_vit.find_config(name), image_size=image_size)
    return keras_vit.replace_fields(
        config, num_merged_tokens=round(share * config.num_patches / config.depth)
    )


def contenders(config, images, kinds):
    """Ways to run a model, each a function without arguments: its own graph, XLA, ONNX Runtime."""
    import onnxruntime
    import tensorflow as tf

    import keras_vit

    model = keras_vit.build_vit(config)
    for weight in model.weights:  # N(0, 0.02) as trained weights are, and scales of 1
        if not weight.path.endswith("gamma"):
            weight.assign(tf.random.stateless_normal(weight.shape, (0, 1), stddev=0.02))
    batch = tf.constant(images)
    for name, jit_compile in (("graph", False), ("xla", True)):
        if name in kinds:
            function = tf.function(lambda x: model(x, training=False), jit_compile=jit_compile)
            yield name, lambda function=function: function(batch).numpy()
    if "onnx" not in kinds:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = keras_vit.export_onnx(model, f"{folder}/model.onnx", images=images[:1]).path
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        yield "onnx", lambda: session.run(None, {"pixels": images})


def measure(name, image_size, batch, rounds, kinds):
    """Rows of one variant and size."""
    import numpy as np

    import keras_vit

    images = np.random.default_rng(0).uniform(0, 255, (batch, image_size, image_size, 3))
    images = images.astype("float32")
    configs = {share: merging_config(name, image_size, share) for share in SHARES}
    runs, seconds = {}, {}
    for share, config in configs.items():
        for kind, run in contenders(config, images, kinds):
            run()
            runs[share, kind], seconds[share, kind] = run, []
    for _ in range(rounds):
        for key, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            seconds[key].append((time.perf_counter() - wall, time.process_time() - processor))
    for (share, kind), times in seconds.items():
        config = configs[share]
        yield {
            "variant": name,
            "image_size": image_size,
            "batch": batch,
            "contender": kind,
            "share": share,
            "num_merged_tokens": config.num_merged_tokens,
            "tokens": config.num_tokens,
            "macs": keras_vit.evaluate.count_macs(config),
            "seconds": [round(wall, 4) for wall, _ in times],
            "processor_seconds": [round(processor, 4) for _, processor in times],
        }


def machine():
    """What the numbers were measured with."""
    import keras
    import onnxruntime
    import tensorflow as tf

    versions = {module.__name__: module.__version__ for module in (tf, keras, onnxruntime)}
    return {"what": "machine", **describe_machine(), **versions}


def speedups(rows):
    """Speed by processor time and the share of products, each beside the model that merges none."""
    plain = {cell(row): row for row in rows if not row["share"]}
    for row in rows:
        base = plain[cell(row)]
        seconds, without = (statistics.median(r["processor_seconds"]) for r in (row, base))
        yield row, without / seconds, row["macs"] / base["macs"]


def cell(row):
    return row["variant"], row["image_size"], row["contender"]


def table(rows):
    """The lines of the table: speed of each way to run, for every model and number merged."""
    kinds = list(dict.fromkeys(row["contender"] for row in rows))
    lines = [f"| model | image | merged a block | products | {' | '.join(kinds)} |"]
    lines.append("|---" * (4 + len(kinds)) + "|")
    grouped = {}
    for row, speed, macs in speedups(rows):
        key = row["variant"], row["image_size"], row["num_merged_tokens"], f"{macs:.2f}"
        grouped.setdefault(key, {})[row["contender"]] = f"{speed:.2f}"
    for key, speeds in grouped.items():
        if key[2]:
            cells = [*map(str, key), *(speeds.get(kind, "") for kind in kinds)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows, path):
    """Speed against the products that are left, a panel a model and size."""
    from keras_vit.analysis import plots

    panels = list(dict.fromkeys((row["variant"], row["image_size"]) for row in rows))
    figure = plots.new_figure(3.0 * len(panels), 3.2)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        curves = {}
        for row, speed, macs in speedups(rows):
            if (row["variant"], row["image_size"]) == panel:
                curves.setdefault(row["contender"], []).append((row["num_merged_tokens"], speed))
                curves.setdefault("by products", []).append((row["num_merged_tokens"], 1 / macs))
        for name, points in curves.items():
            style = {"color": "0.6", "ls": "--"} if name == "by products" else {"marker": "o"}
            axis.plot(*zip(*sorted(set(points)), strict=True), label=name, **style)
        plots.style_axis(axis, "tokens merged a block", "times as fast" * (axis is axes[0]))
        axis.set_title(f"{panel[0]}, {panel[1]} pixels", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", frameon=False, ncols=4)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=[f"{n}@{s}" for n, s in CASES])
    parser.add_argument("--contenders", nargs="*", default=["graph", "xla", "onnx"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", help="JSON lines, added to the file")
    parser.add_argument("--show", help="only print the table of such a file")
    parser.add_argument("--picture", help="a file to draw into")
    options = parser.parse_args()
    if options.show:
        with open(options.show) as file:
            rows = [row for row in map(json.loads, file) if row.get("what") != "machine"]
    else:
        require("onnxruntime", "tf2onnx")
        rows = []
        for case in options.models:
            name, size = case.split("@")
            rows += measure(name, int(size), options.batch, options.rounds, options.contenders)
        if options.output:
            with open(options.output, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in [machine(), *rows])
    print(table(rows))
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
