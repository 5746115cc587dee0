"""Writes tests/golden/poses.json: keypoints of transformers in photographs of scikit-image.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_poses.py

with the environment of `scripts/parity` (transformers 5.24.0, scikit-image 0.26). The networks are
those of tests/golden/networks.json, which are not trained; their heatmaps are decoded all the same.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import numpy as np
import skimage.data
import torch

from scripts.peers.parity_theirs import load_saved

import transformers  # isort: skip - after it

from scripts.golden.network_formula import network_arrays  # isort: skip

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
# Left, top, right, bottom; the second of the first photograph is partly outside of it.
BOXES: dict[str, list[list[float]]] = {
    "astronaut": [[60, 4, 452, 511], [-30.5, 200, 180.25, 470], [171, 60.5, 275, 210]],
    "coffee": [[101, 52, 540, 380]],
}
RAISED = 4.0  # added to all heatmaps, so that each has values above 0
FLIP_PAIRS = [[0, 1], [3, 5]]


def estimate(name: str, flips: bool) -> list[list[dict[str, Any]]]:
    """Keypoints and scores of every box by photographs."""
    case = json.loads((GOLDEN / "networks.json").read_text())[name]
    config = transformers.VitPoseConfig.from_dict(case["config"])
    model = transformers.VitPoseForPoseEstimation(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        state = {k: torch.tensor(v) for k, v in network_arrays(case["shapes"]).items()}
        state["head.conv.bias"] += RAISED
        model, _ = load_saved(model, folder, state)
    height, width = case["size"]
    processor = transformers.VitPoseImageProcessor(size={"height": height, "width": width})
    photographs = [getattr(skimage.data, each)() for each in BOXES]
    boxes = [[[x, y, right - x, bottom - y] for x, y, right, bottom in each]
             for each in BOXES.values()]  # fmt: skip
    pixels = processor(photographs, boxes=boxes, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        outputs = model.eval()(pixels)
        if flips:
            pairs = torch.tensor(FLIP_PAIRS)
            mirrored = model(pixels.flip(-1), flip_pairs=pairs).heatmaps
            outputs.heatmaps = (outputs.heatmaps + mirrored) / 2
    assert outputs.heatmaps.amax((2, 3)).min() > 0  # theirs lacks a maximum otherwise
    return [
        [
            {"keypoints": pose["keypoints"].tolist(), "scores": pose["scores"].tolist()}
            for pose in people
        ]
        for people in processor.post_process_pose_estimation(outputs, boxes)
    ]


def main() -> None:
    """Makes all cases."""
    cases = [("vitpose", False), ("classic vitpose", False), ("vitpose", True)]
    poses: list[dict[str, Any]] = [
        {"network": name, "flips": flips, "poses": estimate(name, flips)} for name, flips in cases
    ]
    found = {"boxes": BOXES, "flip_pairs": FLIP_PAIRS, "raised": RAISED, "cases": poses}
    (GOLDEN / "poses.json").write_text(json.dumps(found) + "\n")
    for row in poses:
        scores = np.concatenate([pose["scores"] for each in row["poses"] for pose in each])
        print(row["network"], row["flips"], scores.min(), scores.max())


if __name__ == "__main__":
    main()
