"""The command line `keras-vit`: `main`, and what it says about errors.

Nothing of Keras is imported before a command runs: `keras-vit --help` answers at once.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from keras_vit.cli.arguments import Command
from keras_vit.cli.output import complain, hidden_stderr
from keras_vit.cli.parser import build_parser
from keras_vit.cli.run_settings import CHECKPOINT_ENDINGS
from keras_vit.errors import needing_tensorflow
from keras_vit.export.formats import FORMATS
from keras_vit.installation import check_keras, warn_of_other_project

FAILED = 2  # the exit status after an error that the user can correct, as argparse's
INTERRUPTED = 128 + signal.SIGINT  # the exit status that a shell reports after Ctrl-C
_EXPORTED = tuple(os.path.splitext(each.file)[1] for each in FORMATS.values() if "." in each.file)
MODEL_ENDINGS = (".keras", *CHECKPOINT_ENDINGS, *_EXPORTED)
# Errors that a user can act on; all others are bugs and keep their traceback.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError, FloatingPointError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words of the command line; `None` takes those of the process.

    Returns:
        The exit status: 0, 2 after an error message, or 130 after Ctrl-C.
    """
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    try:
        options = vars(build_parser().parse_args(words))
        command = options.pop("command")
        del options["debug"]
        check_keras()
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
    data, models = options.get("data"), options.get("model") or ()
    is_elsewhere = data and (data.startswith("tfds:") or "://" in data)
    if data and not (is_elsewhere or os.path.exists(data) or glob.glob(data)):
        kind = "file" if os.path.splitext(data)[1] else "folder"
        raise FileNotFoundError(f"There is no {kind} {data}.")
    for model in [models] if isinstance(models, str) else models:
        if not model.endswith(MODEL_ENDINGS) or "://" in model or os.path.exists(model):
            continue
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
