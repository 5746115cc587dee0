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
from keras_vit.detection.open_vocabulary import load_open_vocabulary
from keras_vit.detection.prediction import draw_boxes, predict_boxes
from keras_vit.errors import printable
from keras_vit.models.set_prediction import DetectionTransformer
from keras_vit.models.text_detector import TextDetector
from keras_vit.reading import read_text


def detect_files(
    files: Sequence[str],
    model: str,
    threshold: float | None = None,
    classes: str | None = None,
    output: str | None = None,
    image_size: tuple[int, int] | None = None,
    unreadable: str = "error",
    as_json: bool = False,
) -> None:
    """Prints the objects in image files with their boxes, by a detector such as YOLOS or OWLv2."""
    paths = find_readable(files, unreadable)
    pictures = {} if output is None else result_files(paths, output, ("_boxes.png",))
    if classes is None:
        detector = open_model(model, image_size, networks=True)
    else:
        shape = None if image_size is None else (*image_size, 3)
        texts = [line.strip() for line in read_text(classes).splitlines() if line.strip()]
        detector = load_open_vocabulary(model, shape).detector(texts)
    if not isinstance(detector, DetectionTransformer | TextDetector):
        raise ValueError(
            f"{model!r} is no detector of this command: a checkpoint of YOLOS "
            "(YolosForObjectDetection), or the .keras file of such a model, is needed; of OWL-ViT "
            "or OWLv2 with --classes."
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
