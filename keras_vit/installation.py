"""The name of this package on the package index, and what is installed under it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

DISTRIBUTION = "keras-vision-transformer"
_OTHER = "keras-vit"  # another project, which installs an import package `keras_vit` too


def pip_install(extra: str) -> str:
    """The command that installs the packages of an extra.

    Args:
        extra: Name of the extra, as in `setup.cfg`.
    """
    return f'pip install "{DISTRIBUTION}[{extra}]"'


@contextlib.contextmanager
def needing(extra: str, need: str) -> Iterator[None]:
    """Says in an `ImportError` how to install the packages of an extra.

    Args:
        extra: Name of the extra, as in `setup.cfg`.
        need: What needs which packages.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{need}. Install it with `{pip_install(extra)}`.") from error


def installed_version(distribution: str = DISTRIBUTION) -> str | None:
    """The version of a distribution, or `None` where it is not installed."""
    import importlib.metadata  # takes longer than the rest of `keras-vit --help`

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_keras() -> None:
    """Checks that TensorFlow is not told to take Keras 2 for `tf.keras`.

    Raises:
        ImportError: If it is.
    """
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        raise ImportError(
            "This package needs Keras 3, and TF_USE_LEGACY_KERAS="
            f"{os.environ['TF_USE_LEGACY_KERAS']} makes TensorFlow take Keras 2 (tf_keras). Unset "
            "it before Python starts: `unset TF_USE_LEGACY_KERAS`."
        )


def warn_of_other_project() -> None:
    """Warns if the distribution `keras-vit` is installed, which is another project.

    Its files and ours are in the same folder: what was installed last has replaced the files of the
    same name, and uninstalling it deletes ours of the same name.
    """
    version = installed_version(_OTHER)
    if version is not None:
        warnings.warn(
            f"The distribution {_OTHER} {version} is installed, a project other than "
            f"{DISTRIBUTION}, with files of the same names. Run `pip uninstall {_OTHER}`, then "
            f"install {DISTRIBUTION} again with --force-reinstall --no-deps.",
            stacklevel=3,
        )
