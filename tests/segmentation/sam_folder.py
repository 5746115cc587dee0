"""A small Segment Anything in a folder, and the photographs that it is asked about."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import skimage

from scripts.golden.network_formula import (
    SAM,
    SAM_FIXED,
    SAM_PROCESSOR,
    network_arrays,
    photographs_of,
)
from tests.official import GOLDEN
from tests.segmentation.promptable_cases import write_sam

EXPECTED = np.load(GOLDEN / "everything.npz")
DATA = pathlib.Path(skimage.__file__).parent / "data"


def sam_folder(folder: pathlib.Path) -> pathlib.Path:
    """Writes the checkpoint whose scores are about 0.8, which thresholds divide."""
    arrays = network_arrays(json.loads(str(EXPECTED["shapes"])), SAM_FIXED)
    write_sam(folder, arrays, {"architectures": ["SamModel"], "model_type": "sam", **SAM})
    (folder / "preprocessor_config.json").write_text(json.dumps(SAM_PROCESSOR))
    return folder


def read_photographs() -> dict[str, np.ndarray]:
    """Photographs of three sizes."""
    return photographs_of(lambda name: skimage.io.imread(DATA / name)[..., :3])
