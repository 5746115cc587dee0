"""The command line `keras-vit`: the table of commands, the parser and `main`.

A new command is a function that prints its result, and a row of `COMMANDS`. Each flag is a
parameter of the function.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_vit.cli.models import MAX_IMAGES, export_model, inspect_model, verify_file
from keras_vit.cli.resolve import CHECKPOINT_FORMS, MODEL_FORMS
from keras_vit.cli.training import STRATEGIES, evaluate_model, predict_files, train_model
from keras_vit.cli.weights import convert_file, fetch_file, list_published, show_file
from keras_vit.trainers.processors import keep_buffers
from keras_vit.weights.save import WRITABLE

# Errors that a user can act on; all others are bugs and keep their traceback.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError)


@dataclasses.dataclass(frozen=True)
class Argument:
    """A flag or a positional argument, with the parameters of `add_argument`."""

    names: tuple[str, ...]
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of one or several words, and the function that it calls."""

    name: str
    function: Callable[..., None]
    arguments: tuple[Argument, ...] = ()


def argument(*names: str, **settings: Any) -> Argument:
    """Makes an `Argument`, written like a call of `add_argument`."""
    return Argument(names, settings)


_DATA = "folder with one folder per class, or tfds:NAME, tfds:NAME:VERSION@SPLIT"
_LABELS = argument(
    "--labels", help="text file with one class per line; by default those of the run"
)
_BATCH = argument("--batch-size", type=int, default=32, help="images per step")
_DATA_DIR = argument("--data-dir", help="folder of the TFDS data sets")
_DOWNLOAD = argument("--download", action="store_true", help="let TFDS download a missing data set")
_UNREADABLE = argument(
    "--unreadable",
    default="error",
    choices=("error", "skip"),
    help="treatment of files that cannot be read",
)
_JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
_IMAGES = argument(
    "--images",
    nargs="+",
    default=(),
    help="image files and folders, to check the export with and to calibrate int8; at most "
    f"{MAX_IMAGES} are read, spread evenly",
)

COMMANDS: tuple[Command, ...] = (
    Command(
        "train",
        train_model,
        (
            argument("--data", required=True, help=_DATA),
            argument("--model", required=True, help=f"model to train: {MODEL_FORMS}"),
            argument(
                "--recipe", required=True, help='such as "finetune_pets", see docs/recipes.md'
            ),
            argument("--weights", help=f"weights for a VARIANT: tag, {CHECKPOINT_FORMS}"),
            argument("--validation", help="share of the images to hold out, or images as --data"),
            argument(
                "--test",
                help="images as --data: choose the learning rate on held-out images, train on all, "
                "test once",
            ),
            argument("--output", default="runs/run", help="folder of the run"),
            argument("--image-size", type=int, help="pixels; by default the recipe's"),
            argument("--batch-size", type=int, help="images per step; by default the recipe's"),
            argument("--learning-rate", type=float, help="by default the recipe's"),
            argument("--steps", type=int, help="steps; by default the recipe's"),
            argument("--seed", type=int, default=0, help="random seed"),
            _DATA_DIR,
            _DOWNLOAD,
            _UNREADABLE,
            argument(
                "--precision",
                default="float32",
                choices=("float32", "mixed_bfloat16", "mixed_float16"),
                help="dtype policy of the layers",
            ),
            argument(
                "--strategy",
                default="auto",
                choices=STRATEGIES,
                help="mirrored: all GPUs of the machine, as auto does if there are several",
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
            argument("--model", required=True, help=MODEL_FORMS),
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
            argument("--model", required=True, help=MODEL_FORMS),
            _LABELS,
            argument("--top", type=int, default=3, help="classes to print"),
            _BATCH,
            _JSON,
        ),
    ),
    Command(
        "export",
        export_model,
        (
            argument("model", help=MODEL_FORMS),
            argument("--to", required=True, choices=("saved_model", "litert", "onnx")),
            argument("--output", default="exported", help="the file, or directory, to write"),
            argument(
                "--precision",
                default="float32",
                help="float32; saved_model: bfloat16, float16; litert: float16, dynamic, int8 "
                "(with --images); onnx: float16, int8",
            ),
            argument("--labels", help="text file with one class per line"),
            _IMAGES,
        ),
    ),
    Command(
        "verify",
        verify_file,
        (
            argument("path", help="a version of a SavedModel, a LiteRT file or an ONNX file"),
            argument("model", help=MODEL_FORMS),
            argument("--tolerance", type=float, help="largest difference allowed"),
            _IMAGES,
        ),
    ),
    Command(
        "inspect",
        inspect_model,
        (
            argument("model", help=MODEL_FORMS),
            argument("images", nargs="*", help="image files, and folders of them"),
            argument("--output", default="report.html", help="the page to write"),
        ),
    ),
    Command(
        "weights list",
        list_published,
        (argument("variant", nargs="?", help='architecture, such as "vit_b16" or "B/16"'), _JSON),
    ),
    Command(
        "weights info",
        show_file,
        (
            argument("file", help=CHECKPOINT_FORMS),
            argument("--arrays", action="store_true", help="print every array"),
            _JSON,
        ),
    ),
    Command(
        "weights fetch",
        fetch_file,
        (
            argument("name", help=CHECKPOINT_FORMS),
            argument("--rehash", action="store_true", help="hash a file in the cache again"),
        ),
    ),
    Command(
        "weights convert",
        convert_file,
        (
            argument("source", metavar="IN", help=CHECKPOINT_FORMS),
            argument("target", metavar="OUT", help="file to write, .npz or .safetensors"),
            argument(
                "--layout",
                required=True,
                choices=WRITABLE,
                help="project of the array names",
            ),
            argument("--variant", help="architecture of IN, if its shapes do not decide it"),
            argument("--image-size", type=int, help="pixels of OUT; by default those of IN"),
            argument("--num-heads", type=int, help="attention heads of IN, if unknown"),
        ),
    ),
)
# Descriptions of the first words of commands.
_GROUPS = {"weights": "list, inspect, fetch and convert checkpoints"}


def build_parser(commands: Iterable[Command] = COMMANDS) -> argparse.ArgumentParser:
    """Builds the parser of the command line from the table of commands."""
    parser = argparse.ArgumentParser(
        prog="keras-vit", description="The Vision Transformer for Keras 3, from the command line."
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {_version()}")
    branches: dict[tuple[str, ...], Any] = {
        (): parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    }
    for command in commands:
        *group, name = command.name.split()
        key = tuple(group)
        if key not in branches:
            words = branches[()].add_parser(" ".join(group), help=_GROUPS.get(" ".join(group)))
            branches[key] = words.add_subparsers(required=True, metavar="COMMAND")
        summary = (command.function.__doc__ or "").partition("\n")[0]
        leaf = branches[key].add_parser(name, help=summary, description=summary)
        for each in command.arguments:
            leaf.add_argument(*each.names, **each.settings)
        leaf.set_defaults(function=command.function)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words of the command line; `None` takes those of the process.

    Returns:
        The exit status: 0, or 1 after an error message.
    """
    options = vars(build_parser().parse_args(arguments))
    function = options.pop("function")
    if arguments is None:  # not called from another program
        keep_buffers()
    try:
        function(**options)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except _EXPECTED_ERRORS as error:
        print(f"keras-vit: error: {error}", file=sys.stderr)
        return 1
    return 0


def _version() -> str:
    try:
        return importlib.metadata.version("keras-vit")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "(not installed)"
