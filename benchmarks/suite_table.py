"""The rows of benchmarks/suite.py as tables."""

from __future__ import annotations

CELL = ("task", "variant", "size", "precision", "batch", "threads")


def is_ours(row: dict) -> bool:
    return "keras_vit" in row["contestant"]


def latest(rows: list[dict]) -> dict[tuple, dict[str, dict]]:
    """Rows by cell and contestant; of a contestant measured twice, the later."""
    cells: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        if row["task"] != "ceiling":  # of earlier files
            cells.setdefault(tuple(row[name] for name in CELL), {})[row["contestant"]] = row
    return cells


def compare(rows: list[dict]) -> list[dict]:
    """Every measured row of a model, with its ratio to the best peer.

    Ours through a runtime (our file in ONNX Runtime) are ours. `of_peer` is images/s over the
    fastest peer's, `of_peer_processor` the processor's seconds of the thriftiest peer over these.
    """
    compared = []
    for contestants in latest(rows).values():
        measured = [row for row in contestants.values() if "error" not in row]
        peers = [row for row in measured if not is_ours(row)]
        for row in contestants.values():
            if "error" not in row and peers:
                fastest = max(peer["images_per_second"] for peer in peers)
                least = min(peer["processor_ms_per_image"] for peer in peers)
                ratios = row["images_per_second"] / fastest, least / row["processor_ms_per_image"]
                row = {**row, "of_peer": ratios[0], "of_peer_processor": ratios[1]}
            compared.append(row)
    return compared


def table(rows: list[dict]) -> list[str]:
    """Markdown: a row a contestant, the fastest of its cell first."""
    lines = [
        "| model | size | what | precision | batch | threads | contestant | images/s "
        "| of best peer | by processor |",
        "|---" * 10 + "|",
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
            lines.append(f"{start} failed: {row['error'].replace('|', '/')[:120]} | | |")
            continue
        ratios = [show(row.get(name), "{:.2f}") for name in ("of_peer", "of_peer_processor")]
        lines.append(f"{start} {row['images_per_second']:.4g} | {' | '.join(ratios)} |")
    return lines


_PREDICT = ("keras_vit predict", "keras_vit fit", "keras_vit fit train.AdamW")
_SAVED = tuple(f"keras_vit saved_model{kind}" for kind in ("", " xla"))

# Columns of the summary: contestants, of whom the fastest counts.
COLUMNS = {
    "`predict` or `fit`": _PREDICT,
    "SavedModel": _SAVED,
    "LiteRT": ("litert keras_vit",),
    "ONNX Runtime": ("onnxruntime keras_vit",),
    "OpenVINO": ("openvino keras_vit",),
    "timm compiled": ("timm compiled",),
    "keras-hub": ("keras_hub predict", "keras_hub fit"),
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
        if not peers:
            continue
        best = max(peers, key=lambda name: peers[name])
        ratios = []
        for names in COLUMNS.values():
            fastest = max((speeds[name] for name in names if name in speeds), default=None)
            ratios.append(show(fastest and fastest / peers[best], "{:.2f}"))
        task, variant, size, precision, batch, _ = key
        lines.append(
            f"| {variant} | {size} | {task} | {precision} | {batch} | {best} | {peers[best]:.4g} "
            f"| {' | '.join(ratios)} |"
        )
    return lines


def show(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
