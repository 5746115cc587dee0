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
    check_choice("format", format, tuple(FORMATS))
    if (num_points or 0) < 4 and (num_points is not None or format == "openvino"):
        raise ValueError(
            "`num_points` must be 4 or more; `None` is any number, which OpenVINO does not "
            f"convert. Received: {num_points} for {format}."
        )
    folder, ending = pathlib.Path(folder), pathlib.PurePath(FORMATS[format].file).suffix
    image = synthetic_images((*segmenter.image_size, 3), count=1)
    arguments = {"precision": precision, "images": image, **options}
    first = FORMATS[format].export(segmenter.encoder, folder / f"encoder{ending}", **arguments)
    shapes = None if num_points is None else {"points": (num_points, 2), "labels": (num_points,)}
    path, samples = folder / f"decoder{ending}", _samples(segmenter, image, num_points)
    return first, export_several_inputs(segmenter.decoder, path, format, samples, shapes)


def _samples(
    segmenter: PromptableSegmenter, image: np.ndarray, num_points: int | None
) -> list[dict[str, np.ndarray]]:
    """Inputs of the decoder for prompts of several kinds on one image, filled up with points."""
    size = segmenter.image_size
    embedded = EmbeddedImages(segmenter.encoder.predict_on_batch(image), (size,))
    points = np.random.default_rng(0).uniform(0, np.array(size[::-1]) - 1, (1, 3, 2))
    mask = segmenter.predict(embedded, points, num_masks=1)["masks"][:, 0]
    box = np.array([[0, 0, size[1] / 2, size[0] / 3]])
    prompts: list[dict[str, Any]] = [
        {"points": points[:, :1]},
        {"points": points, "labels": np.array([[1, 0, 1]])},
        {"points": points[:, :1], "boxes": box, "masks": mask},
    ]
    samples = [segmenter.prepare_prompts(embedded, **each) for each in prompts]
    for sample in samples:
        fill = (0, 0), (0, max((num_points or 0) - sample["points"].shape[1], 0))
        sample["points"] = np.pad(sample["points"], (*fill, (0, 0)))
        sample["labels"] = np.pad(sample["labels"], fill, constant_values=_PADDING)
    return samples
