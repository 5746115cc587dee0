"""The command line `keras-vit`: the parser, `main`, and what it says about errors.

Nothing of Keras is imported before a command runs: `keras-vit --help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from keras_vit.cli.commands import GROUPS, Command, all_commands
from keras_vit.cli.output import complain, hidden_stderr
from keras_vit.errors import needing_tensorflow, printable
from keras_vit.installation import installed_version, warn_of_other_project

FAILED = 2  # the exit status after an error that the user can correct, as argparse's
INTERRUPTED = 128 + signal.SIGINT  # the exit status that a shell reports after Ctrl-C
MODEL_ENDINGS = (".keras", ".npz", ".safetensors", ".h5")
# Errors that a user can act on; all others are bugs and keep their traceback.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError, FloatingPointError)


def build_parser(commands: Iterable[Command] | None = None) -> argparse.ArgumentParser:
    """Builds the parser of the command line from a table of commands; `None` takes all."""
    parser = _Parser(
        prog="keras-vit", description="The Vision Transformer for Keras 3, from the command line."
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, default=argparse.SUPPRESS)
    branches: dict[tuple[str, ...], Any] = {
        (): parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    }
    for command in all_commands() if commands is None else commands:
        *group, name = command.name.split()
        key = tuple(group)
        if key not in branches:
            words = branches[()].add_parser(" ".join(group), help=GROUPS.get(" ".join(group)))
            branches[key] = words.add_subparsers(required=True, metavar="COMMAND")
        leaf = branches[key].add_parser(name, help=command.summary, description=command.summary)
        if any(each.group for each in command.arguments):  # too many to list twice
            leaf.usage = f"{parser.prog} {command.name} [options]"
        groups: dict[str | None, Any] = {None: leaf}
        for each in command.arguments:
            if each.group not in groups:
                groups[each.group] = leaf.add_argument_group(each.group)
            groups[each.group].add_argument(*each.names, **each.settings)
        leaf.add_argument("--debug", action="store_true", help="print the traceback of an error")
        leaf.set_defaults(command=command)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


class _PrintVersion(argparse.Action):
    """Looks the version up when it is asked for: that takes longer than the rest of `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"keras-vit {installed_version() or '(not installed)'}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words of the command line; `None` takes those of the process.

    Returns:
        The exit status: 0, 2 after an error message, or 130 after Ctrl-C.
    """
    words = sys.argv[1:] if arguments is None else arguments
    options = vars(build_parser().parse_args(words))
    command, debug = options.pop("command"), options.pop("debug")
    try:
        _check_paths(options)
        with needing_tensorflow(f"`keras-vit {command.name}`"):
            if arguments is None:  # not called from another program
                if options.get("quiet"):
                    os.environ["KERAS_VIT_PROGRESS"] = "0"
                _prepare_process(command, debug or options.get("verbose", False))
            command.function(**options)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # after the state was saved
            complain(f"\nContinue with the same command:\n  {shlex.join(['keras-vit', *words])}")
        raise
    except KeyboardInterrupt:
        print("\nkeras-vit: Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        text = _explain(error)
        if text is None:
            raise
        complain(text, "error")
        return FAILED
    return 0


def _check_paths(options: dict[str, Any]) -> None:
    """Raises a `FileNotFoundError` for data or models that can only be paths, and do not exist.

    The commands check this too, but importing what they need takes seconds.
    """
    data, model = options.get("data"), options.get("model")
    is_elsewhere = data and (data.startswith("tfds:") or "://" in data)
    if data and not (is_elsewhere or os.path.exists(data) or glob.glob(data)):
        kind = "file" if os.path.splitext(data)[1] else "folder"
        raise FileNotFoundError(f"There is no {kind} {data}.")
    if model and model.endswith(MODEL_ENDINGS) and not ("://" in model or os.path.exists(model)):
        folder = os.path.dirname(model) or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        known = sorted(name for name in names if name.endswith(MODEL_ENDINGS))
        found = f"has {', '.join(known[:3]) or 'no model'}" if names else "does not exist"
        raise FileNotFoundError(f"There is no file {model!r}. Its folder {folder!r} {found}.")


def _prepare_process(command: Command, verbose: bool) -> None:
    """Imports what a command needs: without the banners of TensorFlow, and with short warnings."""
    warnings.showwarning = _show_warning
    warn_of_other_project()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "2")
    with contextlib.nullcontext() if verbose else hidden_stderr():
        command.function  # noqa: B018 - imports its module
        if command.keeps_buffers:
            from keras_vit.runtime.processors import keep_buffers

            keep_buffers()
        if "tensorflow" in sys.modules:
            sys.modules["tensorflow"].config.list_logical_devices()  # has banners of its own


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(message, "warning")


def _explain(error: Exception) -> str | None:
    """Message for the user about an error; `None` if it is a bug."""
    if isinstance(error, MemoryError):
        return f"There is too little memory. {error}".strip()
    if isinstance(error, _EXPECTED_ERRORS):
        return str(error) or type(error).__name__
    if type(error).__module__.startswith("tensorflow."):  # such as ResourceExhaustedError
        first = str(getattr(error, "message", error)).strip().partition("\n")[0]
        return f"TensorFlow: {type(error).__name__}: {first} (--debug prints all of it)"
    return None
