"""`keras-vit zero-shot`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from keras_vit.cli.output import say
from keras_vit.errors import printable
from keras_vit.image_text.classifier import zero_shot_classifier
from keras_vit.image_text.towers import load_towers
from keras_vit.reading import read_text
from keras_vit.train.file_predictions import classify_files
from keras_vit.train.keras_files import save_keras_file


def classify_by_names(
    model: str,
    classes: str,
    images: Sequence[str] = (),
    templates: str | None = None,
    output: str | None = None,
    image_size: tuple[int, int] | None = None,
    top: int = 3,
    batch_size: int = 32,
    unreadable: str = "error",
    as_json: bool = False,
) -> None:
    """Classifies images by the names of classes, without training; writes such a model."""
    names = _lines(classes)
    sentences = None if templates is None else _lines(templates)
    towers = load_towers(model, image_size=image_size)
    classifier = zero_shot_classifier(towers, names, sentences)
    if output is not None:
        save_keras_file(classifier, pathlib.Path(output))
        if not as_json:
            say(f"{output}: {len(names)} classes, {classifier.count_params():,} parameters")
    if not images:
        return
    for path, found in classify_files(classifier, names, images, batch_size, unreadable):
        shown = list(found.items())[:top]
        if as_json:
            print(json.dumps({"file": str(path), "classes": dict(shown)}))
        else:
            texts = (f"{name} {share:.1%}" for name, share in shown)
            say("  ".join(map(printable, [path, *texts])))


def _lines(path: str) -> list[str]:
    lines = [line.strip() for line in read_text(path).splitlines()]
    return [line for line in lines if line]
