"""The table of commands of `keras-vit`: names, functions and flags.

A new command is a function that prints its result, and a row of `COMMANDS`, here or in the folder
of a task. Each flag is a parameter of the function; `train` has those of `settings.py` too. This
module imports nothing of Keras, so that `--help` answers at once: a function is imported when its
command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
from collections.abc import Callable
from typing import Any

from keras_vit.cli.run_settings import (
    CHECKPOINT_FORMS,
    DATA_DIR,
    DATA_FORMS,
    MODEL_FORMS,
    UNREADABLE,
)
from keras_vit.cli.settings import HEADINGS, SETTINGS, Setting
from keras_vit.config import TASKS
from keras_vit.export.formats import FORMATS, PRECISIONS, SERVERS, Format

MAX_IMAGES = 100  # that exports are checked and calibrated with
LAYOUTS = ("official", "big_vision", "timm", "transformers")  # as in `weights/save.py`


@dataclasses.dataclass(frozen=True)
class Argument:
    """A flag or a positional argument, with the parameters of `add_argument` and a heading."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    group: str | None = None


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of one or several words, and the function that it calls.

    Args:
        name: The words.
        target: `"module:function"` in `keras_vit`.
        summary: What it does: the first line of the function's docstring.
        arguments: Its flags.
        keeps_buffers: Whether it computes with large batches, see `keep_buffers`.
    """

    name: str
    target: str
    summary: str
    arguments: tuple[Argument, ...] = ()
    keeps_buffers: bool = False

    @property
    def function(self) -> Callable[..., None]:
        """The function, imported now."""
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(f"keras_vit.{module}"), name)


def argument(*names: str, **settings: Any) -> Argument:
    """Makes an `Argument`, written like a call of `add_argument`."""
    return Argument(names, settings)


def setting_argument(setting: Setting, **changes: Any) -> Argument:
    """Makes the flag of a setting, without a default: it may be in `--config`.

    Args:
        setting: The setting.
        **changes: Parameters of `add_argument` in place of those that follow from its type.
    """

    def parse(text: str) -> Any:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    options["help"] = setting.summary.replace("%", "%%")
    if setting.is_switch:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options |= {"type": parse, "metavar": "VALUE"}
    return Argument((setting.flag,), {**options, **changes}, HEADINGS[setting.group])


def _precisions(format: Format) -> str:
    """The precisions of a format for the help: `onnx: float16, int8`."""
    names = [name for name in format.tolerances if name != "float32"]
    needing = {name: f"{name} (with --images)" for name in format.calibrated}
    return f"{format.name}: {', '.join(needing.get(name, name) for name in names)}"


def parse_size(text: str) -> tuple[int, int]:
    """Reads `224` as 224 x 224 pixels, and `224x320` as height and width."""
    sides = text.lower().split("x")
    if not 1 <= len(sides) <= 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(
            f"pixels such as 224, or height and width such as 224x320, are expected. "
            f"Received: {text!r}"
        )
    return int(sides[0]), int(sides[-1])


def parse_sizes(text: str) -> list[tuple[int, int]]:
    """Reads `224,336`, sizes as in `parse_size` with commas."""
    return [parse_size(part) for part in text.split(",")]


IMAGE_SIZE = argument(
    "--image-size",
    type=parse_size,
    metavar="PIXELS",
    help="size of the images that the model takes, such as 224, or 224x320 for height and width; "
    "by default that of the model, of a checkpoint the one that its preprocessing states",
)
_LABELS = argument(
    "--labels", help="text file with one class per line; by default those of the run"
)
_BATCH = argument("--batch-size", type=int, default=32, help="images per step")
_LABELLED = (
    _BATCH,
    argument("--data-dir", help=DATA_DIR),
    argument("--download", action="store_true", help="let TFDS download a missing data set"),
)
UNREADABLE_FILES = argument(
    "--unreadable",
    default="error",
    choices=UNREADABLE,
    help="treatment of files that cannot be read: one error that lists them, or a warning that "
    "lists them; skip decodes every file once before it begins",
)
_TASK = argument(
    "--task",
    choices=TASKS,
    help="what the model predicts, which decides how its outputs are read; by default that of the "
    "run, or single_label",
)
_SEED = argument("--seed", type=int, default=0, help="random seed of the split")
_PREFIX = argument(
    "--prefix", help='what stands before the names of the model, such as "teacher.backbone."'
)
JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
_IMAGES = argument(
    "--images",
    nargs="+",
    default=(),
    help="image files and folders, to check the export with and to calibrate int8; at most "
    f"{MAX_IMAGES} are read, spread evenly",
)

TRIALS = (
    argument("--config", help="TOML file with settings; flags win over it"),
    argument("--dry-run", action="store_true", help="print plan, memory and time, and stop"),
)
OUTPUTS = (
    argument("--quiet", action="store_true", help="print results and errors alone"),
    argument("--verbose", action="store_true", help="print a progress bar to files and pipes too"),
)

COMMANDS: tuple[Command, ...] = (
    Command(
        "check",
        "cli.data_check:check_data",
        "Prints what a folder or table of images holds, and what would go wrong in training.",
        (
            argument(
                "data",
                help="folder with one folder per class, or with train/ and test/; a CSV file; "
                "tars, Parquet files or records",
            ),
            argument("--validation", help="share of the images to hold out, or other images"),
            argument("--test", help="other images"),
            argument("--data-dir", help="folder of the images that a CSV file names"),
            argument("--task", choices=TASKS, help="what the columns of a CSV file are"),
            _SEED,
            argument("--headers-only", action="store_true", help="do not look for near-duplicates"),
            argument(
                "--unreadable",
                default="skip",
                choices=UNREADABLE,
                help="whether files that cannot be read are an error; they are listed anyway",
            ),
            JSON,
        ),
    ),
    Command(
        "records",
        "cli.records:write_record_folder",
        "Writes images as TFRecord files with an index; the same command continues a killed one.",
        (
            argument("data", help=DATA_FORMS),
            argument(
                "--output",
                required=True,
                help="folder to write to; for archives that one machine cannot read, use "
                "export/beam of the repository",
            ),
            argument("--per-file", type=int, default=1_000, help="images in a file"),
            argument("--threads", type=int, help="files to write at once; by default all cores"),
            argument("--data-dir", help=DATA_DIR),
            argument(
                "--download", action="store_true", help="let TFDS download a missing data set"
            ),
            argument("--task", choices=TASKS, help="what the columns of a CSV file are"),
            argument("--seed", type=int, default=0, help="random seed of the order"),
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "train",
        "cli.training:train_model",
        "Trains a model on images by a recipe; the same command continues an interrupted run.",
        (
            *TRIALS,
            argument("--preview", help="PNG file to write augmented training images to, and stop"),
            argument(
                "--find-learning-rate",
                action="store_true",
                help="try rising learning rates, print their losses, and stop",
            ),
            *OUTPUTS,
            *map(setting_argument, SETTINGS.values()),
        ),
        keeps_buffers=True,
    ),
    Command(
        "probe",
        "cli.probe:probe_model",
        "Fits a classifier to features of a frozen model, and prints its accuracy.",
        (
            argument("model", help=MODEL_FORMS),
            argument(
                "--image-size",
                type=parse_sizes,
                metavar="PIXELS",
                help="size of the images that the model takes, such as 224 or 224x320; of several, "
                "such as 224,392, cross-validation chooses; by default that of the model, of a "
                "checkpoint the one that its preprocessing states",
            ),
            argument("data", help=DATA_FORMS),
            argument(
                "--test",
                help="images to measure the accuracy on, or a share to hold out; by default test/ "
                "or val/ of the data, or 0.2",
            ),
            argument(
                "--method",
                default="logistic",
                choices=("logistic", "ridge", "knn", "attentive"),
                help="regression, neighbours, or a learned query that attends to the tokens",
            ),
            argument("--output", default="runs/probe", help="folder to write the model to"),
            argument("--features", help="folder to keep the features in; by default in --output"),
            argument("--folds", type=int, default=5, help="parts of the cross-validation"),
            argument("--seed", type=int, default=0, help="random seed of splits and folds"),
            *_LABELLED,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "evaluate",
        "cli.training:evaluate_model",
        "Prints the accuracy of a model on images, or the metrics of its task.",
        (
            argument("--data", required=True, help=DATA_FORMS),
            argument("--model", required=True, help=MODEL_FORMS),
            IMAGE_SIZE,
            _TASK,
            _LABELS,
            *_LABELLED,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "predict",
        "cli.training:predict_files",
        "Prints the most probable classes of image files, their labels, or values of targets.",
        (
            argument(
                "files",
                nargs="+",
                help="image files, and folders of them; or tars, Parquet files or records; from "
                "100,000 images on, use export/beam of the repository",
            ),
            argument("--model", required=True, help=MODEL_FORMS),
            IMAGE_SIZE,
            _LABELS,
            argument("--top", type=int, default=3, help="classes to print"),
            argument(
                "--threshold",
                type=float,
                default=0.5,
                help="score from which one of several labels is printed",
            ),
            _TASK,
            _BATCH,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "export",
        "cli.models:export_model",
        "Exports a model as SavedModel, LiteRT, ONNX or OpenVINO file, checked against the model.",
        (
            argument("model", help=MODEL_FORMS),
            IMAGE_SIZE,
            argument("--to", "--format", required=True, choices=tuple(FORMATS)),
            argument("--output", default="exported", help="the file, or directory, to write"),
            argument(
                "--server",
                choices=tuple(SERVERS),
                help="write --output as a model of the repository of Triton or of OpenVINO Model "
                "Server, with its configuration: "
                + "; ".join(f"{name} of {', '.join(taken)}" for name, taken in SERVERS.items()),
            ),
            argument(
                "--precision",
                help=f"float32 (default); {'; '.join(map(_precisions, FORMATS.values()))}",
            ),
            argument(
                "--budget",
                help="largest drop of the accuracy on --data, such as 0.5%%: exports the smallest "
                "file that keeps it, of all precisions, and budget.json with it",
            ),
            argument("--data", help="labelled images for --budget, not those of training"),
            argument(
                "--goal",
                default="size",
                choices=("size", "latency"),
                help="what --budget makes small: bytes, or the time of one image here",
            ),
            _TASK,
            _LABELS,
            _IMAGES,
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "verify",
        "cli.models:verify_file",
        "Compares the outputs of an exported file with those of its model.",
        (
            argument(
                "path",
                help="SavedModel version or folder of versions, LiteRT or ONNX file, .xml file",
            ),
            argument("model", help=MODEL_FORMS),
            IMAGE_SIZE,
            argument("--tolerance", type=float, help="largest difference allowed"),
            _IMAGES,
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "optimize",
        "cli.models:optimize_model",
        "Finds the fastest runtime for a model on this machine, of those that are installed.",
        (
            argument("model", help=MODEL_FORMS),
            IMAGE_SIZE,
            argument("--batch", type=int, default=1, help="images of a call"),
            argument(
                "--precisions",
                nargs="+",
                default=("float32",),
                choices=PRECISIONS,
                help="precisions that are allowed; default: float32",
            ),
            argument(
                "--min-agreement",
                type=float,
                default=0.99,
                help="lowest share of the images with the model's top-1 class",
            ),
            argument("--output", help="folder to keep the chosen file in"),
            _IMAGES,
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "inspect",
        "cli.models:inspect_model",
        "Writes an HTML report about a model: configuration, cost, weights, attention.",
        (
            argument("model", help=MODEL_FORMS),
            IMAGE_SIZE,
            argument("images", nargs="*", help="image files, and folders of them"),
            argument("--output", default="report.html", help="the page to write"),
            _LABELS,
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "report",
        "cli.models:report_run",
        "Writes the result page of a run: curves, accuracy per class, mistakes, calibration.",
        (
            argument("run", help="folder of the run"),
            argument("--data", help=f"{DATA_FORMS}; by default the images held out in training"),
            argument("--output", help="the page to write; by default report.html of the run"),
            *_LABELLED,
            argument("--unreadable", choices=UNREADABLE, help="by default as in training"),
        ),
        keeps_buffers=True,
    ),
    Command(
        "push",
        "cli.publish:push_model",
        "Publishes the model of a run, or a .keras file, on the Hugging Face hub, with a card.",
        (
            argument("model", help="folder of a run, or a .keras file of this package"),
            argument("address", help="hf://owner/name, or hf://owner/name@branch"),
            argument(
                "--layout",
                choices=("transformers", "timm"),
                help="project that model.safetensors is for; by default one that can represent the "
                "model",
            ),
            argument("--licence", help='licence of the model for the card, such as "apache-2.0"'),
            argument("--private", action="store_true", help="make a new repository private"),
            argument(
                "--dry-run",
                metavar="FOLDER",
                help="write the files to a new folder, and connect to nothing",
            ),
        ),
    ),
    Command(
        "env",
        "cli.environment:show_environment",
        "Prints versions, processor, devices and extras, for a report of a problem.",
    ),
    Command(
        "weights list",
        "cli.weights:list_published",
        "Prints the published weights of an architecture, or of all, one per line.",
        (argument("variant", nargs="?", help='architecture, such as "vit_b16" or "B/16"'), JSON),
    ),
    Command(
        "weights info",
        "cli.weights:show_file",
        "Prints the architecture and sizes of a checkpoint, from the names and shapes in it.",
        (
            argument("file", help=CHECKPOINT_FORMS),
            argument("--arrays", action="store_true", help="print every array"),
            argument(
                "--download",
                action="store_true",
                help="download a file that is not in the cache; otherwise nothing is connected to",
            ),
            _PREFIX,
            JSON,
        ),
    ),
    Command(
        "weights fetch",
        "cli.weights:fetch_file",
        "Downloads weights unless they are in the cache, checks them and prints their path.",
        (
            argument("name", help=CHECKPOINT_FORMS),
            argument("--rehash", action="store_true", help="hash a file in the cache again"),
        ),
    ),
    Command(
        "weights convert",
        "cli.weights:convert_file",
        "Writes a checkpoint, or the model of a run, with the names of another project.",
        (
            argument("source", metavar="IN", help=CHECKPOINT_FORMS),
            argument("target", metavar="OUT", help="file to write, .npz or .safetensors"),
            argument("--layout", required=True, choices=LAYOUTS, help="project of the array names"),
            argument("--variant", help="architecture of IN, if its shapes do not decide it"),
            dataclasses.replace(
                IMAGE_SIZE,
                settings={
                    **IMAGE_SIZE.settings,
                    "help": "of OUT; by default as for IN's positions",
                },
            ),
            argument("--num-heads", type=int, help="attention heads of IN, if unknown"),
            _PREFIX,
        ),
    ),
)
# Descriptions of the first words of commands.
GROUPS = {
    "weights": "list, inspect, fetch and convert checkpoints",
    "segment": "train, evaluate and apply models of the classes of pixels",
}
_TASKS = (
    "segmentation.command_table",
    "image_text.command_table",
)  # with `COMMANDS` of tasks beyond classification


def all_commands() -> tuple[Command, ...]:
    """Lists the commands, those of tasks last."""
    tasks = (importlib.import_module(f"keras_vit.{module}").COMMANDS for module in _TASKS)
    return (*COMMANDS, *itertools.chain.from_iterable(tasks))
