"""Prints what the benchmarks of exports measured as the tables of docs/export.md.

python benchmarks/tabulate_exports.py
"""

from __future__ import annotations

import functools
import json
import pathlib

FORMATS = ["keras", "saved_model", "litert", "onnx", "openvino", "peer", "timm"]  # of precisions
RESULTS = pathlib.Path(__file__).parents[1] / "docs" / "benchmarks"


def read(name: str) -> list[dict]:
    """The JSON lines of a benchmark."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def agreement() -> list[str]:
    """Files of trained models: a line for each."""
    lines = [
        "| task | format | precision | size | largest difference | top-1 agreement | accuracy |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in read("agreement"):
        if row.get("format") == "model":
            lines.append(f"| {row['task']} | the model | float32 | | | | {row['accuracy']:.1%} |")
        elif "format" in row:
            lines.append(
                f"| {row['task']} | {row['format']} | {row['precision']} | {row['size']:.2f} "
                f"| {row['difference']:.1e} | {row['top1_agreement']:.2%} | {row['accuracy']:.1%} |"
            )
    return lines


def width_of(row: dict) -> int:
    """Bits of the weights; a name without a number is of 8 bits."""
    digits = "".join(filter(str.isdigit, row["precision"]))
    return int(digits or 8)


def precisions(photographs: str) -> list[str]:
    """Every format and precision of a network that others trained: a line for each."""
    columns = f"{photographs}: format | precision | cosine | top-1 agreement | accuracy | MiB"
    lines = [f"| {columns} | images per processor second |", f"|{'---|' * 7}"]
    rows = [row for row in read("precisions") if row["photographs"] == photographs]
    for row in sorted(rows, key=lambda row: (FORMATS.index(row["format"]), -width_of(row))):
        format = "" if row["format"] == "peer" else row["format"]
        name = f"{row['precision']} {row['note']}".strip()
        size = f"{row['bytes'] / 2**20:.1f}" if row["bytes"] else ""
        speed = f"{1 / row['processor_s']:.1f}" if "processor_s" in row else ""
        lines.append(
            f"| {format} | {name} | {row['cosine']:.5f} "
            f"| {row['agreement']:.1%} | {row['accuracy']:.1%} | {size} | {speed} |"
        )
    return lines


def within_budgets() -> list[str]:
    """The smallest files within a budget of accuracy."""
    lines = ["| task | budget | format | file | size | accuracy | drop, 95 % | exports |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in read("agreement"):
        if "budget" not in row:
            continue
        kept = f", {row['float_layers']} layers float" if row["float_layers"] else ""
        low, high = row["drop_interval"]
        lines.append(
            f"| {row['task']} | {row['budget']:.1%} | {row['to']} "
            f"| {row['precision']}{kept} | {row['size']:.2f} | {row['accuracy']:.1%} "
            f"| {low:.1%} to {high:.1%} | {row['exports']} |"
        )
    return lines


def onnx_graphs() -> list[str]:
    """Nodes of our ONNX file and of timm's."""
    lines = ["| file | nodes | of them Shape | after ONNX Runtime's optimizer | among them |"]
    lines.append("|---|---|---|---|---|")
    shown = ("LayerNormalization", "SkipLayerNormalization", "Gelu", "BiasGelu", "Attention")
    for row in read("onnx_beside_timm"):
        if "nodes" in row:
            kinds = {kind: row["kinds_optimized"].get(kind, 0) for kind in shown}
            fused = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
            lines.append(
                f"| {row['file']} | {row['nodes']} | {row['shape_nodes']} "
                f"| {row['nodes_optimized']} | {fused} |"
            )
    return lines


def onnx_times() -> list[str]:
    """Times of our ONNX file and of timm's."""
    lines = ["| threads | batch | file | wall ms | processor ms | wall | processor |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in read("onnx_beside_timm"):
        if "batch" in row:
            lines.append(
                f"| {row['threads']} | {row['batch']} | {row['file']} | {row['wall_ms']:.0f} "
                f"| {row['processor_ms']:.0f} | {row['wall_beside_timm']:.2f} "
                f"| {row['processor_beside_timm']:.2f} |"
            )
    return lines


def serving() -> list[str]:
    """Times of SavedModels beside `model.predict`."""
    lines = ["| oneDNN | batch | what | processor seconds | wall | processor |"]
    lines.append("|---|---|---|---|---|---|")
    for row in read("serving"):
        onednn = {"1": "on", "0": "off"}.get(row["onednn"], "TensorFlow's choice: off")
        lines.append(
            f"| {onednn} | {row['batch']} | {row['what']} | {row['processor_s']:.2f} "
            f"| {row['wall_beside_predict']:.2f} | {row['processor_beside_predict']:.2f} |"
        )
    return lines


def formats() -> list[str]:
    """Every format of a B/16, as export/compare.py tabulates them."""
    rows = json.loads((RESULTS / "exports_vit_b16.json").read_text())
    lines = ["| format | precision | MiB | of float32 | difference | top-1 | ms | processor ms |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        lines.append(
            f"| {row['format']} | {row['precision']} | {row['size'] / 2**20:.1f} | "
            f"{row['size'] / rows[0]['size']:.2f} | {row['max_difference']:.1e} | "
            f"{row['top1_agreement']:.1%} | {row['latency_ms']:.0f} | {row['processor_ms']:.0f} |"
        )
    return lines


def formats_with_openvino() -> list[str]:
    """The file formats of a Ti/16 and of a B/16 on a processor with AMX."""
    sizes = {}
    for row in read("exports_amx"):
        cells = (
            f"{row['size'] / 2**20:.1f} | {row['max_difference']:.1e} | {row['processor_ms']:.0f}"
        )
        sizes.setdefault((row["format"], row["precision"]), []).append(cells)
    columns = " | ".join(f"{name}: MiB | difference | processor ms" for name in ("Ti/16", "B/16"))
    lines = [f"| format | precision | {columns} |", f"|{'---|' * 8}"]
    for (format, precision), cells in sizes.items():
        lines.append(f"| {format} | {precision} | {' | '.join(cells)} |")
    return lines


TABLES = (
    agreement,
    functools.partial(precisions, "CIFAR-10"),
    functools.partial(precisions, "textile"),
    within_budgets,
    onnx_graphs,
    onnx_times,
    serving,
    formats,
    formats_with_openvino,
)

if __name__ == "__main__":
    for table in TABLES:
        print("\n".join(["", *table()]))
