"""The commands `keras-vit detect` and `detect train`: names, functions and flags.

It imports nothing of Keras.
"""

from __future__ import annotations

from keras_vit.cli.arguments import IMAGE_SIZE, JSON, OUTPUTS, UNREADABLE_FILES, Command, argument
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
    Command(
        "detect train",
        "detection.commands:train_detector",
        "Trains a detector on boxes: RetinaNet on a classifier, or a published YOLOS or RF-DETR.",
        (
            argument("model", help=MODEL_FORMS),
            argument(
                "data",
                help="folder of train/_annotations.coco.json, or of images/train, labels/train and "
                "classes.txt in YOLO's layout; test, valid or val is held out",
            ),
            argument(
                "--output",
                default="runs/detector",
                help="folder for detector.keras, classes.txt and the states that the same command "
                "goes on from",
            ),
            argument("--epochs", type=int, default=20, help="how often each image is seen"),
            argument("--batch-size", type=int, default=4, help="images per step"),
            IMAGE_SIZE,
            argument(
                "--patch-size",
                type=int,
                help="pixels to whose side the patches of a checkpoint are resized: 16 for those "
                "of 14, which RetinaNet does not take",
            ),
            *OUTPUTS,
        ),
        keeps_buffers=True,
    ),
)
