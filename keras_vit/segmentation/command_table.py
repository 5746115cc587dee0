"""The commands `keras-vit segment ...`: names, functions and flags.

Like `cli/commands.py`, which lists this module by its name, it imports nothing of Keras.
"""

from __future__ import annotations

import argparse
from typing import Any

from keras_vit.cli.arguments import (
    IMAGE_SIZE,
    JSON,
    OUTPUTS,
    TRIALS,
    UNREADABLE_FILES,
    Command,
    argument,
    setting_argument,
)
from keras_vit.cli.run_settings import MODEL_FORMS
from keras_vit.segmentation.settings import SETTINGS, SegmentSettings


def value_or_colour(text: str) -> int | tuple[int, ...]:
    """Reads `255` as a number, and `224,224,192` as a colour."""
    numbers = tuple(map(int, text.split(",")))
    if len(numbers) not in (1, 3):
        raise argparse.ArgumentTypeError(
            f"a value such as 255, or a colour such as 224,224,192, is expected. Received: {text!r}"
        )
    return numbers[0] if len(numbers) == 1 else numbers


_IGNORED: dict[str, Any] = {"type": value_or_colour, "nargs": "*"}
_SHARED = (
    argument(
        "--mode",
        default="whole",
        choices=("whole", "slide"),
        help="resize the image to the model, or average windows of the model's size",
    ),
    argument(
        "--scales",
        nargs="+",
        type=float,
        default=(1.0,),
        help="sizes to average, with --mode slide",
    ),
    argument("--flip", action="store_true", help="average with the mirrored image"),
    argument("--batch-size", type=int, default=8, help="images per step"),
)

COMMANDS: tuple[Command, ...] = (
    Command(
        "segment train",
        "segmentation.commands:train_segmenter",
        "Trains a segmentation head on a model, or both, from images and masks.",
        (
            *TRIALS,
            *OUTPUTS,
            setting_argument(SETTINGS["model"], "model", nargs="?", metavar="MODEL"),
            setting_argument(SETTINGS["images"], "images", "--data", metavar="IMAGES"),
            setting_argument(SETTINGS["masks"], "masks", metavar="MASKS"),
            *(
                setting_argument(each, **(_IGNORED if name == "ignored" else {}))
                for name, each in SETTINGS.items()
                if name not in ("model", "images", "masks")
            ),
        ),
        keeps_buffers=True,
        settings=SETTINGS,
        check=lambda given: SegmentSettings(**{x: given[x] for x in SETTINGS.keys() & given}),
    ),
    Command(
        "segment evaluate",
        "segmentation.commands:evaluate_segmenter",
        "Prints the mean IoU of a segmentation model on images with masks.",
        (
            argument("model", help=MODEL_FORMS),
            argument("images", "--data", help="folder of images"),
            argument("masks", help="folder of PNG masks of the same names"),
            IMAGE_SIZE,
            *_SHARED,
            argument("--classes", help="as for `segment train`; by default those of the run"),
            argument(
                "--ignored", help="as for `segment train`; by default as in training", **_IGNORED
            ),
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "segment predict",
        "segmentation.commands:predict_segments",
        "Writes the class map of image files as PNG masks, and drawn over the images.",
        (
            argument("model", help=MODEL_FORMS),
            argument("files", "--data", nargs="+", help="image files, and folders of them"),
            IMAGE_SIZE,
            argument(
                "--output",
                default="segments",
                help="folder to write to; the first class is 0, whatever --first-value was",
            ),
            *_SHARED,
            UNREADABLE_FILES,
        ),
        keeps_buffers=True,
    ),
    Command(
        "segment masks",
        "segmentation.prompt_commands:write_masks",
        "Writes masks of everything in image files, as a COCO file and drawn over the images.",
        (
            argument("model", help="a folder or an address of Segment Anything"),
            argument("files", "--data", nargs="+", help="image files, and folders of them"),
            IMAGE_SIZE,
            argument("--output", default="masks", help="folder to write to"),
            argument("--points-per-side", type=int, default=32, help="points of the grid"),
            argument("--threshold", type=float, default=0.88, help="least score"),
            argument("--stability-threshold", type=float, default=0.95, help="least stability"),
            argument("--crop-layers", type=int, default=0, help="layers of crops"),
            UNREADABLE_FILES,
        ),
        keeps_buffers=True,
    ),
)
