"""The rows of `keras-vit train`, `evaluate` and `predict`."""

from __future__ import annotations

from keras_vit.cli.command import Command, argument
from keras_vit.cli.devices import STRATEGIES
from keras_vit.cli.training import evaluate_model, predict_files, train_model

_DATA = "folder with one folder a class, or tfds:NAME, tfds:NAME:VERSION@SPLIT"
_MODEL = "folder of a run, .keras file, checkpoint, or VARIANT/TAG"
_LABELS = argument("--labels", help="text file with a class a line; otherwise those of the run")
_BATCH = argument("--batch-size", type=int, default=32, help="images of a step")
_DATA_DIR = argument("--data-dir", help="where TFDS keeps its data sets")
_DOWNLOAD = argument("--download", action="store_true", help="let TFDS download what is not there")
_JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
_UNREADABLE = argument(
    "--unreadable",
    default="error",
    choices=("error", "skip"),
    help="what to do about files that cannot be read",
)

TRAINING_COMMANDS: tuple[Command, ...] = (
    Command(
        "train",
        train_model,
        (
            argument("--data", required=True, help=_DATA),
            argument("--model", required=True, help='architecture, such as "vit_b16"'),
            argument(
                "--recipe", required=True, help='such as "finetune_pets", see docs/recipes.md'
            ),
            argument("--weights", help="tag, path or address; without them from scratch"),
            argument("--validation", help="share of the images to hold out, or images as --data"),
            argument(
                "--test",
                help="images as --data: choose the learning rate on held-out images, train on all, "
                "test once",
            ),
            argument("--output", default="runs/run", help="folder of the run"),
            argument("--image-size", type=int, help="pixels; the recipe's otherwise"),
            argument("--batch-size", type=int, help="images of a step; the recipe's otherwise"),
            argument("--learning-rate", type=float, help="the recipe's otherwise"),
            argument("--steps", type=int, help="steps; the recipe's otherwise"),
            argument("--seed", type=int, default=0, help="what all random choices follow from"),
            _DATA_DIR,
            _DOWNLOAD,
            _UNREADABLE,
            argument(
                "--precision",
                default="float32",
                choices=("float32", "mixed_bfloat16", "mixed_float16"),
                help="what layers compute in",
            ),
            argument(
                "--strategy",
                default="auto",
                choices=STRATEGIES,
                help="mirrored: on all GPUs of the machine, as auto does where there are several",
            ),
            argument(
                "--dry-run", action="store_true", help="print plan, memory and time, and stop"
            ),
        ),
    ),
    Command(
        "evaluate",
        evaluate_model,
        (
            argument("--data", required=True, help=_DATA),
            argument("--model", required=True, help=_MODEL),
            _LABELS,
            _BATCH,
            _DATA_DIR,
            _DOWNLOAD,
            _UNREADABLE,
            _JSON,
        ),
    ),
    Command(
        "predict",
        predict_files,
        (
            argument("files", nargs="+", help="image files, and folders of them"),
            argument("--model", required=True, help=_MODEL),
            _LABELS,
            argument("--top", type=int, default=3, help="classes to print"),
            _BATCH,
            _JSON,
        ),
    ),
)
