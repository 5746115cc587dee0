"""`keras-vit detect`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from keras_vit.cli.output import say
from keras_vit.cli.resolve import open_model
from keras_vit.cli.result_files import result_files
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.preview import write_png
from keras_vit.detection.prediction import draw_boxes, predict_boxes
from keras_vit.errors import printable
from keras_vit.models.set_prediction import DetectionTransformer


def detect_files(
    files: Sequence[str],
    model: str,
    threshold: float = 0.5,
    output: str | None = None,
    image_size: tuple[int, int] | None = None,
    unreadable: str = "error",
    as_json: bool = False,
) -> None:
    """Prints the objects in image files with their boxes, by a detector such as YOLOS."""
    paths = find_readable(files, unreadable)
    pictures = {} if output is None else result_files(paths, output, ("_boxes.png",))
    detector = open_model(model, image_size, networks=True)
    if not isinstance(detector, DetectionTransformer):
        raise ValueError(
            f"{model!r} is no detector of this command: a checkpoint of YOLOS "
            "(YolosForObjectDetection), or the .keras file of such a model, is needed."
        )
    names = detector.class_names or tuple(map(str, range(detector.num_classes)))
    for path in paths:
        (found,) = predict_boxes(detector, [path], threshold)
        rows = [
            {"label": names[x], "score": float(score), "box": [round(v, 2) for v in box.tolist()]}
            for score, x, box in zip(*found, strict=True)
        ]
        if as_json:
            print(json.dumps({"file": str(path), "boxes": rows}))
        else:
            texts = ["{label} {score:.1%} {box}".format(**row) for row in rows] or ["no object"]
            say("  ".join(map(printable, [path, *texts])))
        if path in pictures:
            write_png(pictures[path][0], draw_boxes(read_image(path), found, names))
