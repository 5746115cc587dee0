"""`keras-vit segment masks`: what points or a box ask for, or everything, by Segment Anything."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.cli.output import say
from keras_vit.cli.result_files import result_files
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.preview import write_png
from keras_vit.errors import printable
from keras_vit.files import write_text
from keras_vit.segmentation.everything import (
    FoundMasks,
    box_of,
    draw_masks,
    find_all_masks,
    to_coco,
)
from keras_vit.segmentation.promptable import PromptableSegmenter, load_promptable


def write_masks(
    files: Sequence[str],
    model: str,
    output: str = "masks",
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
    inside: Sequence[tuple[int, ...]] = (),
    outside: Sequence[tuple[int, ...]] = (),
    box: tuple[int, ...] | None = None,
    **options: Any,
) -> None:
    """Writes masks of what points or a box ask for, or of everything, as COCO and drawn."""
    paths = find_readable(files, unreadable)
    is_asked = bool(inside or outside or box)
    if is_asked and len(paths) > 1:
        raise ValueError(
            f"Points and boxes are of one image. Received: {len(paths)} images. Leave --inside, "
            "--outside and --box out to find everything."
        )
    results = result_files(paths, output, ("_masks.png",))
    segmenter = load_promptable(model, image_size and (*image_size, 3))
    found = []
    for path in paths:
        pixels = read_image(path)
        if is_asked:
            masks = ask(segmenter, pixels, inside, outside, box)
        else:
            masks = find_all_masks(segmenter, pixels, **options)
        found.append(masks)
        write_png(results[path][0], draw_masks(pixels, masks))
        scores = ", ".join(f"{score:.2f}" for score in masks.scores[:5])
        say(printable(f"{path}  {len(masks.scores)} masks, scores {scores or 'none'}"))
    file = pathlib.Path(output) / "masks.json"
    write_text(file, json.dumps(to_coco(list(map(str, paths)), found)))
    say(f"written: {file}")


def ask(
    segmenter: PromptableSegmenter,
    pixels: np.ndarray,
    inside: Sequence[tuple[int, ...]],
    outside: Sequence[tuple[int, ...]],
    box: tuple[int, ...] | None,
) -> FoundMasks:
    """The best mask of one object: of three for a single point, which may mean a part."""
    embedded = segmenter.embed([pixels])
    prompts: dict[str, Any] = {} if box is None else {"boxes": [box]}
    if inside or outside:
        prompts["points"] = [[*inside, *outside]]
        prompts["labels"] = [[1] * len(inside) + [0] * len(outside)]
    is_single = len(inside) + len(outside) == 1 and box is None
    outputs = segmenter.predict(embedded, **prompts, num_masks=3 if is_single else 1)
    best = outputs["scores"][0].argmax()
    (masks,) = segmenter.resize_masks(outputs["masks"][:, best : best + 1], embedded.sizes)
    return FoundMasks(masks, outputs["scores"][0, best : best + 1], box_of(masks[0])[None])
