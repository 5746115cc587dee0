"""Where image files are."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


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
        files += _images_below(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"There are no images in {', '.join(map(str, paths)) or 'nothing'}.")
    return files


def _images_below(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in _IMAGE_ENDINGS)
