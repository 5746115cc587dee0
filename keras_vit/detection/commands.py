"""`keras-vit detect` and `detect train`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.checks import check_positive
from keras_vit.cli.output import say
from keras_vit.cli.progress import show_progress
from keras_vit.cli.resolve import open_model, resolve_model
from keras_vit.cli.result_files import result_files
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.preview import write_png
from keras_vit.detection.box_files import find_boxes
from keras_vit.detection.boxes import box_batches
from keras_vit.detection.evaluation import evaluate_boxes
from keras_vit.detection.model import DetectorTrainer, build_detector
from keras_vit.detection.open_vocabulary import load_open_vocabulary
from keras_vit.detection.prediction import draw_boxes, predict_boxes
from keras_vit.errors import printable
from keras_vit.files import write_text
from keras_vit.models.set_prediction import DetectionTransformer
from keras_vit.pretrained import from_pretrained
from keras_vit.reading import read_lines
from keras_vit.resume.callback import ResumeTraining
from keras_vit.train.keras_files import save_keras_file
from keras_vit.train.optimizers import AdamW, layerwise_decay
from keras_vit.train.run_folder import DETECTOR

_NAMES = "classes.txt"  # of a detector of keras-hub, which cannot hold them


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
        shape = image_size and (*image_size, 3)
        detector = load_open_vocabulary(model, shape).detector(read_lines(classes))
    if not hasattr(detector, "num_classes"):
        raise ValueError(
            f"{model!r} is no detector of this command: a checkpoint of YOLOS or RF-DETR, what "
            "`keras-vit detect train` writes (of a classifier RetinaNet), or another .keras file "
            "of such a model is needed; of OWL-ViT or OWLv2 with --classes."
        )
    names = _class_names(model, detector)
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


def _class_names(model: str, detector: keras.Model) -> Sequence[str]:
    """The names that a detector holds or that stand in `classes.txt` beside it, or numbers."""
    path, count = resolve_model(model).path, detector.num_classes
    names = getattr(detector, "class_names", None)
    if names is None and path is not None and (path.parent / _NAMES).is_file():
        names = read_lines(path.parent / _NAMES)
        if len(names) != count:
            raise ValueError(
                f"{path.parent / _NAMES} must name the {count} classes of {path.name}, one per "
                f"line. Received: {len(names)}."
            )
    return names or list(map(str, range(count)))


def train_detector(
    data: str,
    model: str,
    output: str = "runs/detector",
    epochs: int = 20,
    batch_size: int = 4,
    image_size: tuple[int, int] | None = None,
    patch_size: int | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Trains a detector on boxes: RetinaNet on a classifier, or a published YOLOS or RF-DETR."""
    check_positive("epochs", epochs)
    check_positive("batch_size", batch_size)
    shown, folder = show_progress(quiet, verbose), pathlib.Path(output)
    boxes, held_out = find_boxes(data, "train"), find_boxes(data, "test", "valid", "val")
    if boxes is None or (held_out is not None and held_out.class_names != boxes.class_names):
        raise ValueError(
            f"{data} must have boxes in train/_annotations.coco.json, or in images/train, "
            "labels/train and classes.txt, and the same classes in its other parts. Received: "
            f"{boxes and boxes.class_names}, {held_out and held_out.class_names}."
        )
    detector, optimizer = _build(model, image_size, patch_size, boxes.class_names)
    batches = box_batches(boxes, detector, batch_size, training=True)
    steps = epochs * len(batches)
    rate, warm = optimizer.pop("rate"), max(steps // 10, 1)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(steps - warm, 1), warmup_target=rate, warmup_steps=warm
    )
    is_set = isinstance(detector, DetectionTransformer)
    trained = detector if is_set else DetectorTrainer(detector)
    trained.compile(AdamW(schedule, decay_kernels_only=True, **optimizer), jit_compile=False)
    resume = ResumeTraining(folder / "states")
    fit: dict[str, Any] = {"shuffle": False, "verbose": shown.verbose}
    trained.fit(batches, epochs=epochs, callbacks=[*shown.callbacks, resume], **fit)
    save_keras_file(detector, folder / DETECTOR)
    write_text(folder / _NAMES, "".join(f"{name}\n" for name in boxes.class_names))
    if held_out is not None:
        say(evaluate_boxes(detector, held_out, batch_size))


def _build(
    model: str, image_size: tuple[int, int] | None, patch_size: int | None, names: Sequence[str]
) -> tuple[keras.Model, dict[str, Any]]:
    """The detector to train, and the arguments of its optimizer with the learning rate."""
    keras.utils.set_random_seed(0)
    if patch_size is None:
        found = open_model(model, image_size, networks=True)
    else:
        shape = image_size and (*image_size, 3)
        found = from_pretrained(model, input_shape=shape, patch_size=patch_size)
    if not isinstance(found, DetectionTransformer):
        found.trainable = False
        # As measured from 100 images: docs/dense-published.md.
        options = {"rate": 5e-4, "weight_decay": 0.01, "clipnorm": 1.0}
        return build_detector(found, len(names), 128, 2), options
    if found.num_classes != len(names) and resolve_model(model).kind == "checkpoint":
        found = from_pretrained(model, classes=len(names), input_shape=found.inputs[0].shape[1:])
    found.class_names = tuple(names)
    factors = layerwise_decay(found, 0.8)
    return found, {"rate": 1e-4, "rate_factors": factors, "weight_decay": 1e-4,
                   "global_clipnorm": 0.1}  # fmt: skip
