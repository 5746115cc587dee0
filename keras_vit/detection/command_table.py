"""The command `keras-vit detect`: name, function and flags. It imports nothing of Keras."""

from __future__ import annotations

from keras_vit.cli.arguments import IMAGE_SIZE, JSON, UNREADABLE_FILES, Command, argument
from keras_vit.cli.run_settings import MODEL_FORMS

COMMANDS: tuple[Command, ...] = (
    Command(
        "detect",
        "detection.commands:detect_files",
        "Prints the objects in image files with their boxes, by a detector such as YOLOS or OWLv2.",
        (
            argument("model", help=MODEL_FORMS),
            argument("files", "--data", nargs="+", help="image files, and folders of them"),
            argument(
                "--threshold",
                type=float,
                help="scores up to this one are left out (default: 0.5; with texts 0.1)",
            ),
            argument(
                "--classes",
                help="text file with a line for each thing to find, such as 'a photo of a cat'; "
                "for a folder of OWL-ViT or OWLv2",
            ),
            argument("--output", help="folder to write images with drawn boxes to"),
            IMAGE_SIZE,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
)
