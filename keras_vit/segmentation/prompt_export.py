"""Files of Segment Anything: the encoder and the decoder apart, each compared with its model."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from keras_vit.checks import check_choice
from keras_vit.export.formats import FORMATS
from keras_vit.export.several_inputs import export_several_inputs
from keras_vit.export.verify import ExportReport, synthetic_images
from keras_vit.segmentation.promptable import EmbeddedImages, PromptableSegmenter

_ENDINGS = {"saved_model": "", "litert": ".tflite", "onnx": ".onnx", "openvino": ".xml"}
_PADDING = -10  # label of points that fill up, as in transformers


def export_promptable(
    segmenter: PromptableSegmenter,
    folder: str | os.PathLike[str],
    format: str = "onnx",
    precision: str = "float32",
    num_points: int | None = None,
    **options: Any,
) -> tuple[ExportReport, ExportReport]:
    """Exports encoder and decoder of Segment Anything to one file each, and checks both.

    `encoder` takes `pixels`, images that are resized and filled up as the encoder of `segmenter`
    has them. `decoder` has the inputs and outputs of `segmenter.decoder`, in float32; it is checked
    with a point, with three points, and with a box, a point and a mask of the step before.

    Args:
        segmenter: A model of `load_promptable`, with its preprocessing.
        folder: Folder of the files: `encoder.onnx` and `decoder.onnx`, with the ending of the
            format; of `"saved_model"` directories of versions.
        format: `"onnx"`, `"saved_model"`, `"litert"` or `"openvino"`.
        precision: Precision of the encoder, as for the export of the format.
        num_points: Points of each call of the decoder, corners of boxes and the point of label -1
            included; fewer are filled up by points of label -10, whose tokens count a little, in
            transformers too. `None` takes any number; OpenVINO needs one.
        **options: Further arguments of the export of the encoder, such as `images`; by default it
            is checked on one synthetic image.

    Returns:
        The `ExportReport` of the encoder, and that of the decoder.

    Raises:
        FileExistsError: If a file exists.
        ImportError: If a package of the format is not installed.
        ValueError: If an argument is out of its range.
        ExportMismatchError: If outputs differ from the model's. That file is not left then.

    Example:

    >>> keras_vit.segmentation.export_promptable(segmenter, "files", "litert")  # doctest: +SKIP
    """
    check_choice("format", format, tuple(_ENDINGS))
    if format == "openvino" and num_points is None:
        raise ValueError(
            "OpenVINO converts a decoder of a fixed `num_points`. Pass one, such as 8."
        )
    folder, ending = pathlib.Path(folder), _ENDINGS[format]
    image = synthetic_images((*segmenter.image_size, 3), count=1)
    arguments = {"precision": precision, "images": image, **options}
    first = FORMATS[format].export(segmenter.encoder, folder / f"encoder{ending}", **arguments)
    shapes = None if num_points is None else {"points": (num_points, 2), "labels": (num_points,)}
    samples = [_filled(x, num_points) for x in _samples(segmenter, image)]
    path = folder / f"decoder{ending}"
    second = export_several_inputs(segmenter.decoder, path, format, samples, shapes)
    return first, second


def _samples(segmenter: PromptableSegmenter, image: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Inputs of the decoder for prompts of several kinds on one image."""
    embedded = EmbeddedImages(segmenter.encoder.predict(image, verbose=0), (segmenter.image_size,))
    height, width = segmenter.image_size
    points = np.random.default_rng(0).uniform(0, (width - 1, height - 1), (1, 3, 2))
    box = np.array([[0, 0, width / 2, height / 3]])
    mask = segmenter.predict(embedded, points, num_masks=1)["masks"][:, 0]
    return [
        segmenter.prepare_prompts(embedded, *prompts)
        for prompts in (
            (points[:, :1], None, None, None),
            (points, np.array([[1, 0, 1]]), None, None),
            (points[:, :1], None, box, mask),
        )
    ]


def _filled(inputs: dict[str, np.ndarray], num_points: int | None) -> dict[str, np.ndarray]:
    """Inputs of the decoder with as many points."""
    missing = 0 if num_points is None else num_points - inputs["points"].shape[1]
    if missing < 0:
        raise ValueError(f"`num_points` must be 4 or more, or None. Received: {num_points}.")
    points = np.pad(inputs["points"], ((0, 0), (0, missing), (0, 0)))
    labels = np.pad(inputs["labels"], ((0, 0), (0, missing)), constant_values=_PADDING)
    return {**inputs, "points": points, "labels": labels}
