"""`keras-vit zero-shot` and `keras-vit search`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import keras

from keras_vit.cli.output import print_table, say
from keras_vit.cli.resolve import open_model
from keras_vit.errors import CheckpointError, listed, printable
from keras_vit.image_text.classifier import zero_shot_classifier
from keras_vit.image_text.command_table import DUPLICATES
from keras_vit.image_text.image_index import Answer, index_images
from keras_vit.image_text.search_page import write_search_page
from keras_vit.image_text.towers import Towers, load_towers
from keras_vit.reading import read_lines
from keras_vit.train.file_predictions import classify_files
from keras_vit.train.keras_files import save_keras_file

_LISTED = 3  # near-duplicates whose names are printed


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
    names = read_lines(classes)
    sentences = None if templates is None else read_lines(templates)
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


def search_images(
    model: str,
    folder: str,
    texts: Sequence[str],
    image: Sequence[str] = (),
    top: int = 10,
    duplicates: float = DUPLICATES,
    output: str | None = None,
    image_size: tuple[int, int] | None = None,
    cache: str | None = None,
    batch_size: int = 32,
    unreadable: str = "error",
    as_json: bool = False,
) -> None:
    """Searches a folder of images by texts and by images; writes a page with thumbnails."""
    missing = [path for path in image if not pathlib.Path(path).is_file()]
    if missing:
        raise FileNotFoundError(f"There is no image {listed(missing)}.")
    towers = _open(model, image_size, bool(texts))
    index = index_images(towers, folder, cache, batch_size=batch_size, unreadable=unreadable)
    answers: dict[str | pathlib.Path, Sequence[Answer]] = {}
    if texts:
        answers |= zip(texts, index.search(texts, top, duplicates), strict=True)
    answers |= {pathlib.Path(path): index.search_image(path, top, duplicates) for path in image}
    for query, found in answers.items():
        if as_json:
            rows = [each._asdict() for each in found]
            print(json.dumps({"query": str(query), "answers": rows}))
        else:
            say(printable(query))
            print_table([("similarity", "file", "near-duplicates"), *map(_row, found)])
    if output is not None:
        write_search_page(output, index, answers)
        if not as_json:
            say(f"{output}: {len(answers)} queries in {len(index.files):,} images")


def _open(
    model: str, image_size: tuple[int, int] | None, needs_texts: bool
) -> Towers | keras.Model:
    """The towers of a checkpoint; to search by images alone, any model."""
    try:
        return load_towers(model, image_size=image_size)
    except (CheckpointError, FileNotFoundError) as error:
        if needs_texts:
            what = "Texts are searched with a checkpoint of images and texts (CLIP, SigLIP)."
            raise CheckpointError(f"{what} {error}") from error
        return open_model(model, image_size)


def _row(answer: Answer) -> tuple[str, str, str]:
    return f"{answer.similarity:.3f}", answer.file, listed(answer.duplicates, _LISTED)
