"""The Vision Transformer (https://arxiv.org/abs/2010.11929) for Keras 3 and TensorFlow."""

from __future__ import annotations

import os
import sys

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

# The names and sub-packages in __init__.pyi, which are imported on first use. `import *` takes the
# names alone: `layers` and `models` are often those of Keras.
__getattr__, __dir__, _names = attach_names(__name__, __file__)
__all__ = [name for name in _names if not os.path.isdir(os.path.join(__path__[0], name))]
