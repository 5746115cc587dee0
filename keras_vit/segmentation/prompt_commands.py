"""`keras-vit segment masks`: masks of everything in images, by Segment Anything."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from keras_vit.cli.output import say
from keras_vit.cli.result_files import result_files
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.preview import write_png
from keras_vit.errors import printable
from keras_vit.files import write_text
from keras_vit.segmentation.everything import draw_masks, find_all_masks, to_coco
from keras_vit.segmentation.promptable import load_promptable


def write_masks(
    files: Sequence[str],
    model: str,
    output: str = "masks",
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
    **options: Any,
) -> None:
    """Writes masks of everything in image files, as a COCO file and drawn over the images."""
    paths, found = find_readable(files, unreadable), []
    results = result_files(paths, output, ("_masks.png",))
    segmenter = load_promptable(model, image_size and (*image_size, 3))
    for path in paths:
        pixels = read_image(path)
        found.append(find_all_masks(segmenter, pixels, **options))
        write_png(results[path][0], draw_masks(pixels, found[-1]))
        scores = ", ".join(f"{score:.2f}" for score in found[-1].scores[:5])
        say(printable(f"{path}  {len(found[-1].scores)} masks, scores {scores or 'none'}"))
    file = pathlib.Path(output) / "masks.json"
    write_text(file, json.dumps(to_coco(list(map(str, paths)), found)))
    say(f"written: {file}")
