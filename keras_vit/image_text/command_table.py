"""The command `keras-vit zero-shot`: name, function and flags.

Like `cli/commands.py`, which lists this module by its name, it imports nothing of Keras.
"""

from __future__ import annotations

from keras_vit.cli.commands import JSON, UNREADABLE_FILES, Command, argument

COMMANDS: tuple[Command, ...] = (
    Command(
        "zero-shot",
        "image_text.commands:classify_by_names",
        "Classifies images by the names of classes, without training; writes such a model.",
        (
            argument("model", help="folder or file of a model of images and texts (CLIP, SigLIP)"),
            argument(
                "--classes", required=True, help="text file with the name of a class per line"
            ),
            argument("--images", nargs="+", default=(), help="image files, and folders of them"),
            argument(
                "--templates",
                help="text file with a sentence per line, {} for the name of the class",
            ),
            argument("--output", help=".keras file to write the classifier to"),
            argument("--top", type=int, default=3, help="classes to print"),
            argument("--batch-size", type=int, default=32, help="images per step"),
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
)
