"""One table and plot of every format and precision of a model.

    python export/compare.py vit_b16 --to runs/compare          # random weights
    python export/compare.py model.keras --images photographs/ --to runs/compare

Writes `table.md`, `table.json` and `compare.png`. Files are checked on at most 100 of the images,
and int8 is calibrated with them; the default are synthetic images and noise. The zeros in the head
of a new model are replaced by random numbers, because they would hide all differences. Takes
minutes for a B/16 on two cores; docs/export.md shows the table. Rows of OpenVINO are left out if it
is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import platform
import tempfile

import keras
import numpy as np

import keras_vit

ROWS = (
    ("saved_model", "float32"),
    ("saved_model", "bfloat16"),
    ("litert", "float32"),
    ("litert", "float16"),
    ("litert", "dynamic"),
    ("litert", "int8"),
    ("onnx", "float32"),
    ("onnx", "float16"),
    ("onnx", "int8"),
    ("openvino", "float32"),
    ("openvino", "float16"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
)


def open_model(name: str) -> keras.Model:
    if name.endswith(".keras"):
        return keras.saving.load_model(name)
    model = keras_vit.create_model(name)
    head = model.get_layer("head")
    rng = np.random.default_rng(0)
    head.set_weights([rng.normal(0, 0.05, weight.shape) for weight in head.get_weights()])
    return model


def export(model: keras.Model, format: str, precision: str, folder: pathlib.Path, images):
    """Exports one row of the table, and returns its report; the file is removed."""
    options = {"images": images, "tolerance": 10.0}  # the table shows every difference
    function = getattr(keras_vit.export, f"export_{format}")
    if precision == "int8" and format != "onnx":
        options["calibration"] = images
        if images is None:
            shape = (8, *model.input_shape[1:])
            options["calibration"] = np.random.default_rng(0).uniform(0, 255, shape)
    name = "model.xml" if format == "openvino" else "model"
    return function(model, folder / name, precision=precision, **options)


def write_table(reports: list[dict], folder: pathlib.Path) -> None:
    exact = next(row["size"] for row in reports if row["precision"] == "float32")
    lines = [f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores", ""]
    lines.append(
        "| format | precision | MiB | of float32 | difference | top-1 | ms | processor ms |"
    )
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in reports:
        lines.append(
            f"| {row['format']} | {row['precision']} | {row['size'] / 2**20:.1f} | "
            f"{row['size'] / exact:.2f} | {row['max_difference']:.1e} | "
            f"{row['top1_agreement']:.1%} | {row['latency_ms']:.0f} | {row['processor_ms']:.0f} |"
        )
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    (folder / "table.json").write_text(json.dumps(reports, indent=1) + "\n")


TITLES = {
    "size": "size, MiB",
    "max_difference": "largest difference, of the largest logit",
    "processor_ms": "processor time, ms per image",
}


def write_plot(reports: list[dict], path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, field, scale in zip(
        figure.subplots(1, 3),
        ("size", "max_difference", "processor_ms"),
        (2**-20, 1, 1),
        strict=True,
    ):
        names = [f"{row['format']} {row['precision']}" for row in reports]
        axes.barh(names[::-1], [row[field] * scale for row in reports][::-1], color="#4c72b0")
        axes.set_title(TITLES[field])
        if field == "max_difference":
            axes.set_xscale("log")
        if field != "size":
            axes.set_yticks([])
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .keras file, or the name of a variant")
    parser.add_argument("--images", nargs="+", help="images of the task, and folders of them")
    parser.add_argument("--to", default="runs/compare", help="directory of the table and plot")
    parser.add_argument("--formats", nargs="+", help="formats to compare; by default all")
    options = parser.parse_args(arguments)

    model = open_model(options.model)
    images = None
    if options.images:
        images = keras_vit.data.read_images(options.images, model.input_shape[-1], count=100)
    reports = []
    formats = set(options.formats or {row[0] for row in ROWS})
    if importlib.util.find_spec("openvino") is None:
        formats -= {"openvino"}
    for format, precision in [row for row in ROWS if row[0] in formats]:
        with tempfile.TemporaryDirectory() as folder:
            report = export(model, format, precision, pathlib.Path(folder), images)
        print(report, flush=True)
        reports.append({**report.to_dict(), "path": "", "format": format})
    folder = pathlib.Path(options.to)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(reports, folder)
    write_plot(reports, folder / "compare.png")


if __name__ == "__main__":
    main()
