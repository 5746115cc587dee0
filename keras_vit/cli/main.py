"""The command line, `keras-vit`: a flag is a parameter of the function it calls.

A new command is a function that prints what it found, and a row of `COMMANDS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_vit.cli.command import Command, argument
from keras_vit.cli.training_commands import TRAINING_COMMANDS
from keras_vit.create import create_model
from keras_vit.hub.addresses import is_address
from keras_vit.hub.cards.card import Card
from keras_vit.hub.catalog import fetch_weights, hub_advice, list_weights
from keras_vit.pretrained import build_pretrained, from_pretrained
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.save import WRITABLE, check_target, save_weights

# What a user can do something about; anything else is a fault of ours and keeps its traceback.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError)
_CHECKPOINTS = (".npz", ".safetensors")


def show_weights(variant: str | None = None, as_json: bool = False) -> None:
    """Prints the published weights of an architecture, or of all, one a line."""
    cards = list_weights(variant)
    if as_json:
        for card in cards:
            print(json.dumps(dataclasses.asdict(card)))
        return
    header = ("weights", "pixels", "classes", "top-1", "MiB", "layout", "address")
    _print_table([header, *map(_row, cards)])


def show_file(file: str, arrays: bool = False, as_json: bool = False) -> None:
    """Prints what a checkpoint is, found from the names and shapes in it."""
    info = inspect_file(_find(file))
    sizes = {name: (list(entry.shape), str(entry.dtype)) for name, entry in info.arrays.items()}
    facts = {
        "file": os.fspath(info.path),
        "layout": f"{info.layout} ({info.kind})",
        "variant": info.variant,
        "classes": info.classes,
        "image_size": info.image_size,
        "patch_size": info.patch_size,
        "grid": info.grid,
        "sizes": info.sizes,
        "parameters": info.parameters,
        "arrays": len(sizes),
        "options": info.options,
    }
    if as_json:
        print(json.dumps({**facts, "arrays": sizes}, default=_plain))
        return
    _print_table([(f"{name}:", _text(value)) for name, value in facts.items()])
    if arrays:
        print()
        _print_table([(name, dtype, _text(shape)) for name, (shape, dtype) in sizes.items()])


def fetch_file(name: str, rehash: bool = False) -> None:
    """Downloads weights where they are not there yet, checks them and prints their path."""
    print(_find(name, rehash))


def convert_file(
    source: str,
    target: str,
    layout: str,
    variant: str | None = None,
    image_size: int | None = None,
    num_heads: int | None = None,
) -> None:
    """Writes a checkpoint again in the names of another project."""
    check_target(target, layout)
    path = _find(source)
    options: dict[str, Any] = {} if num_heads is None else {"num_heads": num_heads}
    with open_checkpoint(path) as checkpoint:
        if image_size is not None:
            channels = checkpoint.sizes.get("channels", 3)
            options["input_shape"] = (image_size, image_size, channels)
        model = build_pretrained(checkpoint, variant=variant, **options)
    written = save_weights(model, target, layout)
    print(model.load_report)
    print(f"Wrote {written} ({os.path.getsize(written) / 2**20:.1f} MiB, {layout} layout).")


def inspect_model(model: str, images: Sequence[str], output: str = "report.html") -> None:
    """Writes one HTML page about a model: what it is, what it costs, where it looks."""
    from keras_vit.data.image_files import ImageFiles
    from keras_vit.report import write_report

    loaded = _open_model(model)
    print(write_report(loaded, output, ImageFiles(images, loaded) if images else None))


def export_model(
    model: str,
    to: str,
    output: str,
    precision: str = "float32",
    labels: str | None = None,
    images: Sequence[str] = (),
) -> None:
    """Exports a model as a SavedModel, a LiteRT or an ONNX file, checked against the model."""
    from keras_vit.data.image_files import read_images
    from keras_vit.export.litert import export_litert
    from keras_vit.export.onnx import export_onnx
    from keras_vit.export.saved_model import export_saved_model

    options: dict[str, Any] = {"precision": precision}
    if labels is not None:
        with open(labels, encoding="utf-8") as file:
            options["labels"] = file.read().splitlines()
    exports: dict[str, Callable[..., Any]] = {
        "saved_model": export_saved_model,
        "litert": export_litert,
        "onnx": export_onnx,
    }
    loaded = _open_model(model)
    if images:
        options["images"] = read_images(images, loaded.input_shape[-1], _EXPORT_IMAGES)
        if (to, precision) == ("litert", "int8"):
            options["calibration"] = options["images"]
    print(exports[to](loaded, output, **options))


def verify_file(
    path: str, model: str, tolerance: float | None = None, images: Sequence[str] = ()
) -> None:
    """Runs an exported file beside a model, and prints how they differ."""
    from keras_vit.data.image_files import read_images
    from keras_vit.export.verify import verify_export

    loaded = _open_model(model)
    read = read_images(images, loaded.input_shape[-1], _EXPORT_IMAGES) if images else None
    print(verify_export(path, loaded, read, tolerance=tolerance))


_JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
_EXPORT_IMAGES = 100
_A_FILE = "path, address (https://, gs://, hf://owner/name) or VARIANT/TAG"

_A_MODEL = (
    "a .keras file, a checkpoint's path or address, VARIANT/TAG, or VARIANT for random weights"
)

_IMAGES = argument(
    "--images",
    nargs="+",
    default=(),
    help="image files of the task, and folders of them, to check on and to calibrate int8 with; "
    f"of more than {_EXPORT_IMAGES}, as many spread evenly",
)

COMMANDS: tuple[Command, ...] = (
    *TRAINING_COMMANDS,
    Command(
        "export",
        export_model,
        (
            argument("model", help=_A_MODEL),
            argument("--to", required=True, choices=("saved_model", "litert", "onnx")),
            argument("--output", default="exported", help="the file, or directory, to write"),
            argument(
                "--precision",
                default="float32",
                help="float32; saved_model: bfloat16, float16; litert: float16, dynamic, int8 "
                "(with --images); onnx: float16, int8",
            ),
            argument("--labels", help="text file with a class a line"),
            _IMAGES,
        ),
    ),
    Command(
        "verify",
        verify_file,
        (
            argument("path", help="a version of a SavedModel, a LiteRT file or an ONNX file"),
            argument("model", help=_A_MODEL),
            argument("--tolerance", type=float, help="largest difference allowed"),
            _IMAGES,
        ),
    ),
    Command(
        "inspect",
        inspect_model,
        (
            argument("model", help=_A_MODEL),
            argument("images", nargs="*", help="image files, and folders of them"),
            argument("--output", default="report.html", help="the page to write"),
        ),
    ),
    Command(
        "weights list",
        show_weights,
        (argument("variant", nargs="?", help='architecture, as "vit_b16" or "B/16"'), _JSON),
    ),
    Command(
        "weights info",
        show_file,
        (
            argument("file", help=_A_FILE),
            argument("--arrays", action="store_true", help="print every array"),
            _JSON,
        ),
    ),
    Command(
        "weights fetch",
        fetch_file,
        (
            argument("name", help=_A_FILE),
            argument("--rehash", action="store_true", help="hash a file that is there already"),
        ),
    ),
    Command(
        "weights convert",
        convert_file,
        (
            argument("source", metavar="IN", help=_A_FILE),
            argument("target", metavar="OUT", help="file to write, .npz or .safetensors"),
            argument("--layout", required=True, choices=WRITABLE, help="whose names to write"),
            argument("--variant", help="architecture of IN, where its shapes do not tell"),
            argument("--image-size", type=int, help="pixels that OUT is for; as IN otherwise"),
            argument("--num-heads", type=int, help="attention heads of IN, where nothing tells"),
        ),
    ),
)
# What the first words of commands have in common.
_GROUPS = {"weights": "list, inspect, fetch and convert checkpoints"}


def build_parser(commands: Iterable[Command] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of the command line, from the table of commands."""
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
        arguments: The words of the command line; `None` takes the process's own.

    Returns:
        0, or 1 after an error that was explained, for the process to exit with.
    """
    options = vars(build_parser().parse_args(arguments))
    function = options.pop("function")
    try:
        function(**options)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except _EXPECTED_ERRORS as error:
        print(f"keras-vit: error: {error}", file=sys.stderr)
        return 1
    return 0


def _find(name: str, rehash: bool = False):
    """The file of a path, an address or `"vit_b16/augreg_in21k"`."""
    if is_address(name) or os.path.exists(name):
        return fetch_weights(name, rehash=rehash)
    variant, slash, tag = name.rpartition("/")
    if slash and tag.isidentifier():
        return fetch_weights(tag, variant, rehash=rehash)
    raise ValueError(f"There is no file {name!r}.{_advice(name)}")


def _advice(name: str) -> str:
    """What somebody may have meant who named neither a file nor `VARIANT/TAG`."""
    named = sorted(card.name for card in list_weights() if name in (card.variant, card.tag))
    if not named:
        hint = hub_advice(name)
        return hint or " Published weights are called VARIANT/TAG: see `keras-vit weights list`."
    more = f" and {len(named) - 3} more: see `keras-vit weights list`" if len(named) > 3 else ""
    return f" There are weights {', '.join(named[:3])}{more}."


def _open_model(name: str):
    """The model of a `.keras` file, a checkpoint, `"vit_b16/augreg_in21k"` or `"vit_b16"`."""
    import keras

    suffix, tag = os.path.splitext(name)[1], name.rpartition("/")[2]
    if suffix == ".keras":
        return keras.saving.load_model(name)
    has_tag = tag != name and tag.isidentifier()
    if has_tag or is_address(name) or suffix in _CHECKPOINTS or os.path.exists(name):
        return from_pretrained(name)
    return create_model(name)


def _version() -> str:
    try:
        return importlib.metadata.version("keras-vit")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "(not installed)"


def _row(card: Card) -> tuple[str, ...]:
    height, width = card.image_size
    return (
        card.name,
        f"{height}" if height == width else f"{height}x{width}",
        _text(card.classes),
        _text(card.top1),
        "-" if card.mebibytes is None else f"{card.mebibytes:.0f}",
        card.layout,
        card.address,
    )


def _text(value: Any) -> str:
    if value is None or value == {}:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={each!r}" for name, each in value.items())
    if isinstance(value, (tuple, list)):
        return " x ".join(map(str, value)) or "scalar"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Any) -> Any:
    """What JSON has no form for: our frozen dataclasses as objects, all else as text."""
    return {**vars(value)} if dataclasses.is_dataclass(value) else str(value)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
