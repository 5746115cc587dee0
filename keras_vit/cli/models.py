"""`keras-vit export`, `verify` and `inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_vit.cli.commands import MAX_IMAGES
from keras_vit.cli.resolve import class_names_of, open_model, resolve_model


def export_model(
    model: str,
    to: str,
    output: str,
    precision: str = "float32",
    labels: str | None = None,
    images: Sequence[str] = (),
) -> None:
    """Exports a model as a SavedModel, a LiteRT or an ONNX file, checked against the model."""
    from keras_vit.data.image_files import read_images
    from keras_vit.train.runs import find_exporter

    options: dict[str, Any] = {"precision": precision}
    loaded = open_model(model)
    if labels is not None or resolve_model(model).path is not None:
        options["labels"] = class_names_of(model, labels, loaded.output_shape[-1])
    if images:
        options["images"] = read_images(images, loaded.input_shape[-1], MAX_IMAGES)
        if (to, precision) == ("litert", "int8"):
            options["calibration"] = options["images"]
    print(find_exporter(to)(loaded, output, **options))


def verify_file(
    path: str, model: str, tolerance: float | None = None, images: Sequence[str] = ()
) -> None:
    """Compares the outputs of an exported file with those of its model."""
    from keras_vit.data.image_files import read_images
    from keras_vit.export.verify import verify_export

    loaded = open_model(model)
    pixels = read_images(images, loaded.input_shape[-1], MAX_IMAGES) if images else None
    print(verify_export(path, loaded, pixels, tolerance=tolerance))


def inspect_model(model: str, images: Sequence[str], output: str = "report.html") -> None:
    """Writes an HTML report about a model: configuration, cost, weights, attention."""
    from keras_vit.data.image_files import ImageFiles
    from keras_vit.report import write_report

    loaded = open_model(model)
    print(write_report(loaded, output, ImageFiles(images, loaded) if images else None))
