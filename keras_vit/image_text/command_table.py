"""The commands `keras-vit zero-shot` and `keras-vit search`: names, functions and flags.

Like `cli/commands.py`, which lists this module by its name, it imports nothing of Keras.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_vit.checks import check_positive
from keras_vit.cli.arguments import IMAGE_SIZE, JSON, UNREADABLE_FILES, Command, argument

DUPLICATES = 0.98  # cosine similarity of near-duplicates: docs/zero-shot.md has measurements


def _check_zero_shot(given: Mapping[str, Any]) -> None:
    if not given["images"] and given["output"] is None:
        raise ValueError("There is nothing to do. Pass --images, or --output for the model.")
    if given["output"] is not None and not given["output"].endswith(".keras"):
        raise ValueError(f"--output must end in .keras. Received: {given['output']!r}.")


def _check_search(given: Mapping[str, Any]) -> None:
    if not given["texts"] and not given["image"]:
        raise ValueError("There is nothing to search for. Pass a text, or --image.")
    if given["output"] is not None and not given["output"].endswith((".html", ".htm")):
        raise ValueError(f"--output must end in .html. Received: {given['output']!r}.")
    check_positive("top", given["top"])


COMMANDS: tuple[Command, ...] = (
    Command(
        "zero-shot",
        "image_text.commands:classify_by_names",
        "Classifies images by the names of classes, without training; writes such a model.",
        (
            argument(
                "model",
                help="folder, file or hf:// address of a model of images and texts (CLIP, SigLIP)",
            ),
            argument(
                "--classes", required=True, help="text file with the name of a class per line"
            ),
            argument("images", "--data", nargs="*", help="image files, and folders of them"),
            argument(
                "--templates",
                help="text file with a sentence per line, {} for the name of the class",
            ),
            argument("--output", help=".keras file to write the classifier to"),
            IMAGE_SIZE,
            argument("--top", type=int, default=3, help="classes to print"),
            argument("--batch-size", type=int, default=32, help="images per step"),
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
        check=_check_zero_shot,
    ),
    Command(
        "search",
        "image_text.commands:search_images",
        "Searches a folder of images by texts and by images; writes a page with thumbnails.",
        (
            argument(
                "model",
                help="folder, file or hf:// address of a model of images and texts (CLIP, SigLIP); "
                "for --image alone any model",
            ),
            argument("folder", "--data", help="folder of the images, with all folders in it"),
            argument("texts", nargs="*", help='what to search for, such as "a red bird"'),
            argument("--image", nargs="+", default=(), help="image files to search for"),
            IMAGE_SIZE,
            argument("--top", type=int, default=10, help="answers for each text and image"),
            argument(
                "--duplicates",
                type=float,
                default=DUPLICATES,
                metavar="COSINE",
                help="similarity from which images are near-duplicates and share an answer; 2 "
                "groups none",
            ),
            argument("--output", help="HTML file to write the answers to"),
            argument(
                "--cache",
                help="folder to keep the features of the images in, for the next search; by "
                "default one of the user's cache",
            ),
            argument("--batch-size", type=int, default=32, help="images per step"),
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
        check=_check_search,
    ),
)
