"""The rows of benchmarks/suite.py as a table, and as a picture."""

from __future__ import annotations

import json
import pathlib

CELL = ("task", "variant", "size", "precision", "batch", "threads")


def read(path: pathlib.Path) -> list[dict]:
    """The rows of a file, none where there is none."""
    if not pathlib.Path(path).exists():
        return []
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def is_ours(row: dict) -> bool:
    return "keras_vit" in row["contestant"]


def latest(rows: list[dict]) -> dict[tuple, dict[str, dict]]:
    """Rows by cell and contestant; of a contestant measured twice, the later."""
    cells: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in CELL), {})[row["contestant"]] = row
    return cells


def ceilings(rows: list[dict]) -> dict[tuple, float]:
    """GFLOP/s of the fastest plain product, by precision and threads."""
    best: dict[tuple, float] = {}
    for row in rows:
        if row["task"] == "ceiling" and "error" not in row:
            rate = 2 * row["size"] ** 3 * row["images_per_second"] / 1e9
            key = row["precision"], row["threads"]
            best[key] = max(best.get(key, 0.0), rate)
    return best


def compare(rows: list[dict]) -> list[dict]:
    """Every measured row of a model, with its ratio to the best peer and its share of the ceiling.

    Ours through a runtime (our file in ONNX Runtime) are ours. `of_peer` is images/s over the
    fastest peer's, `of_peer_processor` the processor's seconds of the thriftiest peer over these.
    """
    limits, compared = ceilings(rows), []
    for key, contestants in latest(rows).items():
        if key[0] == "ceiling":
            continue
        measured = [row for row in contestants.values() if "error" not in row]
        peers = [row for row in measured if not is_ours(row)]
        for row in contestants.values():
            row = {**row, "limit": limits.get((row["precision"], row["threads"]))}
            if "error" not in row and peers:
                row["of_peer"] = row["images_per_second"] / max(
                    peer["images_per_second"] for peer in peers
                )
                row["of_peer_processor"] = (
                    min(peer["processor_ms_per_image"] for peer in peers)
                    / row["processor_ms_per_image"]
                )
            macs = row.get("training_macs" if row["task"] == "train" else "macs")
            if macs and "error" not in row and row["limit"]:
                row["share"] = 2 * macs * row["images_per_second"] / 1e9 / row["limit"]
            compared.append(row)
    return compared


def table(rows: list[dict]) -> list[str]:
    """Markdown: a row a contestant, the fastest of its cell first."""
    lines = [
        "| model | size | what | precision | batch | threads | contestant | images/s "
        "| of best peer | by processor | of ceiling |",
        "|---" * 11 + "|",
    ]
    compared = compare(rows)
    order = list(latest(rows))
    key = {id(row): order.index(tuple(row[name] for name in CELL)) for row in compared}
    for row in sorted(compared, key=lambda r: (key[id(r)], -r.get("images_per_second", 0))):
        start = (
            f"| {row['variant']} | {row['size']} | {row['task']} | {row['precision']} "
            f"| {row['batch']} | {row['threads']} | {row['contestant']} |"
        )
        if "error" in row:
            lines.append(f"{start} failed: {row['error'].replace('|', '/')[:120]} | | | |")
            continue
        ratios = [show(row.get(name), "{:.2f}") for name in ("of_peer", "of_peer_processor")]
        share = show(row.get("share"), "{:.0%}")
        lines.append(f"{start} {row['images_per_second']:.4g} | {' | '.join(ratios)} | {share} |")
    return lines


_PREDICT = ("keras_vit predict", "keras_vit fit", "keras_vit fit train.AdamW")
_CALL = ("keras_vit call", "keras_vit call xla")
_SAVED = tuple(f"keras_vit saved_model{kind}" for kind in ("", " xla", " constants"))
_FILES = ("litert keras_vit", "onnxruntime keras_vit", "openvino keras_vit")

# Columns of the summary: contestants, of whom the fastest counts, and whom they are divided by.
# `keras_vit.export.find_export` chooses among the exported files of ours.
COLUMNS = {
    "fastest of ours": ((*_PREDICT, *_CALL, *_SAVED, *_FILES), None),
    "`predict` or `fit`": (_PREDICT, None),
    "compiled call": (_CALL, None),
    "SavedModel": (_SAVED, None),
    "LiteRT": (("litert keras_vit",), None),
    "ONNX Runtime": (("onnxruntime keras_vit",), None),
    "OpenVINO": (("openvino keras_vit",), None),
    "timm compiled": (("timm compiled",), None),
    "keras-hub": (("keras_hub predict", "keras_hub fit"), None),
    "ours over timm's in ONNX Runtime": (("onnxruntime keras_vit",), "onnxruntime timm"),
    "in OpenVINO": (("openvino keras_vit",), "openvino timm"),
}


def summary(rows: list[dict]) -> list[str]:
    """Markdown: a row a cell, our speed through each interface over that of the best peer."""
    lines = [
        "| model | size | what | precision | batch | best peer | images/s | "
        + " | ".join(COLUMNS)
        + " |",
        "|---" * (7 + len(COLUMNS)) + "|",
    ]
    for key, contestants in latest(rows).items():
        speeds = {n: r["images_per_second"] for n, r in contestants.items() if "error" not in r}
        peers = {name: speed for name, speed in speeds.items() if "keras_vit" not in name}
        if key[0] == "ceiling" or not peers:
            continue
        best = max(peers, key=lambda name: peers[name])
        ratios = []
        for names, other in COLUMNS.values():
            fastest = max((speeds[name] for name in names if name in speeds), default=None)
            base = speeds.get(other) if other else peers[best]
            ratios.append(show(fastest and base and fastest / base, "{:.2f}"))
        task, variant, size, precision, batch, _ = key
        lines.append(
            f"| {variant} | {size} | {task} | {precision} | {batch} | {best} | {peers[best]:.4g} "
            f"| {' | '.join(ratios)} |"
        )
    return lines


def show(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def plot(rows: list[dict], path: pathlib.Path) -> None:
    """Speed over the best peer's, a panel a cell."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[tuple, list[dict]] = {}
    for row in compare(rows):
        if "of_peer" in row:
            panels.setdefault(tuple(row[name] for name in CELL), []).append(row)
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.4 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (cell, contestants) in zip(axes.flat, panels.items(), strict=False):
        contestants.sort(key=lambda row: row["images_per_second"])
        names = [row["contestant"] for row in contestants]
        speeds = [row["images_per_second"] for row in contestants]
        colors = ["tab:blue" if is_ours(row) else "tab:gray" for row in contestants]
        axis.barh(names, speeds, color=colors)
        axis.set_title("{1} {2} px, {0}, {3}\nbatch {4}, threads {5}".format(*cell), fontsize=9)
        axis.tick_params(labelsize=7)
        axis.bar_label(axis.containers[0], fmt="%.3g", fontsize=7, padding=2)
        axis.margins(x=0.15)
    figure.supxlabel("images/s (blue: ours)", fontsize=9)
    figure.savefig(path, dpi=110)
