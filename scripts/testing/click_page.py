"""Writes a small Segment Anything, images and masks of clicks for `scripts/check-click-page`."""

from __future__ import annotations

import base64
import json
import pathlib
import sys

import numpy as np
from PIL import Image

from keras_vit.segmentation import load_promptable
from tests.segmentation.sam_folder import read_photographs, sam_folder

# Clicks of each image, as shares of width and height, and whether Shift is held.
CLICKS = [[(0.3, 0.4, 0)], [(0.7, 0.6, 0), (0.2, 0.2, 1)], [(0.5, 0.5, 0), (0.6, 0.4, 0)]]


def main(folder: str, weights: str | None = None) -> None:
    target = pathlib.Path(folder)
    (target / "images").mkdir()
    (target / "sam").mkdir()
    source = weights or sam_folder(target / "sam")
    (target / "weights").write_text(str(source))
    segmenter, answers = load_promptable(source), {}
    for (name, pixels), clicks in zip(read_photographs().items(), CLICKS, strict=True):
        path = target / f"images/{name}.png"
        Image.fromarray(np.ascontiguousarray(pixels)).save(path)
        height, width = pixels.shape[:2]
        points = [[int(x * width), int(y * height), 1 - shift] for x, y, shift in clicks]
        embedded, places = segmenter.embed([path]), np.array(points)
        prompts = {"points": places[None, :, :2], "labels": places[None, :, 2]}
        outputs = segmenter.predict(embedded, **prompts, num_masks=3 if len(points) == 1 else 1)
        best = outputs["scores"][0].argmax()
        (masks,) = segmenter.resize_masks(outputs["masks"], embedded.sizes)
        answers[path.name] = {
            "points": points, "score": float(outputs["scores"][0, best]),
            "mask": base64.b64encode(masks[best].tobytes()).decode(),
        }  # fmt: skip
    (target / "golden.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
