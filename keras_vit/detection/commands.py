"""`keras-vit detect`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from keras_vit.cli.output import say
from keras_vit.cli.resolve import open_model, resolve_model
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.preview import write_png
from keras_vit.detection.prediction import draw_boxes, predict_boxes
from keras_vit.errors import printable
from keras_vit.models.set_prediction import DetectionTransformer
from keras_vit.pretrained import from_pretrained


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
    pictures = {} if output is None else _pictures(paths, output)
    detector = _open(model, image_size)
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
            pictures[path].parent.mkdir(parents=True, exist_ok=True)
            write_png(pictures[path], draw_boxes(read_image(path), found, names))


def _pictures(paths: list[pathlib.Path], output: str) -> dict[pathlib.Path, pathlib.Path]:
    """The file that each image with drawn boxes is written to."""
    found = {path: pathlib.Path(output, f"{path.stem}_boxes.png") for path in paths}
    own, written = ({path.resolve() for path in part} for part in (paths, found.values()))
    if len(written - own) < len(paths):
        raise ValueError(
            f"Images NAME.jpg become NAME_boxes.png in {printable(output)}, and some would replace "
            "one another, or an image. Choose another --output, or fewer files."
        )
    return found


def _open(name: str, image_size: tuple[int, int] | None) -> DetectionTransformer:
    """A detector; of a checkpoint without a size, one for images of any size."""
    if resolve_model(name).kind == "checkpoint":
        model = from_pretrained(name, input_shape=(*(image_size or (None, None)), 3))
    else:
        model = open_model(name, image_size)
    if not isinstance(model, DetectionTransformer):
        raise ValueError(
            f"{name!r} is no detector of this command: a checkpoint of YOLOS "
            "(YolosForObjectDetection), or the .keras file of such a model, is needed."
        )
    return model
