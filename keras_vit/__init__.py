"""The Vision Transformer (https://arxiv.org/abs/2010.11929) for Keras 3 and TensorFlow."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

# Sub-packages: each imports a module when one of its names is first used.
from keras_vit import (
    analysis,
    data,
    distribution,
    evaluate,
    export,
    hub,
    layers,
    models,
    report,
    resume,
    runtime,
    train,
    weights,
)
from keras_vit.errors import attach_names


def _is_command_line() -> bool:
    """Whether this is the process of the command `keras-vit`, or of `python -m keras_vit`."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    words = sys.orig_argv
    is_module = program == "-m" and words[words.index("-m") + 1 :][:1] == ["keras_vit"]
    return is_module or program in ("keras-vit", "keras-vit.exe")


# Registers the classes of this package with Keras, which then finds them in `.keras` files. The
# command line imports Keras later, when a command runs: `keras-vit --help` must not wait for it.
if not _is_command_line():
    from keras_vit.installation import check_keras, warn_of_other_project

    check_keras()
    import keras_vit.train.keras_files  # noqa: F401 - registers the classes

    warn_of_other_project()

__version__ = "0.1.0"

_SUBPACKAGES = (
    *(analysis, data, distribution, evaluate, export, hub),
    *(layers, models, report, resume, train, runtime, weights),
)

# Sub-packages that load on first use.
_TASKS = ("detection", "image_gpt", "image_text", "segmentation")

_find_name, _, __all__ = attach_names(__name__, __file__)  # the names in __init__.pyi


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"keras_vit.{name}") if name in _TASKS else _find_name(name)


def __dir__() -> list[str]:
    packages = [package.__name__.rpartition(".")[2] for package in _SUBPACKAGES]
    return sorted([*__all__, *packages, *_TASKS])
