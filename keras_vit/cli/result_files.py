"""Names of the files that a command writes for each image."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Sequence

from keras_vit.errors import printable


def result_files(
    paths: Sequence[pathlib.Path], output: str, endings: Sequence[str]
) -> dict[pathlib.Path, list[pathlib.Path]]:
    """Plans the results of images, and makes their folder.

    Args:
        paths: The images.
        output: The folder.
        endings: Endings of the results: of NAME.jpg they are NAME and an ending.

    Raises:
        ValueError: If results would replace one another, or one of the images.
    """
    folder = pathlib.Path(output)
    results = {path: [folder / f"{path.stem}{end}" for end in endings] for path in paths}
    written = [file for files in results.values() for file in files]
    counts = collections.Counter(written)
    clashing = [str(path) for path in paths if any(counts[file] > 1 for file in results[path])]
    if clashing:
        names = " and ".join(f"NAME{end}" for end in endings)
        raise ValueError(
            f"Images NAME.jpg become {names}, and files of these images would replace one another: "
            f"{', '.join(map(printable, clashing[:5]))}. Predict them into folders of their own "
            "with --output."
        )
    own = {path.resolve() for path in paths}
    lost = [str(path) for path in written if path.resolve() in own]
    if lost:
        raise ValueError(
            "Results would replace images that they are predicted for: "
            f"{', '.join(map(printable, lost[:5]))}. Choose another --output."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return results
