"""Where image files are."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

# TensorFlow decodes all of them, WebP from some version on.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")


def find_images(paths: str | os.PathLike | Sequence[str | os.PathLike]) -> list[pathlib.Path]:
    """Image files, and the images in folders and what is below them, in a fixed order.

    Args:
        paths: Files, and folders of them; one or several.

    Raises:
        FileNotFoundError: If one does not exist.
        ValueError: If there are no images.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = []
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no image {path}.")
        files += files_below(path, IMAGE_ENDINGS) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"There are no images in {', '.join(map(str, paths)) or 'nothing'}.")
    return files


def files_below(folder: str | os.PathLike[str], endings: tuple[str, ...]) -> list[pathlib.Path]:
    """Files in a folder and in those below it, links among them, in order.

    Args:
        folder: The folder. Files and folders in it whose names begin with a dot are left out.
        endings: How the names end, in small letters.
    """
    return sorted(
        pathlib.Path(parent, name)
        for parent, _, names in os.walk(os.fspath(folder), followlinks=True)
        for name in names
        if name[0] != "." and name.lower().endswith(endings)
        if not any(part[0] == "." for part in pathlib.Path(parent).relative_to(folder).parts)
    )
