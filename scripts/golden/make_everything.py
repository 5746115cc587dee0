"""Writes tests/golden/everything.npz: masks of everything in photographs, by transformers.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_everything.py FOLDER

with the environment of `scripts/parity` and torchvision, and the folder `skimage/data` of
scikit-image. The network is the Segment Anything of `network_formula.py`.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil
from transformers.pipelines import MaskGenerationPipeline

from scripts.golden.network_formula import (
    EVERYTHING,
    SAM,
    SAM_FIXED,
    SAM_PROCESSOR,
    network_arrays,
    photographs_of,
)
from scripts.peers.parity_theirs import load_saved, save_names

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"


def main(data: str) -> None:
    model = transformers.SamModel(transformers.SamConfig(**SAM))
    with tempfile.TemporaryDirectory() as folder:
        shapes = save_names(model, folder)
        state = {name: torch.tensor(x) for name, x in network_arrays(shapes, SAM_FIXED).items()}
        model, _ = load_saved(model, folder, state)
    pipeline = MaskGenerationPipeline(
        model=model, image_processor=SamImageProcessorPil(**SAM_PROCESSOR)
    )
    photographs = photographs_of(lambda name: np.asarray(Image.open(pathlib.Path(data, name))))
    results: dict[str, Any] = {"shapes": json.dumps(shapes)}
    for name, photograph in photographs.items():
        for case, options in EVERYTHING.items():
            image = Image.fromarray(np.ascontiguousarray(photograph[..., :3]))
            found = pipeline(image, output_bboxes_mask=True, **options["theirs"])
            masks = np.stack([np.asarray(mask) for mask in found["masks"]])
            print(name, case, masks.shape, np.asarray(found["scores"]).round(3))
            key = f"{name}/{case}"
            results[f"{key}/masks"] = np.packbits(masks, axis=-1)
            results[f"{key}/scores"] = np.asarray(found["scores"])
            results[f"{key}/boxes"] = np.asarray(found["bounding_boxes"], "float32")
    np.savez_compressed(GOLDEN / "everything.npz", **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
